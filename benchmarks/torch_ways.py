"""What a PyTorch module costs: a two-tower model written in JAX, the same converted from torch, and
torch itself.

Two ways were open for modules of torch.  One is conversion, once, into JAX: the round is then the
compiled one.  The other is a client part in torch (``torch.func``) behind the same protocol.  For
that one the figure is a lower bound: the clients' local steps alone, on ready-made batches of
positions, with the rows of each client stacked, without planning, without taking rows out of the
tables and putting them back, without the server.

    make bench-torch
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import nn
from torch.func import functional_call, grad, vmap

import fedslice as fs
from fedslice.types import Array, Batch, Params

CLIENTS, ITEMS, WIDTH, EXAMPLES = 1_000, 20_000, 16, 50_000
COHORT, STEPS, BATCH, ROUNDS, RATE = 50, 10, 10, 50, 0.1


class TwoTower(nn.Module):
    def __init__(self, users: int = CLIENTS, items: int = ITEMS) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(users, WIDTH), nn.Embedding(items, WIDTH)
        self.left, self.right = (
            nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(2)
        )

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return (self.left(self.user(user)) * self.right(self.item(item))).sum(-1)


def torch_loss(net: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logit = net(batch["user"], batch["item"])
    return nn.functional.binary_cross_entropy_with_logits(logit, batch["label"], reduction="none")


def twin(net: TwoTower) -> fs.Model:
    """The same in JAX, from the same weights."""
    first = {name: np.array(p.detach().numpy()) for name, p in net.named_parameters()}
    rows = {name: first.pop(f"{name}.weight") for name in ("user", "item")}
    tables = {name: fs.Table(len(x), (name,), (WIDTH,), values=x) for name, x in rows.items()}

    def tower(params: Params, side: str, x: Array) -> Array:
        x = jax.nn.relu(x @ params[f"{side}.0.weight"].T + params[f"{side}.0.bias"])
        return x @ params[f"{side}.2.weight"].T + params[f"{side}.2.bias"]

    def loss(params: Params, batch: Batch) -> Array:
        left = tower(params, "left", params["user"][batch["user"]])
        right = tower(params, "right", params["item"][batch["item"]])
        logit = jnp.sum(left * right, -1)
        return jax.nn.softplus(logit) - batch["label"] * logit

    return fs.Model(lambda key: {n: jnp.asarray(x) for n, x in first.items()}, loss, tables)


def simulated(model: fs.Model, people: fs.Population) -> tuple[float, float]:
    """Milliseconds a round, and the loss at the end."""
    work, heat = fs.Work(steps=STEPS, batch=BATCH), people.heat(model)
    method = fs.recipes.fedsubavg(model, optax.sgd(RATE), work, heat=heat)
    run = fs.simulate(method, people, sampler=fs.sampling.uniform(COHORT), seed=0)
    run.train(20, progress=False)
    return timed(lambda: run.train(ROUNDS, progress=False)), fs.evaluate(run, people).pooled["loss"]


def timed(act: Callable[[], Any], times: int = ROUNDS) -> float:
    start = time.perf_counter()
    act()
    return 1000 * (time.perf_counter() - start) / times


def in_torch(vectorised: bool) -> float:
    """Milliseconds for the local steps of a cohort, each client with rows of its own."""
    rows, small = 64, TwoTower(1, 64)
    stacked = {
        name: p.detach().expand(COHORT, *p.shape).clone() for name, p in small.named_parameters()
    }
    data = {
        "user": torch.zeros(COHORT, STEPS, BATCH, dtype=torch.int64),
        "item": torch.randint(rows, (COHORT, STEPS, BATCH)),
        "label": torch.randint(2, (COHORT, STEPS, BATCH)).float(),
    }

    def loss(params: Any, batch: Any) -> torch.Tensor:
        return torch_loss(lambda *given: functional_call(small, params, given), batch).mean()

    def trained(params: Any, batches: Any) -> Any:
        for step in range(STEPS):
            slope = grad(loss)(params, {name: x[step] for name, x in batches.items()})
            params = {name: x - RATE * slope[name] for name, x in params.items()}
        return params

    def round() -> None:
        if vectorised:
            vmap(trained)(stacked, data)
            return
        for client in range(COHORT):
            own = {name: x[client] for name, x in stacked.items()}
            trained(own, {name: x[client] for name, x in data.items()})

    round()
    return timed(lambda: [round() for _ in range(3)], 3)


def main() -> None:
    torch.set_num_threads(1)  # for arrays this small it is the quicker way
    rng = np.random.default_rng(0)
    user = np.sort(rng.integers(CLIENTS, size=EXAMPLES))
    item = (ITEMS * rng.random(EXAMPLES) ** 3).astype(np.int64)
    label = rng.integers(2, size=EXAMPLES).astype(np.float32)
    people = fs.Population.from_arrays(user, user=user, item=item, label=label)
    torch.manual_seed(0)
    net = TwoTower()
    start = time.perf_counter()
    converted = fs.torch.model(net, torch_loss, people)
    print(f"conversion, once: {time.perf_counter() - start:.1f} s")
    for name, model in {"written in JAX": twin(net), "converted from torch": converted}.items():
        figures = [simulated(model, people) for _ in range(3)]
        best = min(each for each, _ in figures)
        print(f"{name}: {best:.2f} ms a round, loss {figures[0][1]:.6f}")
    for name, vectorised in {"client by client": False, "vectorised": True}.items():
        least = min(in_torch(vectorised) for _ in range(3))
        print(f"torch.func, {name}, local steps alone: {least:.1f} ms a round")


if __name__ == "__main__":
    main()
