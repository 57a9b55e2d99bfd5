"""The examples and the README's program run as they stand."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["hot_and_cold", "own_model"])
def test_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert "loss" in capsys.readouterr().out


def test_the_readme_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace("scale=0.25", "scale=0.02").replace("uniform(50)", "uniform(20)"), "README", "exec"), {})
    assert "round 200: 20 clients" in capsys.readouterr().out
    assert (tmp_path / "runs" / "demo" / "checkpoint.safetensors").exists()
