"""A model of one's own: an embedding for items and histories, a dense head, on data from arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedslice as fs

CLIENTS, ITEMS, DIM, EXAMPLES = 200, 5_000, 8, 20_000

rng = np.random.default_rng(0)
user = rng.integers(CLIENTS, size=EXAMPLES)
item = (ITEMS * rng.random(EXAMPLES) ** 3).astype(np.int32)  # few hot items, many cold ones
history = np.where(
    rng.random((EXAMPLES, 5)) < 0.7, (ITEMS * rng.random((EXAMPLES, 5)) ** 3).astype(np.int32), -1
)
taste = rng.normal(size=ITEMS)
label = (taste[item] + rng.normal(size=EXAMPLES) > 0).astype(np.float32)


def init(key: jax.Array) -> fs.types.Params:
    return {"head": 0.3 * jax.random.normal(key, (2 * DIM,)), "bias": jnp.zeros(())}


def loss(params: fs.types.Params, batch: fs.types.Batch) -> jax.Array:
    seen = fs.lookup(params["item"], batch["history"]).mean(
        axis=1
    )  # -1 is padding and looks up zeros
    logit = (
        jnp.concatenate([params["item"][batch["item"]], seen], -1) @ params["head"] + params["bias"]
    )
    return jax.nn.softplus(logit) - batch["label"] * logit


table = fs.Table(
    rows=ITEMS, shape=(DIM,), fields=("item", "history"), init=jax.nn.initializers.normal(0.3)
)
model = fs.Model(init, loss, tables={"item": table})
people = fs.Population.from_arrays(user, item=item, history=history, label=label)
train, test = people.split(clients=0.1, seed=0)  # held-out clients

method = fs.recipes.fedsubavg(
    model,
    optax.sgd(0.1),
    fs.Work(epochs=1, batch=10),
    heat=train.heat(model),
    server=optax.sgd(0.5),
)
run = fs.simulate(method, train, sampler=fs.sampling.uniform(20), seed=0)
print("before:", fs.evaluate(run, test))
run.train(300)
scores = fs.evaluate(run, test)
print(
    "after: ",
    scores,
    "| over clients:",
    {name: round(x, 3) for name, x in scores.spread("loss").items()},
)
