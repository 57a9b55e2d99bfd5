"""The Sent140 model at its published size, a round of each contestant in milliseconds, all in one
run.

50 clients, 10 steps of batch 5, texts of 25 tokens, two LSTM layers of 100 over a table of 10,000 x
25 of which a client holds 300 rows.  The bare loops do the same work on the same plans, made
beforehand, and nothing else.  CentralSGD sees as many examples.  Contestants take turns; medians
and minima over turns, and the processor time of all threads, which on a busy machine says more.

    python benchmarks/lstm.py                # two host devices for the bare loops;
                                             # fedslice uses the first
    python benchmarks/lstm.py --devices 1    # without: threads only
"""

import argparse
import re
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

import fedslice as fs
from fedslice.models import lstm
from fedslice.models.classifier_lstm import classifier_lstm

CLIENTS, EXAMPLES, HELD, VOCABULARY, LENGTH = 1473, 54, 300, 10_000, 25
K, STEPS, BATCH, RATE = 50, 10, 5, 0.1


def people(seed=0):
    """Every text is 25 tokens of its writer's 300 words, which are common or rare by Zipf's law."""
    rng = np.random.default_rng(seed)
    chance = 1 / np.arange(1, VOCABULARY + 1)
    words = [
        rng.choice(VOCABULARY, HELD, replace=False, p=chance / chance.sum()) for _ in range(CLIENTS)
    ]
    tokens = np.concatenate(
        [own[rng.integers(HELD, size=(EXAMPLES, LENGTH))] for own in words]
    ).astype(np.int32)
    label = (rng.random(len(tokens)) < 0.5).astype(np.float32)
    return fs.Population.from_arrays(
        np.repeat(np.arange(CLIENTS), EXAMPLES), tokens=tokens, label=label
    )


def plain_lstm(layer, inputs):
    """The same layer for autodiff: the input product outside the loop, all else as the equations
    say."""

    def step(carry, z):
        hidden, cell = carry
        z = z + hidden @ layer["hidden"]
        size = z.shape[1] // 4
        into, keep, out = jnp.split(jax.nn.sigmoid(z[:, : 3 * size]), 3, axis=1)
        cell = keep * cell + into * jnp.tanh(z[:, 3 * size :])
        hidden = out * jnp.tanh(cell)
        return (hidden, cell), hidden

    zero = jnp.zeros((inputs.shape[1], layer["hidden"].shape[0]))
    return jax.lax.scan(step, (zero, zero), inputs @ layer["input"] + layer["bias"])[1]


def mean_loss(layer, params, tokens, label):
    states = layer(params["lstm"][1], layer(params["lstm"][0], params["embedding"][tokens.T]))
    z = states[-1] @ params["weight"] + params["bias"]
    return jnp.mean(jax.nn.softplus(z) - label * z)


def train(layer, params, tokens, label):
    """Local steps: what the parameters gain."""

    def step(now, batch):
        grads = jax.grad(partial(mean_loss, layer))(now, *batch)
        return jax.tree.map(lambda p, g: p - RATE * g, now, grads), ()

    end, _ = jax.lax.scan(step, params, (tokens, label))
    return jax.tree.map(jnp.subtract, end, params)


def some_clients(layer, params, places, tokens, label):
    """Sum of the updates of clients run one after the other; the table's rows are those of the
    round."""
    dense = {name: leaf for name, leaf in params.items() if name != "embedding"}

    def add(total, client):
        own, *data = client
        rows = params["embedding"].at[own].get(mode="fill", fill_value=0)
        update = train(layer, {**dense, "embedding": rows}, *data)
        table = total["embedding"].at[own].add(update.pop("embedding"), mode="drop")
        return {
            **jax.tree.map(jnp.add, {name: total[name] for name in dense}, update),
            "embedding": table,
        }, ()

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (places, tokens, label))[0]


def all_clients(layer, params, places, tokens, label):
    """The same, vectorised over clients."""
    dense = {name: leaf for name, leaf in params.items() if name != "embedding"}
    rows = params["embedding"].at[places].get(mode="fill", fill_value=0)
    one = lambda rows, *data: train(layer, {**dense, "embedding": rows}, *data)  # noqa: E731
    update = jax.vmap(one)(rows, tokens, label)
    table = jnp.zeros_like(params["embedding"]).at[places].add(update.pop("embedding"), mode="drop")
    return {**jax.tree.map(lambda leaf: leaf.sum(0), update), "embedding": table}


class Bare:
    """FedAvg with equal weights on plans made beforehand, the cohort in as many parts as there are
    ``devices``."""

    def __init__(self, clients, layer, params, plans, devices):
        self.params, self.plans, self.round, self.devices = params, plans, 0, devices
        self.part = jax.jit(partial(clients, layer))
        self.take = jax.jit(
            lambda p, union: {**p, "embedding": p["embedding"].at[union].get(mode="fill")}
        )
        self.put = jax.jit(self._put, donate_argnums=0)
        self.pool = ThreadPoolExecutor(len(devices))

    def _put(self, params, union, *parts):
        mean = jax.tree.map(lambda *leaves: sum(leaves) / K, *parts)
        table = params["embedding"].at[union].add(mean.pop("embedding"), mode="drop")
        return {
            **jax.tree.map(jnp.add, {name: params[name] for name in mean}, mean),
            "embedding": table,
        }

    def step(self):
        union, *data = self.plans[self.round % len(self.plans)]
        working = self.take(self.params, union)
        size = K // len(self.devices)

        def run(number):
            here = self.devices[number]
            own = [array[number * size : (number + 1) * size] for array in data]
            return jax.block_until_ready(self.part(*jax.device_put((working, *own), here)))

        parts = list(self.pool.map(run, range(len(self.devices))))
        self.params = self.put(self.params, union, *jax.device_put(parts, self.devices[0]))
        jax.block_until_ready(self.params)
        self.round += 1


