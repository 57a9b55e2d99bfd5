"""The four models in plain JAX, as a user of JAX writes them: for bare JAX, FedJAX and the judge.

Parameters are a flat dictionary by the names that `prepare.py` writes.  ``loss(kind)`` gives the
mean loss of a batch, ``x`` [B, fields] and ``y`` [B]."""

import jax
import jax.numpy as jnp

TABLES = {"lr": ["weight"], "lstm": ["embedding"], "din": ["user", "item"], "table": ["table"]}


def columns(kind):
    """Which columns of ``x`` index each table."""
    everything = slice(None)
    if kind == "din":
        return {"user": slice(0, 1), "item": slice(1, None)}
    return dict.fromkeys(TABLES[kind], everything)


def lr(p, x):
    return p["weight"][x].sum(-1) + p["bias"]


def layer(p, name, inputs):
    def step(carry, z):
        hidden, cell = carry
        z = z + hidden @ p[f"{name}.hidden"]
        size = z.shape[1] // 4
        into, keep, out = jnp.split(jax.nn.sigmoid(z[:, : 3 * size]), 3, axis=1)
        cell = keep * cell + into * jnp.tanh(z[:, 3 * size :])
        hidden = out * jnp.tanh(cell)
        return (hidden, cell), hidden

    zero = jnp.zeros((inputs.shape[1], p[f"{name}.hidden"].shape[0]))
    driven = inputs @ p[f"{name}.input"] + p[f"{name}.bias"]
    return jax.lax.scan(step, (zero, zero), driven)[1]


def lstm(p, x):
    states = layer(p, "lstm.1", layer(p, "lstm.0", p["embedding"][x.T]))
    return states[-1] @ p["weight"] + p["bias"]


def linear(p, name, x):
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def dice(x, slope):
    centred = x - x.mean(-1, keepdims=True)
    share = jax.nn.sigmoid(centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-8))
    return x * (share + slope * (1 - share))


def din(p, x):
    user, item, past = x[:, 0], x[:, 1], x[:, 2:]
    real = past >= 0
    target = p["item"][item]
    history = jnp.where(real[..., None], p["item"][jnp.maximum(past, 0)], 0)
    wide = jnp.broadcast_to(target[:, None], history.shape)
    a = jnp.concatenate([wide, history, wide - history, wide * history], -1)
    a = jax.nn.sigmoid(linear(p, "attention.0", a))
    a = jax.nn.sigmoid(linear(p, "attention.1", a))
    score = jnp.where(real, linear(p, "attention.2", a)[..., 0], -1e30)
    weight = jnp.where(real, jax.nn.softmax(score), 0)
    interest, total = (weight[..., None] * history).sum(1), history.sum(1)
    z = jnp.concatenate([p["user"][user], target, total, target * total, interest], -1)
    z = p["input.scale"] * z + p["input.shift"]
    for number in (0, 1):
        z = dice(linear(p, f"tower.{number}", z), p[f"tower.{number}.slope"])
    two = linear(p, "tower.2", z)
    return two[:, 1] - two[:, 0]


def table(p, x):
    return p["table"][x[:, 0]].sum(-1)


def loss(kind):
    score = {"lr": lr, "lstm": lstm, "din": din, "table": table}[kind]

    def mean(params, x, y):
        z = score(params, x)
        return jnp.mean((z - y) ** 2 if kind == "table" else jax.nn.softplus(z) - y * z)

    return mean


def clipped(grads, most):
    """By the norm of all gradients together; not at all with ``most`` 0."""
    if not most:
        return grads
    norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree_util.tree_leaves(grads)))
    return jax.tree_util.tree_map(lambda leaf: leaf * jnp.minimum(1, most / norm), grads)
