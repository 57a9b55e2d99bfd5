"""Write the work of every contestant to files: data, first model, who trains on what in each round.

    python benchmarks/peers/prepare.py FOLDER [WORKLOAD ...]

Cohorts and batches are those that fedslice draws with seed 0; the others are given them.  A client
counts as much as any other, for all go through the same number of examples."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import optax

import fedslice as fs
from fedslice.models.classifier_lstm import classifier_lstm
from fedslice.models.din import din
from fedslice.round.plan import Planner
from fedslice.tasks import amazon_din, movielens_lr
from fedslice.tasks.logistic import logistic

sys.path.append(str(Path(__file__).parents[1]))

SEED = 0
POWERS = range(4, 10)
COHORTS = (10, 100, 1_000, 10_000)
NAMES = (
    "lr",
    "lstm",
    "din",
    "mf",
    *(f"table-1e{power}" for power in POWERS),
    *(f"cohort-{size}" for size in COHORTS),
)


def model(kind, sizes):
    """The workload's model as fedslice has it."""
    if kind == "lr":
        return logistic(sizes["rows"])
    if kind == "lstm":
        return classifier_lstm(sizes["rows"], sizes["width"], sizes["hidden"])
    if kind == "din":
        return din(sizes["users"], sizes["items"], width=sizes["width"])
    table = fs.Table(rows=sizes["rows"], shape=(sizes["width"],), fields="item")
    return fs.Model(lambda key: {}, squares, {"table": table})


def squares(params, batch):
    return (params["table"][batch["item"]].sum(-1) - batch["label"]) ** 2


def fields(kind, x):
    """The columns of ``x`` by the names that the model reads."""
    if kind == "din":
        return {"user": x[:, 0], "item": x[:, 1], "history": x[:, 2:]}
    name = {"lr": "features", "lstm": "tokens", "table": "item"}[kind]
    return {name: x[:, 0] if kind == "table" else x}


def method(kind, sizes, steps, batch, rate, clip):
    """FedAvg, all clients of a round alike."""
    sgd = optax.sgd(rate)
    return fs.recipes.fedavg(
        model(kind, sizes),
        optax.chain(optax.clip_by_global_norm(clip), sgd) if clip else sgd,
        fs.Work(steps=steps, batch=batch),
        weights="uniform",
    )


def people(kind, folder):
    """The population of a folder that this program wrote."""
    owner = np.load(folder / "owner.npy")
    columns = fields(kind, np.load(folder / "x.npy"))
    return fs.Population.from_arrays(owner, **columns, label=np.load(folder / "y.npy"))


def flat(params, prefix=""):
    """A tree of parameters by dotted names."""
    pairs = params.items() if isinstance(params, dict) else enumerate(params)
    found = {}
    for name, leaf in pairs:
        inner = isinstance(leaf, (dict, list, tuple))
        found |= flat(leaf, f"{prefix}{name}.") if inner else {f"{prefix}{name}": np.asarray(leaf)}
    return found


def whole(run):
    """The model of a run with all rows of its tables, but of a very large one those held."""
    tables = run.model.tables
    rows = {name: np.arange(tables[name].rows) for name in run.spaces if name != "table"}
    return flat(run.params(rows))


# -- the data --------------------------------------------------------------------------------------


def movielens(copies=1):
    """With several copies each client is there so many times, for cohorts beyond its 6,040."""
    task = movielens_lr.synthetic()
    train, sizes = task.train, {"rows": task.model.tables["weight"].rows}
    owner = np.concatenate([train.owners + copy * len(train) for copy in range(copies)])
    x, y = (np.concatenate([train.columns[key]] * copies) for key in ("features", "label"))
    return owner, x, y, sizes


def sent140():
    from lstm import VOCABULARY, people

    train = people()
    sizes = {"rows": VOCABULARY, "width": 25, "hidden": 100}
    return train.owners, train.columns["tokens"], train.columns["label"], sizes