class Central:
    """SGD on batches of K times the size, on one device or with half a batch on each of two."""

    def __init__(self, layer, params, data, devices):
        self.params, self.data, self.round = params, data, 0
        steps = partial(self._steps, jax.grad(partial(mean_loss, layer)))
        if devices > 1:
            mesh, split = Mesh(np.array(jax.devices()[:devices]), ("half",)), P(None, "half")
            share = lambda grads: jax.lax.pmean(grads, "half")  # noqa: E731
            inner = partial(steps, share)
            steps = jax.shard_map(
                inner, mesh=mesh, in_specs=(P(), split, split), out_specs=P(), check_vma=False
            )
        else:
            steps = partial(steps, lambda grads: grads)
        self.run = jax.jit(steps)

    @staticmethod
    def _steps(gradient, share, params, tokens, label):
        def step(now, batch):
            return jax.tree.map(lambda p, g: p - RATE * g, now, share(gradient(now, *batch))), ()

        return jax.lax.scan(step, params, (tokens, label))[0]

    def step(self):
        pick = np.random.default_rng(self.round).integers(
            len(self.data[0]), size=(STEPS, K * BATCH)
        )
        self.params = jax.block_until_ready(
            self.run(self.params, *(column[pick] for column in self.data))
        )
        self.round += 1


class Engine:
    def __init__(self, method, population, **options):
        self.run = fs.simulate(method, population, sampler=fs.sampling.uniform(K), **options)

    def step(self):
        for report in self.run.rounds(1):
            assert report.failed == 0


def contestants(devices):
    population, model = people(), classifier_lstm(VOCABULARY)
    work = {"work": fs.Work(steps=STEPS, batch=BATCH), "weights": "uniform"}
    subavg = fs.recipes.fedsubavg(model, optax.sgd(RATE), heat=population.heat(model), **work)
    avg = fs.recipes.fedavg(model, optax.sgd(RATE), **work)
    engine = Engine(subavg, population)
    plans = []
    for number in range(8):
        plan, _ = engine.run.planner.plan(number, engine.run.cohort(number))
        batches = plan.own.phases[0].batches
        plans.append(
            (
                plan.shared.union["embedding"],
                plan.own.places["embedding"],
                batches["tokens"],
                batches["label"],
            )
        )
    params = lambda: jax.tree.map(jnp.array, engine.run.params())  # noqa: E731
    one, data = jax.devices()[:1], (population.columns["tokens"], population.columns["label"])
    bare = lambda clients, layer, places: Bare(clients, layer, params(), plans, places)  # noqa: E731
    found = {
        "bare map, 2 threads": bare(some_clients, lstm.lstm, one * 2),
        "bare map, 2 threads, autodiff": bare(some_clients, plain_lstm, one * 2),
        "bare map, 1 thread": bare(some_clients, lstm.lstm, one),
        "bare vmap": bare(all_clients, lstm.lstm, one),
        "bare vmap, autodiff": bare(all_clients, plain_lstm, one),
        "CentralSGD": Central(lstm.lstm, params(), data, 1),
        "CentralSGD, autodiff": Central(plain_lstm, params(), data, 1),
    }
    if devices > 1:
        two = jax.devices()[:2]
        found["bare map, 2 devices"] = bare(some_clients, lstm.lstm, two)
        found["bare map, 2 devices, autodiff"] = bare(some_clients, plain_lstm, two)
        found["CentralSGD, 2 devices"] = Central(lstm.lstm, params(), data, 2)
        found["CentralSGD, 2 devices, autodiff"] = Central(plain_lstm, params(), data, 2)
    return found | {"fedslice fedsubavg": engine, "fedslice fedavg": Engine(avg, population)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=11)
    parser.add_argument("--devices", type=int, default=2, choices=(1, 2))
    parser.add_argument("--only", default="", help="contestants whose name matches this pattern")
    options = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", options.devices)
    runs = {
        name: run
        for name, run in contestants(options.devices).items()
        if re.search(options.only, name)
    }
    walls, works = ({name: [] for name in runs} for _ in range(2))
    for turn in range(options.turns + 1):  # the first one compiles
        for name, run in runs.items():
            start, begin = time.perf_counter(), time.process_time()
            run.step()
            if turn:
                walls[name].append(1e3 * (time.perf_counter() - start))
                works[name].append(1e3 * (time.process_time() - begin))
    show({name: statistics.median(values) for name, values in walls.items()}, walls, works)


def show(medians, walls, works):
    best = {
        kind: min(
            [value for name, value in medians.items() if name.startswith(kind)],
            default=float("nan"),
        )
        for kind in ("bare", "Central")
    }
    print(f"Sent140 LSTM, {K} clients, {STEPS} steps, batch {BATCH}, {LENGTH} tokens; ms a round")
    print(
        f"{'':<34}{'median':>8}{'min':>8}{'processor':>11}{'/ best bare':>13}{'/ best central':>16}"
    )
    for name, value in medians.items():
        print(
            f"{name:<34}{value:>8.0f}{min(walls[name]):>8.0f}{min(works[name]):>11.0f}"
            f"{value / best['bare']:>13.2f}{value / best['Central']:>16.2f}"
        )


if __name__ == "__main__":
    main()
