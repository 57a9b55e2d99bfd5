"""Bare loops that do the same work as the engine and nothing else: the baselines of the benchmark.

`Sketch` is FedSubAvg on MovieLens LR written by hand for that one model: NumPy for sampling and
planning, a table in NumPy, one compiled function for the cohort.  No reports, no checks, no padding
that grows, no other algorithm. `central` is SGD on the pooled examples, as many a round."""

import jax
import jax.numpy as jnp
import numpy as np

K, STEPS, BATCH, RATE = 50, 10, 5, 0.1


def loss(weight, bias, x, y):
    z = weight[x].sum(-1) + bias
    return jnp.mean(jax.nn.softplus(z) - y * z)


def train(weight, bias, xs, ys):
    def step(carry, batch):
        value, (gw, gb) = jax.value_and_grad(loss, (0, 1))(*carry, *batch)
        return (carry[0] - RATE * gw, carry[1] - RATE * gb), value

    (w, b), values = jax.lax.scan(step, (weight, bias), (xs, ys))
    return w - weight, b - bias, values.mean()


@jax.jit
def cohort_round(rows, factor, bias, places, xs, ys, share):
    local = rows.at[places].get(mode="fill", fill_value=0)
    dw, db, value = jax.vmap(train, (0, None, 0, 0))(local, bias, xs, ys)
    total = (
        jnp.zeros_like(rows)
        .at[places.reshape(-1)]
        .add((dw * share[:, None]).reshape(-1), mode="drop")
    )
    return rows + factor * total, bias + (db * share).sum(), (value * share).sum()


class Sketch:
    def __init__(self, task, seed=0):
        people = task.train
        self.space = people.spaces(task.model)["weight"]
        self.position, self.label = self.space.positions["features"], people.columns["label"]
        self.counts, self.offsets, self.seed, self.round = people.counts, people.offsets, seed, 0
        heat = people.heat(task.model)
        self.factor = heat.coefficient("weight", self.space.ids, "examples")
        self.table = np.zeros(len(self.space.ids), np.float32)
        self.scratch = np.zeros(len(self.space.ids), np.int32)
        self.bias = jnp.zeros(())
        self.width, self.union = 192, 8192

    def plan(self):
        rng = np.random.default_rng((self.seed, self.round))
        who = np.sort(rng.choice(len(self.counts), K, replace=False, shuffle=False))
        count = self.counts[who]
        pick = (rng.random((K, STEPS * BATCH)) * count[:, None]).astype(np.int64) + self.offsets[
            who
        ][:, None]
        begin = self.space.offsets[who]
        length = self.space.offsets[who + 1] - begin
        start = np.cumsum(length) - length
        key = self.position.take(pick, axis=0) + start.astype(np.int32)[:, None, None]
        seen = np.zeros(length.sum(), bool)
        seen[key.reshape(-1)] = True
        touched = np.flatnonzero(seen)
        first = np.searchsorted(touched, start)
        owner = np.repeat(np.arange(K), np.diff(np.append(first, len(touched))))
        rank = np.arange(len(touched), dtype=np.int32) - first.astype(np.int32)[owner]
        number = np.empty(len(seen), np.int32)
        number[touched] = rank
        slots = self.space.slots[touched + (begin - start)[owner]]
        order = np.arange(len(slots), dtype=np.int32)
        self.scratch[slots] = order
        union = slots[self.scratch[slots] == order]
        self.scratch[union] = order[: len(union)]
        places = np.full((K, self.width), self.union, np.int32)
        places[owner, rank] = self.scratch[slots]
        padded = np.zeros(self.union, np.int32)
        padded[: len(union)] = union
        xs = number[key].reshape(K, STEPS, BATCH, -1)
        ys = self.label.take(pick).reshape(K, STEPS, BATCH)
        return padded, len(union), places, xs, ys, (count / count.sum()).astype(np.float32)

    def step(self):
        union, size, places, xs, ys, share = self.plan()
        rows, self.bias, _ = cohort_round(
            self.table[union], self.factor[union], self.bias, places, xs, ys, share
        )
        self.table[union[:size]] = np.asarray(rows)[:size]
        self.round += 1


@jax.jit
def central_round(weight, bias, xs, ys):
    dw, db, _ = train(weight, bias, xs, ys)
    return weight + dw, bias + db


class Central:
    """CentralSGD in plain JAX on the same number of examples a round."""

    def __init__(self, task, seed=0):
        self.x, self.y = task.train.columns["features"], task.train.columns["label"]
        self.weight, self.bias = jnp.zeros(task.model.tables["weight"].rows), jnp.zeros(())
        self.seed, self.round = seed, 0

    def step(self):
        pick = np.random.default_rng((self.seed, self.round)).integers(
            len(self.y), size=(STEPS, K * BATCH)
        )
        self.weight, self.bias = central_round(
            self.weight, self.bias, self.x.take(pick, axis=0), self.y.take(pick)
        )
        self.weight.block_until_ready()
        self.round += 1
