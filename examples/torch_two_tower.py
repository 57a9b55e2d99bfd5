"""A PyTorch module, trained with FedSubAvg: its embeddings are tables, its towers dense."""

import numpy as np
import optax
import torch

import fedslice as fs

rng = np.random.default_rng(0)
user, item = rng.integers(300, size=20_000), (2_000 * rng.random(20_000) ** 3).astype(np.int64)
label = (np.sin(user) * np.cos(item) > 0.3 * rng.normal(size=20_000)).astype(np.float32)
people = fs.Population.from_arrays(user, user=user, item=item, label=label)


class TwoTower(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = torch.nn.Embedding(300, 16), torch.nn.Embedding(2_000, 16)
        self.left, self.right = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)

    def forward(self, user: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        return (self.left(self.user(user)) * self.right(self.item(item))).sum(-1)


def loss(net: TwoTower, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    one_each = torch.nn.BCEWithLogitsLoss(reduction="none")
    return one_each(net(batch["user"], batch["item"]), batch["label"])


torch.manual_seed(0)
net = TwoTower()
model = fs.torch.model(net, loss, people)
method = fs.recipes.fedsubavg(model, optax.sgd(0.1), fs.Work(epochs=2), heat=people.heat(model))
run = fs.simulate(method, people, sampler=fs.sampling.uniform(30), seed=0)
print(run.train(300), "|", fs.evaluate(run, people))
fs.torch.load(net, run)  # the module, trained
