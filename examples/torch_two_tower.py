"""A PyTorch module, trained with FedSubAvg: its embeddings are tables, its towers dense."""

import numpy as np
import optax
import torch
from torch import nn

import fedslice as fs

rng = np.random.default_rng(0)
user, item = np.sort(rng.integers(300, size=20_000)), (5_000 * rng.random(20_000) ** 3).astype(int)
taste = rng.normal(size=(300, 4)), rng.normal(size=(5_000, 4))
label = ((taste[0][user] * taste[1][item]).sum(1) > rng.normal(size=20_000)).astype(np.float32)


class TwoTower(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(300, width), nn.Embedding(5_000, width)
        self.towers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return (self.towers[0](self.user(user)) * self.towers[1](self.item(item))).sum(-1)


def loss(net: TwoTower, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logit = net(batch["user"], batch["item"])
    return nn.functional.binary_cross_entropy_with_logits(logit, batch["label"], reduction="none")


torch.manual_seed(0)
net = TwoTower()
people = fs.Population.from_arrays(user, user=user, item=item, label=label)
train, test = people.split(examples=0.1, seed=0)
model = fs.torch.model(net, loss, train)
work, heat = fs.Work(epochs=1, batch=10), train.heat(model)
method = fs.recipes.fedsubavg(model, optax.sgd(0.1), work, heat=heat, server=optax.sgd(0.5))
run = fs.simulate(method, train, sampler=fs.sampling.uniform(30), seed=0)
print("before:", fs.evaluate(run, test))
run.train(100)
print("after: ", fs.evaluate(run, test))
fs.torch.load(net, run)  # the module, trained
