"""FedRecon's MovieLens experiment (Singhal et al. 2021): its Table 3 and its Figure 3.

    python benchmarks/reconstruction.py --data-dir ml-1m.zip
    python benchmarks/reconstruction.py --scale 0.25            # generated data

The rates of each method are chosen by the RMSE on validation users with seed 0, then judged on test
users with every seed.  The figure has the RMSE of unseen users by the steps of their reconstruction
and by their support examples."""

import argparse
import functools
import itertools
from pathlib import Path

import numpy as np
import optax

import fedslice as fs
from fedslice.client import reconstruction
from fedslice.errors import DivergedError
from fedslice.evaluation.gain import Personal
from fedslice.models.factorisation import factorisation
from fedslice.tasks import movielens_mf

EPOCHS, CENTRAL_BATCH, COHORT, BATCH, MOST, PASSES = 20, 300, 100, 5, 50, 5
STEPS, SUPPORTS = (0, 1, 2, 5, 10, 20, 50), (1, 2, 5, 10, 20, 50)
GRID = tuple(
    itertools.product((0.1, 0.5), (0.1, 0.5), (0.1, 0.5, 1.0))
)  # the paper's: client, reconstruction, server
CENTRAL = tuple(
    (rate, 0.1) for rate in (1.0, 3.0, 10.0, 30.0)
)  # the paper does not say: SGD's rate, and that of reconstruction
VARIANTS = {
    "FedRecon": {},
    "FedRecon, fresh halves": {"split": "fresh"},
    "FedRecon, no split": {"split": "none"},
    "FedRecon, joint": {"joint": True},
    "FedRecon, Adagrad server": {
        "server": lambda rate: optax.adagrad(rate, initial_accumulator_value=0.1)
    },
}


LINES = (
    "central, seen users",
    "central, unseen users",
    "central, unseen users, reconstructed",
    "FedAvg, unseen users, reconstructed",
    *VARIANTS,
)


class Data:
    """The two splits, with and without local vectors, and how unseen users are judged."""

    def __init__(self, options):
        self.options, made = options, functools.partial(movielens_mf.synthetic, 0, options.scale)
        self.task = functools.cache(
            functools.partial(movielens_mf.load, options.data_dir) if options.data_dir else made
        )

    def judged(self, **how):
        """Ratings to judge by: of films that enough training users have rated."""
        task = self.task(**how)
        counts = np.bincount(task.train.columns["movie"], minlength=task.model.tables["item"].rows)
        return task.test.select(counts[task.test.columns["movie"]] >= self.options.fewest)

    def rebuilt(self, run, part, rate, steps=None, support=None):
        """ReconEval: vectors rebuilt with the run's films."""
        users = self.judged(part=part)
        model = factorisation(run.model.tables["item"].rows, stars=self.stars)
        adapt = reconstruction(
            model, optax.sgd(rate), fs.Work(steps=MOST, epochs=PASSES, batch=BATCH)
        )
        judge = Personal(users, adapt, support=support)
        return judge({"item": run.table("item", judge.ids()["item"])}, steps=steps).after.pooled

    @property
    def stars(self):
        return 0.5 if (self.task(part="test").train.columns["rating"] % 1).any() else 1.0


