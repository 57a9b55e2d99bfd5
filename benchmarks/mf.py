"""Time a round of FedRecon on matrix factorisation at the paper's settings, next to bare JAX loops,
on a quiet machine.

100 clients, at most 50 + 50 steps of batch 5 (R: of 5 passes over support; U: of one over query),
dimension 50, 3,706 films, users with as many ratings as in MovieLens-1M after the cut: median 96,
at most 300 (Singhal et al. 2021).  The bare loops get their batches ready-made; fedslice samples,
plans, reports and checks.
"""

import argparse
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from speed import alternate, engine, loop

import fedslice as fs
from fedslice.data import halves
from fedslice.evaluation.gain import Personal

K, BATCH, MOST_STEPS, PASSES, SIZE, ITEMS, USERS, MOST = 100, 5, 50, 5, 50, 3706, 4832, 300
R_RATE, U_RATE = 0.1, 0.1  # ratings here are noise, on which the paper's 0.5 for U diverges
READY = 8  # rounds planned ahead for the bare loops, then again from the first


def squares(params, batch):
    return (jnp.sum(params["item"][batch["item"]] * params["user"], -1) - batch["rating"]) ** 2


def uniform(key, shape):
    return jax.random.uniform(key, shape, minval=-0.05, maxval=0.05)


def raters(seed=0):
    """Users who rate films by popularity, each film once."""
    rng = np.random.default_rng(seed)
    counts = np.clip(np.exp(rng.normal(np.log(96), 1.0, USERS)), 20, MOST).astype(int)
    popular = np.log(1 / np.arange(1, ITEMS + 1) ** 0.8)
    item = [np.argpartition(-(popular + rng.gumbel(size=ITEMS)), count)[:count] for count in counts]
    owner = np.repeat(np.arange(USERS), counts)
    rating = rng.choice(np.arange(1.0, 6.0), len(owner), p=[0.06, 0.11, 0.26, 0.35, 0.22])
    return fs.Population.from_arrays(owner, item=np.concatenate(item), rating=rating)


class Bare:
    """The same round written by hand for this one model: a block of rows [300, 50] a client."""

    def __init__(self, people, mode, client):
        self.people, self.part = people, halves.assign(people, "half")
        self.table = uniform(jax.random.key(0), (ITEMS, SIZE))
        self.plans = itertools.cycle(
            [self._plan(np.random.default_rng(number)) for number in range(READY)]
        )

        def cohort(table, places, keys, support, query, weight):
            rows = table.at[places].get(mode="fill", fill_value=0)
            each = (rows, keys, support, query)
            most = [jnp.max(batches[2]) for batches in (support, query)]

            def one(given):
                limits = most if mode == "vmap" else [batches[2] for batches in given[2:]]
                return client(*given, *limits)

            change = jax.vmap(one)(each) if mode == "vmap" else jax.lax.map(one, each)
            scaled = change * (weight / weight.sum())[:, None, None]
            return table.at[places.reshape(-1)].add(scaled.reshape(-1, SIZE), mode="drop")

        self.compiled = jax.jit(cohort, donate_argnums=0)

    def _plan(self, rng):
        people, who = self.people, np.sort(rng.choice(USERS, K, replace=False))
        places = np.full((K, MOST), ITEMS, np.int32)
        for k, client in enumerate(who):
            own = people.columns["item"][people.offsets[client] : people.offsets[client + 1]]
            places[k, : len(own)] = own
        support = self._batches(halves.SUPPORT, who, PASSES, rng)
        query = self._batches(halves.QUERY, who, 1, rng)
        keys = jax.random.split(jax.random.key(who[0]), K)
        return places, keys, support, query, query[1].sum(1).astype(np.float32)

    def _batches(self, which, who, passes, rng):
        """Positions among the client's films and ratings, sizes of batches, number of steps."""
        pairs, sizes = (
            np.zeros((2, K, MOST_STEPS, BATCH), np.float32),
            np.zeros((K, MOST_STEPS), np.int32),
        )
        for k, client in enumerate(who):
            first, last = self.people.offsets[client : client + 2]
            own = first + np.flatnonzero(self.part[first:last] == which)
            batches = [
                np.array_split(rng.permutation(own), np.arange(BATCH, len(own), BATCH))
                for _ in range(passes)
            ]
            for step, chosen in enumerate(itertools.islice(itertools.chain(*batches), MOST_STEPS)):
                pairs[:, k, step, : len(chosen)] = (
                    chosen - first,
                    self.people.columns["rating"][chosen],
                )
                sizes[k, step] = len(chosen)
        return (pairs[0].astype(np.int32), pairs[1]), sizes, (sizes > 0).sum(1).astype(np.int32)

    def step(self):
        self.table = self.compiled(self.table, *next(self.plans))
        jax.block_until_ready(self.table)


