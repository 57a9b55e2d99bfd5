"""Attacks against reductions: a fifth of the clients attack, who still learns?  Writes
docs/images/robust.png.

    python benchmarks/robust.py

Logistic regression on the MovieLens generator, with as many clients a round as the published task.
"""

import argparse
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedslice as fs
from fedslice.errors import DivergedError

ATTACKS = {"honest": 0, "update × 100": 1, "NaN": 2, "sign flip × 10": 3, "colluding constant": 4}
METHODS = {
    "mean": {},
    "trimmed(0.4)": {"reduce": fs.reduce.trimmed(0.4)},
    "median": {"reduce": fs.reduce.median()},
    "geometric": {"reduce": fs.reduce.geometric()},
    "multi-Krum": {"reduce": fs.reduce.krum(0.3, keep=20)},
    "clip(0.5)": {"stages": [fs.stage.clip(0.5)]},
    "clip + median": {"stages": [fs.stage.clip(0.5)], "reduce": fs.reduce.median()},
}
SHARE, RATE = 0.2, 0.3


def marked(population, attack):
    """With a column for what a client does: the attack's number for a random fifth, else 0."""
    bad = np.random.default_rng(1).permutation(len(population)) < round(SHARE * len(population))
    column = np.where(bad, attack, 0).astype(np.float32)[population.owners]
    return fs.Population(
        {**population.columns, "bad": column}, population.offsets, population.clients
    )


def attacking(client):
    """The client's update, changed as its data say."""

    def run(offer, memory, data, key):
        message, memory = client.run(offer, memory, data, key)
        kind = data.phases[0].batches["bad"][0, 0]

        def leaf(x):
            changed = [100 * x, jnp.full_like(x, jnp.nan), -10 * x, jnp.full_like(x, -1.0)]
            return jnp.select([kind == number for number in (1, 2, 3, 4)], changed, x)

        return message._replace(update=jax.tree.map(leaf, message.update)), memory

    return client._replace(run=run)


def final_loss(task, train, test, settings, rounds, cohort):
    plain = task.model
    model = fs.Model(plain.init, lambda p, b: plain.loss(p, b) + 0 * b["bad"], plain.tables)
    method = fs.recipes.fedavg(
        model, optax.sgd(RATE), fs.Work(steps=10, batch=5), weights="uniform", **settings
    )
    method = method._replace(client=attacking(method.client))
    run = fs.simulate(method, train, sampler=fs.sampling.uniform(cohort), engine="vmap")
    try:
        run.train(rounds, progress=False)
    except DivergedError:
        return float("inf")
    return fs.evaluate(run, test).pooled["loss"]


def table(losses):
    print(f"{'test loss':<16}" + "".join(f"{attack:>20}" for attack in ATTACKS))
    for name in METHODS:
        cells = (losses[name, attack] for attack in ATTACKS)
        print(
            f"{name:<16}"
            + "".join(
                f"{cell:>20.4f}" if np.isfinite(cell) else f"{'diverged':>20}" for cell in cells
            )
        )


def picture(losses, start, file, cohort):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    axes = figure.subplots()
    low, high = 0.64, 0.76
    width = 0.8 / len(METHODS)
    colours = ["#777777", "#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377"]
    for number, (name, colour) in enumerate(zip(METHODS, colours, strict=True)):
        x = np.arange(len(ATTACKS)) + (number - (len(METHODS) - 1) / 2) * width
        values = np.array([losses[name, attack] for attack in ATTACKS])
        axes.bar(x, np.minimum(values, high) - low, 0.92 * width, low, label=name, color=colour)
        for place, value in zip(x, values, strict=True):
            if value > high:
                text = f"{value:.2f}" if np.isfinite(value) else "diverged"
                axes.text(
                    place,
                    high - 0.002,
                    text,
                    rotation=90,
                    ha="center",
                    va="top",
                    color="white",
                    fontsize=9,
                )
    axes.axhline(start, color="black", linewidth=1, linestyle="--", label="before training")
    axes.set_ylim(low, high)
    axes.set_xticks(np.arange(len(ATTACKS)), ATTACKS)
    axes.set_ylabel("test loss after training (lower is better)")
    axes.set_title(
        f"{SHARE:.0%} of the clients attack; {cohort} clients a round, MovieLens LR (generated)"
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(METHODS) + 1, frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(f"\n{file}")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--cohort", type=int, default=50, help="clients a round, of 302")
    default = Path(__file__).parents[1] / "docs" / "images" / "robust.png"
    parser.add_argument("--out", type=Path, default=default)
    options = parser.parse_args()
    task = fs.tasks.movielens_lr.synthetic(scale=0.05)
    parts = {
        attack: (marked(task.train, code), marked(task.test, code))
        for attack, code in ATTACKS.items()
    }
    losses = {}
    for name, settings in METHODS.items():
        for attack, (train, test) in parts.items():
            losses[name, attack] = final_loss(
                task, train, test, settings, options.rounds, options.cohort
            )
    table(losses)
    picture(losses, float(np.log(2)), options.out, options.cohort)  # the first model is all zeros


if __name__ == "__main__":
    main()
