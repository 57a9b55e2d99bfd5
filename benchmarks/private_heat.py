"""Heat correction under differential privacy: where the noise goes, and what private heat costs.

    python benchmarks/private_heat.py power      A = diag(c^a), a = 0, 1/2, 1, each with its clip
    python benchmarks/private_heat.py response   rounds to the target, heat by randomised response
    python benchmarks/private_heat.py picture    docs/images/private-heat.png from lines of power

On the MovieLens generator at full size (or MovieLens-1M: --data-dir).
"""

import argparse
import json
from pathlib import Path

import optax

import fedslice as fs
from fedslice.errors import DivergedError
from fedslice.heat import Heat
from fedslice.privacy import heat as heats
from fedslice.tasks.base import Task

WORK = fs.Work(steps=10, batch=5)


def task_of(options: argparse.Namespace) -> Task:
    if options.data_dir:
        return fs.tasks.movielens_lr.load(options.data_dir)
    return fs.tasks.movielens_lr.synthetic(seed=0)


def private(
    task: Task, heat: Heat | None, clip: float, power: float, options: argparse.Namespace, seed: int
) -> float:
    """The test loss after so many private rounds; infinite if they diverge."""
    drawn = fs.sampling.poisson(options.cohort)
    stages = fs.privacy.central(clip, options.noise, drawn, heat=heat, power=power)
    method = fs.recipes.fedavg(
        task.model, optax.sgd(options.rate), WORK, weights="uniform", stages=stages
    )
    run = fs.simulate(method, task.train, sampler=drawn, seed=seed)
    try:
        run.train(options.rounds, progress=False)
    except DivergedError:
        return float("inf")
    return fs.evaluate(run, task.test).pooled["loss"]


def powers(options: argparse.Namespace) -> None:
    task = task_of(options)
    exact = heats.public(task.train.heat(task.model))
    for seed in options.seeds:
        for name, heat, power in (
            ("FedAvg", None, 0.0),
            *((f"a = {power:g}", exact, power) for power in options.powers),
        ):
            found = {
                clip: private(task, heat, clip, power, options, seed) for clip in options.clips
            }
            best = min(found, key=lambda clip: found[clip])
            line = {"seed": seed, "method": name, "clip": best, "test_loss": round(found[best], 4)}
            print(
                json.dumps({**line, "all": {c: round(v, 4) for c, v in found.items()}}), flush=True
            )


def responses(options: argparse.Namespace) -> None:
    task = task_of(options)
    target = 0.65
    for seed in options.seeds:
        for name in ("exact", *options.epsilons):
            if name == "exact":
                heat = task.train.heat(task.model)
            else:
                heat = heats.estimate(heats.respond(task.train, task.model, float(name), seed=seed))
            method = fs.recipes.fedsubavg(
                task.model, optax.sgd(options.rate), WORK, heat=heat, weights=options.weights
            )
            drawn = fs.sampling.uniform(50)
            run = fs.simulate(method, task.train, sampler=drawn, seed=seed)
            score = fs.Evaluator(task.model, task.train.sample(10_000))
            rounds = None
            for _ in range(options.rounds // 5):
                run.train(5, progress=False)
                if score(run.params(score.ids())).pooled["loss"] <= target:
                    rounds = run.round
                    break
            print(json.dumps({"seed": seed, "heat": name, "rounds": rounds}), flush=True)


def picture(options: argparse.Namespace) -> None:
    """Test loss against the clip: the mean over seeds, and the seeds themselves."""
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for file in options.lines for line in file.read_text().splitlines()]
    looks = {
        "FedAvg": ("FedAvg, no heat", "0.45", "s"),
        "a = 0": ("a = 0: clip, add noise, then correct", "#c8553d", "v"),
        "a = 0.5": ("a = 1/2: FedSubAvg's geometry", "#1b4f8c", "o"),
        "a = 1": ("a = 1: clip the corrected update", "#e09f3e", "^"),
    }
    figure, axes = plt.subplots(figsize=(7.2, 4.2), constrained_layout=True)
    for method, (label, colour, marker) in looks.items():
        points: dict[float, list[float]] = {}
        for line in lines:
            for clip, loss in line["all"].items() if line["method"] == method else ():
                points.setdefault(float(clip), []).append(loss)
        clips = sorted(points)
        means = [sum(points[clip]) / len(points[clip]) for clip in clips]
        axes.plot(clips, means, marker=marker, color=colour, label=label, lw=1.6, ms=5)
        for clip in clips:
            axes.plot([clip] * len(points[clip]), points[clip], ".", color=colour, ms=3, alpha=0.6)
    axes.set(xscale="log", ylim=(0.638, 0.702), xlabel="clip C (tuned for each)")
    axes.set_ylabel("test loss after 100 private rounds")
    axes.axhline(0.6931, color="0.7", lw=0.8, ls=":")
    axes.text(0.0031, 0.6936, "untrained", color="0.5", fontsize=8)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(options.png, dpi=110)
    print(options.png)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("power", "response", "picture"))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 4, 5])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cohort", type=float, default=604)
    parser.add_argument("--noise", type=float, default=1.0)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--clips", type=float, nargs="+", default=[0.1, 0.2, 0.4, 0.8, 1.6, 3.2])
    parser.add_argument("--powers", type=float, nargs="+", default=[0.0, 0.5, 1.0])
    parser.add_argument("--epsilons", nargs="+", default=["1", "4"])
    parser.add_argument("--weights", default="examples")
    parser.add_argument("--lines", type=Path, nargs="+", default=[])
    parser.add_argument("--png", type=Path, default=Path("docs/images/private-heat.png"))
    options = parser.parse_args()
    {"power": powers, "response": responses, "picture": picture}[options.what](options)


if __name__ == "__main__":
    main()
