"""DIN at the size of the Amazon task, a round of each contestant in milliseconds, all in one run.

100 clients, 10 steps of batch 4, histories of 20, global-norm clip, on the generated data of
`amazon-din`.  The bare loops do FedSubAvg's work for this one model, on plans made beforehand, and
nothing else: clients vectorised, or one after the other in one or two threads.  Contestants take
turns; medians and minima over turns, and the processor time of all threads, which on a busy machine
says more.

    python benchmarks/din.py
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

import fedslice as fs
from fedslice.tasks import amazon_din

K, STEPS, BATCH = (amazon_din.SETTINGS[name] for name in ("cohort", "steps", "batch"))
CLIP, RATE = amazon_din.SETTINGS["gradient_clip"], amazon_din.RATES["fedsubavg"]
TABLES = ("user", "item")


def train(loss, params, batches):
    """Local steps: what the parameters gain."""

    def step(now, batch):
        grads = jax.grad(lambda p: jnp.mean(loss(p, batch)))(now)
        norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(grads)))
        size = RATE * jnp.minimum(1, CLIP / norm)
        return jax.tree.map(lambda p, g: p - size * g, now, grads), ()

    end, _ = jax.lax.scan(step, params, batches)
    return jax.tree.map(jnp.subtract, end, params)


def one_by_one(loss, params, places, batches, share):
    """The weighted sum of the clients' updates, one client after the other."""

    def add(total, client):
        own, data, weight = client
        rows = {name: params[name].at[own[name]].get(mode="fill", fill_value=0) for name in TABLES}
        update = jax.tree.map(lambda leaf: weight * leaf, train(loss, {**params, **rows}, data))
        tables = {
            name: total[name].at[own[name]].add(update.pop(name), mode="drop") for name in TABLES
        }
        dense = jax.tree.map(jnp.add, {name: total[name] for name in update}, update)
        return {**dense, **tables}, ()

    return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (places, batches, share))[0]


def all_at_once(loss, params, places, batches, share):
    """The same, vectorised over clients."""
    rows = {name: params[name].at[places[name]].get(mode="fill", fill_value=0) for name in TABLES}
    update = jax.vmap(lambda own, data: train(loss, {**params, **own}, data))(rows, batches)
    update = jax.tree.map(lambda leaf: leaf * share.reshape((-1,) + (1,) * (leaf.ndim - 1)), update)
    tables = {
        n: jnp.zeros_like(params[n]).at[places[n]].add(update.pop(n), mode="drop") for n in TABLES
    }
    return {**jax.tree.map(lambda leaf: leaf.sum(0), update), **tables}


class Bare:
    """FedSubAvg on plans made beforehand, the cohort in as many parts as there are ``threads``."""

    def __init__(self, clients, loss, params, factors, plans, threads):
        self.params, self.factors, self.plans, self.round, self.threads = (
            params,
            factors,
            plans,
            0,
            threads,
        )
        self.part = jax.jit(partial(clients, loss))
        self.take = jax.jit(self._take)
        self.put = jax.jit(self._put, donate_argnums=0)
        self.pool = ThreadPoolExecutor(threads)

    def _take(self, params, union):
        return {
            **params,
            **{
                name: params[name].at[union[name]].get(mode="fill", fill_value=0) for name in TABLES
            },
        }

    def _put(self, params, factors, union, *parts):
        total = jax.tree.map(lambda *leaves: sum(leaves), *parts)
        tables = {}
        for name in TABLES:
            factor = factors[name].at[union[name]].get(mode="fill", fill_value=0)
            tables[name] = (
                params[name].at[union[name]].add(factor[:, None] * total.pop(name), mode="drop")
            )
        return {**jax.tree.map(jnp.add, {name: params[name] for name in total}, total), **tables}

    def step(self):
        union, *data = self.plans[self.round % len(self.plans)]
        working, size = self.take(self.params, union), K // self.threads

        def run(number):
            own = jax.tree.map(lambda array: array[number * size : (number + 1) * size], data)
            return jax.block_until_ready(self.part(working, *own))

        parts = list(self.pool.map(run, range(self.threads)))
        self.params = jax.block_until_ready(self.put(self.params, self.factors, union, *parts))
        self.round += 1


class Engine:
    def __init__(self, method, population, **options):
        self.run = fs.simulate(method, population, sampler=fs.sampling.uniform(K), **options)

    def step(self):
        for report in self.run.rounds(1):
            assert report.failed == 0


def contestants():
    task = amazon_din.synthetic()
    people, heat = task.train, task.train.heat(task.model)
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.sgd(RATE))
    method = fs.recipes.fedsubavg(
        task.model, optimizer, fs.Work(steps=STEPS, batch=BATCH), heat=heat
    )
    plain = fs.recipes.fedavg(task.model, optimizer, fs.Work(steps=STEPS, batch=BATCH))
    engine, plans = Engine(method, people), []
    for number in range(8):
        plan, _ = engine.run.planner.plan(number, engine.run.cohort(number))
        share = (plan.own.weight / plan.own.weight.sum()).astype(np.float32)
        plans.append((plan.shared.union, plan.own.places, plan.own.phases[0].batches, share))
    factors = {
        name: jnp.asarray(heat.coefficient(name, heat.ids[name], "examples")) for name in TABLES
    }

    def bare(clients, threads):
        params = jax.tree.map(jnp.array, engine.run.params())
        return Bare(clients, task.model.loss, params, factors, plans, threads)

    return {
        "bare vmap": bare(all_at_once, 1),
        "bare vmap, 2 threads": bare(all_at_once, 2),
        "bare map": bare(one_by_one, 1),
        "bare map, 2 threads": bare(one_by_one, 2),
        "fedslice fedsubavg": engine,
        "fedslice fedavg": Engine(plain, people),
        "fedslice fedsubavg, vmap": Engine(method, people, engine="vmap"),
    }


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--only", default="", help="contestants whose name matches this pattern")
    options = parser.parse_args()
    runs = {name: run for name, run in contestants().items() if re.search(options.only, name)}
    walls, works = ({name: [] for name in runs} for _ in range(2))
    for turn in range(options.turns + 2):  # the first ones compile
        for name, run in runs.items():
            start, begin = time.perf_counter(), time.process_time()
            run.step()
            if turn > 1:
                walls[name].append(1e3 * (time.perf_counter() - start))
                works[name].append(1e3 * (time.process_time() - begin))
    medians = {name: statistics.median(values) for name, values in walls.items()}
    best = min(
        [value for name, value in medians.items() if name.startswith("bare")], default=float("nan")
    )
    print(
        f"Amazon DIN, {K} clients, {STEPS} steps, batch {BATCH}, histories of {amazon_din.LONGEST};"
        " ms a round"
    )
    print(f"{'':<28}{'median':>8}{'min':>8}{'processor':>11}{'/ best bare':>13}")
    for name, value in medians.items():
        print(
            f"{name:<28}{value:>8.0f}{min(walls[name]):>8.0f}{min(works[name]):>11.0f}"
            f"{value / best:>13.2f}"
        )


if __name__ == "__main__":
    main()
