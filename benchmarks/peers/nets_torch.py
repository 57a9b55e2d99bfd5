"""The four models as PyTorch modules: for the plain loop, Flower, pfl and fluke.

``forward(x)`` takes the fields side by side, int64 [B, fields].  ``net.read(arrays)`` sets the
parameters from the arrays that `prepare.py` writes, ``net.arrays()`` gives them back.  With
``sparse`` the gradients of tables are sparse."""

from itertools import pairwise

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def build(job, sparse=False):
    """The module with the first model in it, and its loss of (scores, labels)."""
    kinds = {"lr": Logistic, "lstm": Lstm, "din": Din, "table": Table}
    net = kinds[job.kind](job.sizes, sparse)
    if job.kind != "table":  # which is zeros already
        net.read(job.first)
    return net, nn.MSELoss() if job.kind == "table" else nn.BCEWithLogitsLoss()


def put(parameter, array):
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.asarray(array)).reshape(parameter.shape))


def get(parameter):
    return parameter.detach().numpy().copy()


class Logistic(nn.Module):
    def __init__(self, sizes, sparse):
        super().__init__()
        self.weight = nn.EmbeddingBag(sizes["rows"], 1, mode="sum", sparse=sparse)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return self.weight(x)[:, 0] + self.bias

    def read(self, arrays):
        put(self.weight.weight, arrays["weight"])
        put(self.bias, arrays["bias"])

    def arrays(self):
        return {"weight": get(self.weight.weight)[:, 0], "bias": get(self.bias)}


class Table(nn.Module):
    def __init__(self, sizes, sparse):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(
            torch.zeros(sizes["rows"], sizes["width"]), freeze=False, sparse=sparse
        )

    def forward(self, x):
        return self.table(x[:, 0]).sum(-1)

    def arrays(self):
        return {"table": get(self.table.weight)}


class Lstm(nn.Module):
    """nn.LSTM has two biases that are only ever added: one of them stays zero, or steps would be
    twice as long."""

    def __init__(self, sizes, sparse):
        super().__init__()
        self.embedding = nn.Embedding(sizes["rows"], sizes["width"], sparse=sparse)
        self.lstm = nn.LSTM(sizes["width"], sizes["hidden"], 2, batch_first=True)
        self.head = nn.Linear(sizes["hidden"], 1)
        for number in (0, 1):
            fixed = getattr(self.lstm, f"bias_hh_l{number}")
            nn.init.zeros_(fixed)
            fixed.requires_grad_(False)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0][:, -1])[:, 0]

    NAMES = (("weight_ih", "input"), ("weight_hh", "hidden"), ("bias_ih", "bias"))

    def read(self, arrays):
        put(self.embedding.weight, arrays["embedding"])
        put(self.head.weight, arrays["weight"])
        put(self.head.bias, arrays["bias"])
        for number in (0, 1):
            for theirs, ours in self.NAMES:
                into, keep, out, new = np.split(arrays[f"lstm.{number}.{ours}"].T, 4)
                ordered = np.concatenate([into, keep, new, out])  # i, f, g, o in PyTorch
                put(getattr(self.lstm, f"{theirs}_l{number}"), ordered)

    def arrays(self):
        found = {
            "embedding": get(self.embedding.weight),
            "weight": get(self.head.weight)[0],
            "bias": get(self.head.bias)[0],
        }
        for number in (0, 1):
            for theirs, ours in self.NAMES:
                into, keep, new, out = np.split(get(getattr(self.lstm, f"{theirs}_l{number}")), 4)
                found[f"lstm.{number}.{ours}"] = np.concatenate([into, keep, out, new]).T
        return found


class Din(nn.Module):
    def __init__(self, sizes, sparse):
        super().__init__()
        width = sizes["width"]
        self.user = nn.Embedding(sizes["users"], width, sparse=sparse)
        self.item = nn.Embedding(sizes["items"], width, sparse=sparse)
        self.attention = dense(4 * width, 80, 40, 1)
        self.scale = nn.Parameter(torch.ones(5 * width))
        self.shift = nn.Parameter(torch.zeros(5 * width))
        self.tower = dense(5 * width, 200, 80, 2)
        self.slopes = nn.ParameterList([torch.zeros(200), torch.zeros(80)])

    def forward(self, x):
        real = x[:, 2:] >= 0
        target = self.item(x[:, 1])
        history = self.item(x[:, 2:].clamp(min=0)) * real[..., None]
        wide = target[:, None].expand_as(history)
        a = torch.cat([wide, history, wide - history, wide * history], -1)
        a = torch.sigmoid(self.attention[1](torch.sigmoid(self.attention[0](a))))
        score = self.attention[2](a)[..., 0].masked_fill(~real, -1e30)
        weight = F.softmax(score, -1) * real
        interest, total = (weight[..., None] * history).sum(1), history.sum(1)
        z = torch.cat([self.user(x[:, 0]), target, total, target * total, interest], -1)
        z = self.scale * z + self.shift
        for layer, slope in zip(self.tower[:2], self.slopes, strict=True):
            z = dice(layer(z), slope)
        two = self.tower[2](z)
        return two[:, 1] - two[:, 0]

    def parts(self):
        """Every parameter with its name in the files, and whether it is turned round there."""
        yield "user", self.user.weight, False
        yield "item", self.item.weight, False
        yield "input.scale", self.scale, False
        yield "input.shift", self.shift, False
        for name, layers in (("attention", self.attention), ("tower", self.tower)):
            for number, layer in enumerate(layers):
                yield f"{name}.{number}.weight", layer.weight, True
                yield f"{name}.{number}.bias", layer.bias, False
        for number, slope in enumerate(self.slopes):
            yield f"tower.{number}.slope", slope, False

    def read(self, arrays):
        for name, parameter, turned in self.parts():
            put(parameter, arrays[name].T if turned else arrays[name])

    def arrays(self):
        return {name: get(p).T if turned else get(p) for name, p, turned in self.parts()}


def dense(*sizes):
    return nn.ModuleList([nn.Linear(a, b) for a, b in pairwise(sizes)])


def dice(x, slope):
    centred = x - x.mean(-1, keepdim=True)
    share = torch.sigmoid(centred * torch.rsqrt((centred**2).mean(-1, keepdim=True) + 1e-8))
    return x * (share + slope * (1 - share))
