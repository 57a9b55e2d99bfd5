"""An export predicts as the run does, from the written files alone."""

import csv
import json
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from pyarrow import parquet
from safetensors import safe_open

import fedslice as fs
from fedslice.cli.export import Exported, Rows, model_of
from fedslice.cli.formats.files import export
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.tasks.logistic import logistic
from fedslice.types import Array, Batch, Params

NAMES = np.array(["red", "green", "blue", "never"])
Weights = tuple[dict[str, float], float]


def from_parquet(file: Path) -> Weights:
    table = parquet.read_table(file).to_pydict()
    dense = parquet.read_table(file.with_name("w.dense.parquet")).to_pydict()
    assert dense["leaf"] == ["bias"]
    assert dense["shape"] == [[]]
    return dict(zip(table["name"], table["weight"], strict=True)), dense["values"][0][0]


def from_npz(file: Path) -> Weights:
    arrays = np.load(file)
    return dict(
        zip(arrays["weight.names"].tolist(), arrays["weight"].tolist(), strict=True)
    ), float(arrays["bias"])


def from_safetensors(file: Path) -> Weights:
    with safe_open(file, "numpy") as arrays:
        names = json.loads(arrays.metadata()["weight.names"])
        values = arrays.get_tensor("weight").tolist()
        return dict(zip(names, values, strict=True)), float(arrays.get_tensor("bias"))


def from_csv(file: Path) -> Weights:
    with file.open(newline="", encoding="utf-8") as source:
        weights = {row["name"]: float(row["weight"]) for row in csv.DictReader(source)}
    with file.with_name("w.dense.csv").open(newline="") as source:
        (bias,) = csv.DictReader(source)
    assert (bias["leaf"], bias["place"]) == ("bias", "")
    assert json.loads(file.with_name("w.json").read_text())["features"] is None
    return weights, float(bias["value"])


@pytest.mark.parametrize("read", [from_parquet, from_npz, from_safetensors, from_csv])
def test_the_files_alone_predict_as_the_run(
    read: Callable[[Path], Weights], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 3, (60, 1))
    label = (rng.random(60) < np.array([0.95, 0.8, 0.6])[ids[:, 0]]).astype(np.float32)
    people = Population.from_arrays(
        np.arange(60) // 6, {"features": NAMES}, features=ids, label=label
    )
    run = fs.simulate(
        fs.recipes.fedavg(logistic(4), optax.sgd(0.5), fs.Work(epochs=1, batch=3)),
        people,
        sampler=fs.sampling.full(),
    )
    run.train(5, progress=False)
    written = export(model_of(run), tmp_path / f"w.{read.__name__.removeprefix('from_')}")
    assert sorted(written) == sorted(tmp_path.iterdir())
    weights, bias = read(written[0])
    logits = np.array([weights[NAMES[i]] for i in ids[:, 0]]) + bias
    losses = np.log1p(np.exp(logits)) - label * logits
    assert losses.mean() == pytest.approx(fs.evaluate(run, people).pooled["loss"], rel=1e-5)
    assert abs(bias) > 0.1  # leaving it out would be seen


def test_every_shape_of_row_and_leaf_comes_back_from_parquet(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    tables = {
        name: Rows(
            np.arange(3), [], np.ones(3, np.int64), rng.normal(size=(3, *shape)).astype(np.float32)
        )
        for name, shape in {"flat": (), "wide": (2,), "deep": (2, 4)}.items()
    }
    dense = {
        "layer/0/weight": rng.normal(size=(2, 3)).astype(np.float32),
        "layer/0/count": np.array(7, np.int32),
    }
    written = export(Exported(dense, tables), tmp_path / "m.parquet")
    assert [file.name for file in written] == [
        "m-flat.parquet",
        "m-wide.parquet",
        "m-deep.parquet",
        "m.dense.parquet",
    ]
    for name, rows in tables.items():
        read = parquet.read_table(tmp_path / f"m-{name}.parquet").to_pydict()
        np.testing.assert_array_equal(np.array(read[name], np.float32), rows.values)
    leaves = parquet.read_table(tmp_path / "m.dense.parquet").to_pylist()
    for leaf in leaves:
        np.testing.assert_array_equal(
            np.reshape(leaf["values"], leaf["shape"]), dense[leaf["leaf"]]
        )
    assert len(leaves) == 2


def test_a_model_without_tables_is_one_file(tmp_path: Path) -> None:
    def loss(params: Params, batch: Batch) -> Array:
        return (params["x"]["w"] - batch["y"]) ** 2

    model = fs.Model(lambda key: {"x": {"w": jnp.full((), 2.0)}}, loss)
    run = fs.simulate(
        fs.recipes.fedavg(model, optax.sgd(0.1)),
        Population.from_arrays([0], y=[1.0]),
        sampler=fs.sampling.full(),
    )
    assert export(model_of(run), tmp_path / "m.parquet") == [tmp_path / "m.parquet"]
    assert parquet.read_table(tmp_path / "m.parquet").to_pylist() == [
        {"leaf": "x/w", "shape": [], "values": [2.0]}
    ]
    assert jax.tree.leaves(run.params())[0] == 2.0


def test_every_number_comes_back_from_csv_to_the_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    deep = rng.normal(size=(3, 2, 4)).astype(np.float32)
    wide = rng.normal(size=(2, 3)).astype(np.float32)
    rows = Rows(np.array([0, 4, 9]), ['a,"b"', "c", "ü"], np.array([1, 2, 3]), deep)
    written = export(Exported({"layer/weight": wide}, {"deep": rows}), tmp_path / "m.csv")
    assert [file.name for file in written] == ["m.csv", "m.dense.csv", "m.json"]
    with (tmp_path / "m.csv").open(newline="", encoding="utf-8") as source:
        lines = list(csv.DictReader(source))
    assert [line["name"] for line in lines] == rows.names
    assert [int(line["row"]) for line in lines] == [0, 4, 9]
    for line, values in zip(lines, deep, strict=True):
        for place in np.ndindex(2, 4):
            assert np.float32(line[f"deep.{place[0]}.{place[1]}"]) == values[place]
    with (tmp_path / "m.dense.csv").open(newline="") as source:
        read = {line["place"]: np.float32(line["value"]) for line in csv.DictReader(source)}
    assert read == {f"{i}.{j}": wide[i, j] for i, j in np.ndindex(2, 3)}


def test_unknown_endings_and_models_that_cannot_predict_are_refused(tmp_path: Path) -> None:
    model = Exported({"bias": np.zeros((), np.float32)}, {})
    with pytest.raises(InputError, match=r"m\.xls: give a name ending in \.safetensors, .* or"):
        export(model, tmp_path / "m.xls")
    with pytest.raises(InputError, match="an ONNX file predicts, and this run is not on your own"):
        export(model, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())
