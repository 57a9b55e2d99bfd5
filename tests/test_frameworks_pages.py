"""The pages on frameworks and on export run: what needs PyTorch where it is installed."""

import re
from pathlib import Path

import numpy as np
import pytest

import fedslice as fs

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
