"""The pages on frameworks and on export run: what needs PyTorch where it is installed."""

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedslice as fs
from fedslice.cli.example import log
from fedslice.cli.main import main

ROOT = Path(__file__).parent.parent


def blocks(name: str) -> list[str]:
    page = (ROOT / "docs" / "how-to" / f"{name}.md").read_text()
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def given() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "user": np.sort(rng.integers(200, size=600)),
        "item": rng.integers(5_000, size=600),
        "label": rng.integers(2, size=600).astype(np.float32),
    }


def test_the_blocks_of_flax_and_equinox_run() -> None:
    data = given()
    people = fs.Population.from_arrays(data["user"], **data)
    scope: dict[str, object] = {"fs": fs, "people": people}
    _, flax, equinox = blocks("frameworks")
    for code, name in ((flax, "item.embedding"), (equinox, "item.weight")):
        exec(compile(code, "frameworks.md", "exec"), scope)
        model = scope["model"]
        assert isinstance(model, fs.Model)
        assert model.tables[name].fields == ("item",)
        assert len(model.tables) == 2


def test_the_block_of_torch_runs() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is heavy: make test-torch has it")
    scope: dict[str, object] = dict(given())
    exec(compile(blocks("frameworks")[0].replace("train(100)", "train(2)"), "page", "exec"), scope)
    net = scope["net"]
    assert isinstance(net, torch.nn.Module)
    trained = scope["run"].params()["left.weight"]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(net.left.weight.detach(), trained)


LOG = ["--client", "user", "--label", "clicked", "--rounds", "3", "--eval-every", "3"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A click log of 500 rows, a factorisation machine and a logistic regression trained on it, and
    what they predict."""
    folder = tmp_path_factory.mktemp("export")
    some = {name: column[:500] for name, column in log(2_000).items()}
    with (folder / "log.csv").open("w", newline="") as sink:
        writer = csv.writer(sink)
        writer.writerow(some)
        writer.writerows(zip(*(column.tolist() for column in some.values()), strict=True))
    file = str(folder / "log.csv")
    more = {"fm": ["--lists", "tags"], "lr": ["--features", "item,category"]}
    for name, options in more.items():
        words = ["--data", file, *LOG, *options, "--out", str(folder / name)]
        assert main(["run", name, *words]) == 0
        out = str(folder / f"{name}.csv")
        assert main(["predict", str(folder / name), file, "-o", out]) == 0
    for name, ending in (("fm", "clicks.onnx"), ("lr", "weights.parquet")):
        assert main(["export", str(folder / name), str(folder / ending)]) == 0
    return folder


def told(folder: Path, name: str) -> np.ndarray:
    """The probabilities of ``fedslice predict``."""
    return np.array([float(row["probability"]) for row in rows_of(folder / f"{name}.csv")])


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as source:
        return list(csv.DictReader(source))


def ran(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    scope: dict[str, Any] = {}
    exec(compile(code, "export.md", "exec"), scope)
    return scope


@pytest.mark.every
def test_onnx_predicts_without_fedslice(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = ran(blocks("export")[0], runs, monkeypatch)
    kinds = {column["kind"] for column in scope["features"]["columns"]}
    assert {"category", "buckets", "hour"} <= kinds
    found, expected = scope["predict"](rows_of(runs / "log.csv")), told(runs, "fm")
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.ptp(expected) > 0.01


def test_parquet_predicts_without_fedslice(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scope = ran(blocks("export")[2], runs, monkeypatch)
    found = [
        scope["chance"]({name: row[name] for name in ("item", "category")})
        for row in rows_of(runs / "log.csv")
    ]
    np.testing.assert_allclose(found, told(runs, "lr"), atol=1e-5)


def test_torch_predicts_without_fedslice(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is heavy: make test-torch has it")
    assert main(["export", str(runs / "fm"), str(runs / "clicks.pt")]) == 0
    net = ran(blocks("export")[1], runs, monkeypatch)["net"]
    encode = ran(blocks("export")[0], runs, monkeypatch)["encode"]
    ids = np.stack([encode(row)[0] for row in rows_of(runs / "log.csv")])
    with torch.no_grad():
        found = net(torch.as_tensor(ids)).sigmoid().numpy()
    np.testing.assert_allclose(found, told(runs, "fm"), atol=1e-5)
