"""The state dict fits torch modules that compute what we do; so do the Parquet files by NumPy."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.formats.own_models import CASES, Case, case
from pyarrow import parquet

from fedslice.cli.export import Exported, Rows
from fedslice.cli.formats.files import export
from fedslice.data.features import Features
from fedslice.errors import InputError


def by_numpy(file: Path, given: Case) -> np.ndarray:
    """A linear model from its Parquet files alone."""
    table = parquet.read_table(file)
    features = json.loads(table.schema.metadata[b"features"])
    weights = np.zeros((features["rows"] + 1, *given.exported.tables["weight"].values.shape[1:]))
    weights[table["row"].to_numpy()] = np.array(table["weight"].to_pylist())
    leaves = {
        leaf["leaf"]: np.reshape(leaf["values"], leaf["shape"])
        for leaf in parquet.read_table(file.with_name("m.dense.parquet")).to_pylist()
    }
    score = weights[given.inputs["features"]].sum(1) + leaves["bias"]
    if "slope" in leaves:
        score = score + given.inputs["numbers"] @ leaves["slope"]
    label = features["label"]
    if label["kind"] == "number":
        return np.asarray(label["mean"] + label["spread"] * score)
    if label["kind"] == "binary":
        return np.asarray(1 / (1 + np.exp(-score)))
    return np.asarray(np.exp(score) / np.exp(score).sum(1, keepdims=True))


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("lr")])
def test_parquet_files_alone_predict(name: str, tmp_path: Path) -> None:
    given = case(name)
    export(given.exported, tmp_path / "m.parquet")
    found = by_numpy(tmp_path / "m.parquet", given)
    np.testing.assert_allclose(found, given.expected, rtol=1e-5, atol=1e-6)


def test_the_preprocessing_goes_along(tmp_path: Path) -> None:
    given = case("fm")
    names = [file.name for file in export(given.exported, tmp_path / "m.csv")]
    assert names == ["m-weight.csv", "m-factor.csv", "m.dense.csv", "m.json"]
    beside = json.loads((tmp_path / "m.json").read_text())
    export(given.exported, tmp_path / "m.npz")
    inside = json.loads(str(np.load(tmp_path / "m.npz")["features"]))
    for about in (beside["features"], inside):
        assert Features.from_json(about) == given.features


def test_without_torch_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(InputError, match=r"a \.pt file needs PyTorch: pip install"):
        export(case("lr").exported, tmp_path / "m.pt")


# -- with torch ------------------------------------------------------------------------------------


def module_of(features: Features, state: dict[str, Any]) -> Any:
    """The four models as a torch user would write them; parameters have the names of the file."""
    import torch
    from torch import nn

    def layers(prefix: str) -> Any:
        many = sum(name.startswith(f"{prefix}.") for name in state) // 2
        shapes = [state[f"{prefix}.{place}.weight"].shape for place in range(many)]
        return nn.ModuleList(nn.Linear(wide, narrow) for narrow, wide in shapes)

    class Own(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            for name in ("weight", "bias", "slope", "factor", "number_factor", "embedding"):
                if name in state:
                    setattr(self, name, nn.Parameter(torch.zeros(state[name].shape)))
            if "tower.0.weight" in state:
                self.tower = layers("tower")
                self.attention = nn.ModuleList([layers("attention.0")])

        def rows(self, name: str, ids: Any) -> Any:
            table = getattr(self, name)
            return table[torch.where(ids < 0, len(table) - 1, ids)]

        def forward(self, ids: Any, x: Any, user: Any) -> Any:
            score = self.rows("weight", ids).sum(1) + self.bias
            if hasattr(self, "slope"):
                score = score + x @ self.slope
            if user:
                own = self.rows("factor", ids).sum(1)
                return score + user["user_bias"] + own @ user["user"]
            if hasattr(self, "factor"):
                rows = self.rows("factor", ids)
                total, squares = rows.sum(1), rows.square().sum(1)
                if hasattr(self, "number_factor"):
                    total = total + x @ self.number_factor
                    squares = squares + x.square() @ self.number_factor.square()
                return score + (total.square() - squares).sum(1) / 2
            if hasattr(self, "tower"):
                deep = self.deep(ids, x)
                return score + (deep if deep.shape[1] > 1 else deep[:, 0])
            return score

        def deep(self, ids: Any, x: Any) -> Any:
            rows, parts = self.rows("embedding", ids), []
            for column in features.ids:
                some = rows[:, column.place : column.place + column.width]
                if column.shares:
                    real = ids[:, column.place : column.place + column.width] >= 0
                    parts.append(self.attend(rows[:, :1], some, real))
                else:
                    parts.append(some.sum(1))
            z = torch.cat([*parts, *([] if x is None else [x])], 1)
            for layer in self.tower[:-1]:
                z = layer(z).relu()
            return self.tower[-1](z)

        def attend(self, target: Any, history: Any, real: Any) -> Any:
            about = target.expand_as(history)
            four = torch.cat([about, history, about - history, about * history], -1)
            first, second = self.attention[0]
            relevance = second(first(four).sigmoid())[..., 0].masked_fill(~real, -1e30)
            return (relevance.softmax(1) * real)[..., None].mul(history).sum(1)

    return Own()


@pytest.mark.parametrize("name", CASES)
def test_the_state_dict_predicts_as_we_do(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is heavy: make test-torch has it")
    given = case(name)
    written = export(given.exported, tmp_path / "m.pt")
    assert [file.name for file in written] == ["m.pt", "m.json"]
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    features = Features.from_json(json.loads((tmp_path / "m.json").read_text())["features"])
    module = module_of(features, state)
    module.load_state_dict(state)
    inputs = {key: torch.as_tensor(x) for key, x in given.inputs.items()}
    user = {key: torch.as_tensor(x) for key, x in given.user.items()}
    with torch.no_grad():
        score = module(inputs["features"], inputs.get("numbers"), user)
    label = features.label
    if label.kind == "number":
        found = label.mean + label.spread * score
    else:
        found = score.sigmoid() if label.kind == "binary" else score.softmax(1)
    np.testing.assert_allclose(found.numpy(), given.expected, rtol=1e-5, atol=1e-6)


def test_other_models_have_their_leaves_and_ids(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is heavy: make test-torch has it")
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    rows = Rows(np.array([4, 7, 9]), ["a", "b", "c"], np.ones(3, np.int64), values)
    model = Exported({"tower/0/weight": values}, {"item": rows})
    export(model, tmp_path / "m.pt")
    state = torch.load(tmp_path / "m.pt", weights_only=True)
    assert state["item.ids"].tolist() == [4, 7, 9]
    np.testing.assert_array_equal(state["item"], values)
    np.testing.assert_array_equal(state["tower.0.weight"], values)
    assert json.loads((tmp_path / "m.json").read_text())["names"] == {"item": ["a", "b", "c"]}