def central(data, split, rate, seed):
    """SGD on the pooled ratings; the server holds the users' vectors."""
    task = data.task(split=split, part="test", local=False)
    steps = max(1, task.train.examples // CENTRAL_BATCH)
    method = fs.recipes.central(
        task.model, optax.sgd(rate), fs.Work(steps=steps, batch=CENTRAL_BATCH)
    )
    run = fs.simulate(method, task.train.pool(), sampler=fs.sampling.full(), seed=seed)
    run.train(EPOCHS, progress=False)
    return run


def federated(data, task, method, seed):
    sampler = fs.sampling.uniform(min(COHORT, len(task.train)))
    run = fs.simulate(method, task.train, sampler=sampler, seed=seed)
    run.train(data.options.rounds, progress=False)
    return run


def fedrecon(data, rates, seed, server=optax.sgd, **variant):
    task, (client, rebuild, rate) = data.task(part="test"), rates
    work = {"work": fs.Work(MOST, 1, BATCH), "recover": fs.Work(MOST, PASSES, BATCH)}
    both = {"reconstruction": optax.sgd(rebuild), "server": server(rate)}
    method = fs.recipes.fedrecon(task.model, optax.sgd(client), **both, **work, **variant)
    return federated(data, task, method, seed)


def fedavg(data, rates, seed):
    """One epoch on all ratings; the server holds the users' vectors, and a client sends its own
    with its films."""
    task, (client, _, rate) = data.task(part="test", local=False), rates
    method = fs.recipes.fedavg(
        task.model, optax.sgd(client), fs.Work(epochs=1, batch=BATCH), server=optax.sgd(rate)
    )
    return federated(data, task, method, seed)


def lines(data):
    """The table's lines: rates to choose from, how to train, how to judge."""

    def held(split):
        return lambda run, part, rates: (
            fs.evaluate(run, data.judged(split=split, part=part, local=False)).pooled
        )

    def rebuilt(run, part, rates):
        return data.rebuilt(run, part, rates[1])

    yield LINES[0], CENTRAL, lambda rates, seed: central(data, "time", rates[0], seed), held("time")
    pooled = functools.cache(lambda rates, seed: central(data, "users", rates[0], seed))
    yield LINES[1], CENTRAL, pooled, held("users")
    yield LINES[2], CENTRAL, pooled, rebuilt
    yield LINES[3], GRID, lambda rates, seed: fedavg(data, rates, seed), rebuilt
    for name, variant in VARIANTS.items():
        yield (
            name,
            GRID,
            lambda rates, seed, variant=variant: fedrecon(data, rates, seed, **variant),
            rebuilt,
        )


def attempt(train, judge, rates, seed, part):
    """The run and its figures; infinite where it diverged."""
    try:
        run = train(rates, seed)
    except DivergedError:
        return None, {"rmse": float("inf"), "accuracy": 0.0}
    return run, judge(run, part, rates)


def table(data):
    """Print it; return the FedRecon run of seed 0 and its rates, for the figure."""
    print(f"{'':<38}{'RMSE':>8}{'accuracy':>10}{'kB down':>9}{'kB up':>7}   rates", flush=True)
    chosen = None
    for name, grid, train, judge in lines(data):
        if data.options.only and name not in data.options.only:
            continue
        tried = {rates: attempt(train, judge, rates, 0, "validation")[1]["rmse"] for rates in grid}
        best = min(tried, key=lambda rates: np.nan_to_num(tried[rates], nan=np.inf))
        found = [attempt(train, judge, best, seed, "test") for seed in range(data.options.seeds)]
        rmse, accuracy = (
            np.mean([figures[key] for _, figures in found]) for key in ("rmse", "accuracy")
        )
        rates = ", ".join(f"{rate:g}" for rate in best)
        print(f"{name:<38}{rmse:>8.3f}{accuracy:>10.1%}{sent(found[0][0])}   {rates}", flush=True)
        if name == "FedRecon" and found[0][0] is not None:
            chosen = found[0][0], best
    return chosen


def sent(run):
    """What a client receives and sends in a round, in the mean."""
    if run is None or len(run.population) == 1:
        return f"{'':>16}"
    visits = run.round * min(COHORT, len(run.population))
    down, up = (run.totals[key] / visits / 1e3 for key in ("bytes_down", "bytes_up"))
    return f"{down:>9.1f}{up:>7.1f}"


def picture(data, run, rates, file):
    by_steps = [data.rebuilt(run, "test", rates[1], steps=steps)["rmse"] for steps in STEPS]
    by_support = [
        data.rebuilt(run, "test", rates[1], support=support)["rmse"] for support in SUPPORTS
    ]
    print(
        "steps   "
        + "  ".join(f"{steps}: {value:.3f}" for steps, value in zip(STEPS, by_steps, strict=True))
    )
    print(
        "support "
        + "  ".join(
            f"{most}: {value:.3f}" for most, value in zip(SUPPORTS, by_support, strict=True)
        )
    )
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return print("for the figure: pip install matplotlib")
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, x, y, label in (
        (panels[0], STEPS, by_steps, "steps of reconstruction"),
        (panels[1], SUPPORTS, by_support, "support examples, at most"),
    ):
        axes.plot(x, y, marker="o", color="#4477aa")
        axes.set_xscale("symlog")
        axes.set_xticks(x, x)
        axes.set_xlabel(label)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("RMSE of unseen users")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=150)
    print(file)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-dir", type=Path, help="MovieLens, a folder or a zip; default: generated"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the generated data")
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--fewest",
        type=int,
        default=0,
        help="judge by films that so many training users have rated",
    )
    parser.add_argument("--out", type=Path, default=Path("reconstruction.png"))
    parser.add_argument(
        "--only", nargs="+", choices=LINES, metavar="LINE", help="lines of the table, by name"
    )
    data = Data(parser.parse_args())
    chosen = table(data)
    if chosen:
        picture(data, *chosen, data.options.out)


if __name__ == "__main__":
    main()