def amazon():
    task = amazon_din.synthetic()
    train, tables = task.train, task.model.tables
    enough = (train.counts > amazon_din.SETTINGS["batch"])[train.owners]
    columns = [train.columns[name][enough] for name in ("user", "item", "history", "label")]
    x = np.concatenate([columns[0][:, None], columns[1][:, None], columns[2]], axis=1)
    sizes = {name + "s": tables[name].rows for name in ("user", "item")}
    return train.owners[enough], x, columns[3], {**sizes, "width": tables["item"].shape[0]}


def large_table(rows):
    """50 clients of up to 200 rows each."""
    rng = np.random.default_rng(0)
    clients, held, examples = 50, 200, 400
    item = [rng.choice(rows, held)[rng.integers(held, size=examples)] for _ in range(clients)]
    x = np.concatenate(item)[:, None]
    y = rng.random(len(x))
    return np.repeat(np.arange(clients), examples), x, y, {"rows": rows, "width": 16}


class Settings(NamedTuple):
    """Clients a round, their steps, batch, rate and clip (0: none); rounds until models are
    compared."""

    cohort: int
    steps: int
    batch: int
    rate: float
    clip: float
    check: int


def workload(name):
    """Data, kind of model and settings."""
    if name == "lr":
        return movielens(), "lr", Settings(50, 10, 5, 0.1, 0, 5)
    if name == "lstm":
        return sent140(), "lstm", Settings(50, 10, 5, 0.1, 0, 3)
    if name == "din":
        published, rate = amazon_din.SETTINGS, amazon_din.RATES[""]
        local = [published[key] for key in ("cohort", "steps", "batch")]
        return amazon(), "din", Settings(*local, rate, published["gradient_clip"], 3)
    if name.startswith("table-1e"):
        return large_table(10 ** int(name[8:])), "table", Settings(50, 20, 20, 0.01, 0, 2)
    if name == "mf":  # made by benchmarks/mf.py, as nobody but fedslice takes part
        return None, "mf", Settings(100, 50, 5, 0.1, 0, 2)
    return movielens(2), "lr", Settings(int(name.split("-")[1]), 10, 5, 0.1, 0, 2)


# -- files -----------------------------------------------------------------------------------------


def write(name, folder):
    """All files of one workload; nothing if they are there."""
    if (folder / "spec.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    data, kind, settings = workload(name)
    sizes = write_data(data, kind, settings, folder) if data else {}
    spec = {"name": name, "kind": kind, "sizes": sizes, **settings._asdict()}
    (folder / "spec.json").write_text(json.dumps(spec))  # last: then all is there


def write_data(data, kind, settings, folder):
    owner, x, y, sizes = data
    np.save(folder / "owner.npy", owner)
    np.save(folder / "x.npy", x.astype(np.int32))
    np.save(folder / "y.npy", y.astype(np.float32))
    np.save(folder / "schedule.npy", schedule(owner, settings))
    first = {}
    if kind != "table":  # which begins with zeros
        sampler = fs.sampling.uniform(settings.cohort)
        algorithm = method(kind, sizes, *settings[1:5])
        first = whole(fs.simulate(algorithm, people(kind, folder), sampler=sampler, seed=SEED))
    np.savez(folder / "first.npz", **first)
    return sizes


def schedule(owner, settings):
    """Example numbers [rounds, K, S, B] as a run of fedslice draws them."""
    everyone = fs.Population.from_arrays(owner, example=np.arange(len(owner)))
    work = fs.Work(steps=settings.steps, batch=settings.batch)
    planner = Planner(everyone, {}, [work], SEED)
    sampler, found = fs.sampling.uniform(settings.cohort), []
    for number in range(max(4, min(40, 200_000 // settings.cohort // settings.steps))):
        plan, _ = planner.plan(number, sampler.cohort(SEED, number, everyone.counts))
        phase = plan.own.phases[0]
        assert (phase.sizes == settings.batch).all(), "a client has too few examples"
        found.append(np.asarray(phase.batches["example"]))
    return np.stack(found)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    for name in sys.argv[2:] or NAMES:
        write(name, Path(sys.argv[1]) / name)
        print(f"{name}: ready", flush=True)