def mean_squares(user, rows, batches, sizes, step):
    position, rating = (field[step] for field in batches)
    error = (rows[position] * user).sum(-1) - rating
    return jnp.sum(jnp.where(jnp.arange(BATCH) < sizes[step], error**2, 0)) / jnp.maximum(
        sizes[step], 1
    )


def rebuild(rows, key, support, limit):
    gradient = jax.grad(mean_squares)
    return jax.lax.fori_loop(
        0,
        limit,
        lambda s, user: user - R_RATE * gradient(user, rows, *support[:2], s),
        uniform(key, (SIZE,)),
    )


def by_gradient(rows, key, support, query, support_limit, query_limit):
    """U by the gradient of the whole block in every step, as any model's."""
    user, gradient = rebuild(rows, key, support, support_limit), jax.grad(mean_squares, 1)
    new = jax.lax.fori_loop(
        0, query_limit, lambda s, r: r - U_RATE * gradient(user, r, *query[:2], s), rows
    )
    return new - rows


def by_hand(rows, key, support, query, support_limit, query_limit):
    """U on the five rows of the batch alone: right for this model with SGD only."""
    user = rebuild(rows, key, support, support_limit)

    def step(s, block):
        (position, rating), size = (field[s] for field in query[0]), query[1][s]
        error = jnp.where(jnp.arange(BATCH) < size, (block[position] * user).sum(-1) - rating, 0)
        return block.at[position].add(-U_RATE * 2 / jnp.maximum(size, 1) * error[:, None] * user)

    return jax.lax.fori_loop(0, query_limit, step, rows) - rows


def fedrecon(people, mode, threads):
    table = fs.Table(rows=ITEMS, fields="item", shape=(SIZE,), init=uniform)
    model = fs.Model(
        lambda key: {"user": uniform(key, (SIZE,))}, squares, {"item": table}, local="user"
    )
    method = fs.recipes.fedrecon(
        model,
        optax.sgd(U_RATE),
        fs.Work(MOST_STEPS, 1, BATCH),
        reconstruction=optax.sgd(R_RATE),
        recover=fs.Work(MOST_STEPS, PASSES, BATCH),
    )
    return fs.simulate(method, people, sampler=fs.sampling.uniform(K), engine=mode, threads=threads)


def evaluation(people, run):
    """ReconEval of a tenth of the users."""
    judge = Personal(people.subset(np.arange(USERS // 8)), run.algorithm.client.adapt)
    params = run.params(judge.ids())

    def rounds(count):
        for _ in range(count):
            judge(params)

    return rounds


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40, help="at a turn (default: 40)")
    options = parser.parse_args()
    people = raters()
    print(
        f"{len(people)} users, median {np.median(people.counts):.0f} ratings, at most"
        f" {people.counts.max()}"
    )
    contestants = {
        "bare, vmap": loop(Bare(people, "vmap", by_gradient)),
        "bare, one after the other": loop(Bare(people, "map", by_gradient)),
        "bare, vmap, rows by hand": loop(Bare(people, "vmap", by_hand)),
        "bare, one after the other, by hand": loop(Bare(people, "map", by_hand)),
        "fedslice, auto": engine(fedrecon(people, "auto", None)),
        "fedslice, vmap": engine(fedrecon(people, "vmap", None)),
        "fedslice, map, 1 thread": engine(fedrecon(people, "map", 1)),
        "fedslice, map, 2 threads": engine(fedrecon(people, "map", 2)),
        f"ReconEval, {USERS // 8} users": evaluation(people, fedrecon(people, "auto", None)),
    }
    found = alternate(contestants, options.blocks, options.rounds)
    base = found["bare, one after the other"]
    print(f"{'':<38}{'ms':>8}{'/ bare map':>12}{'500 rounds, s':>15}")
    for name, value in found.items():
        print(f"{name:<38}{value:>8.1f}{value / base:>12.2f}{value / 2:>15.1f}")
