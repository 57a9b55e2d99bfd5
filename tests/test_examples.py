"""The examples run, and pages that show what there is show what there is."""

import ast
import inspect
import re
import runpy
import shlex
from pathlib import Path

import numpy as np
import pytest
from kinds import few
from pages import PAGES, ROOT, shell_lines
from sketches import sketched

import fedslice as fs
from fedslice.cli import example
from fedslice.cli.example import clicks
from fedslice.cli.main import main
from fedslice.cli.workloads import TASKS


@pytest.mark.parametrize("name", few(["hot_and_cold", "own_model"], "hot_and_cold"))
def test_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{name}.py"))
    assert "loss" in capsys.readouterr().out


def test_the_example_log_has_something_to_learn() -> None:
    """Users' favourite categories are clicked on more often: rates by user and category spread
    beyond chance."""
    log = clicks()
    _, group, size = np.unique(
        np.char.add(log["user"], log["category"]), return_inverse=True, return_counts=True
    )
    rate, mean = np.bincount(group, log["clicked"]) / size, log["clicked"].mean()
    chosen = size >= 5
    chance = np.mean(mean * (1 - mean) / size[chosen])  # variance if all had the same rate
    assert rate[chosen].var() > (1 + 5 * np.sqrt(2 / chosen.sum())) * chance


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_on_pages_is_code(page: Path) -> None:
    """Fences come in pairs, and what stands in those of Python is Python."""
    lines = page.read_text().split("\n")
    fences = [line for line in lines if line.startswith("```")]
    assert all(line != "```" for line in fences[::2])
    assert all(line == "```" for line in fences[1::2])
    assert len(fences) % 2 == 0
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(code)
    assert not [line for line in lines if line.startswith("    ") and line.endswith("\\\\")]


def test_the_page_on_own_models_runs() -> None:
    page = (ROOT / "docs" / "how-to" / "your-own-model.md").read_text()
    code, flax = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    rng = np.random.default_rng(0)
    user = rng.integers(25, size=200)
    given = {
        "user": user,
        "item": rng.integers(300, size=200),
        "history": rng.integers(-1, 300, size=(200, 4)),
    }
    scope: dict[str, object] = {**given, "label": rng.integers(2, size=200).astype(np.float32)}
    exec(compile(code.replace("train(100)", "train(2)"), "page", "exec"), scope)
    assert scope["run"].round == 2  # type: ignore[attr-defined]
    exec(compile(flax, "page", "exec"), scope)


@pytest.mark.every
def test_the_page_on_comparison_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "how-to" / "compare.md").read_text()
    by_heat, uneven = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    study, devices = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    exec(compile(by_heat, "page", "exec"), {})
    assert "'cold'" in capsys.readouterr().out
    scope: dict[str, object] = {}
    exec(compile(uneven, "page", "exec"), scope)
    times = scope["times"]
    assert times[:20].mean() < times[-20:].mean() / 4  # type: ignore[index]
    sketched(monkeypatch)
    (tmp_path / "study.toml").write_text(study)
    (tmp_path / "phones.toml").write_text(devices)
    few = ["--scale", "0.02", "--rounds", "2", "--eval-every", "1", "--seeds", "1", "--set"]
    more = ["cohort=5", "--devices", str(tmp_path / "phones.toml"), "--out", str(tmp_path / "s")]
    assert main(["study", str(tmp_path / "study.toml"), *few, *more]) == 0
    assert len(list((tmp_path / "s" / "cells").glob("*/*"))) == 3 + 6 + 3


def test_the_task_of_the_page_on_tasks_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A module with a ``WORKLOAD`` is all that a task is."""
    page = (ROOT / "docs" / "how-to" / "add-a-task.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    scope: dict[str, object] = {}
    exec(compile(code, "page", "exec"), scope)
    monkeypatch.setitem(TASKS, "coin-flips", scope["WORKLOAD"])
    out = str(tmp_path / "run")
    words = ["run", "coin-flips", "--rounds", "4", "--option", "flips=9", "--out", out]
    assert main(words) == 0


def test_the_page_on_algorithms_shows_what_there_is() -> None:
    """Its code is that of FedExP, but for types and docstrings."""
    page = (ROOT / "docs" / "how-to" / "add-an-algorithm.md").read_text()
    stage, recipe, line = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    source = inspect.getsource(inspect.getmodule(fs.recipes.fedexp))
    for shown in (stage, recipe):
        assert bare(shown) in {bare(ast.unparse(node)) for node in ast.parse(source).body}
    assert line in (ROOT / "src" / "fedslice" / "recipes" / "__init__.py").read_text()


def bare(code: str) -> str:
    """A function without annotations, docstring and checks of its arguments."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for each in (*node.args.args, *node.args.kwonlyargs):
                each.annotation = None
            node.body = [
                line
                for line in node.body
                if not isinstance(line, ast.If)
                and not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ]
    return ast.unparse(tree)


@pytest.mark.every
def test_the_page_on_own_data_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its four commands and its program, on a smaller log."""
    monkeypatch.setattr(example, "ROWS", 4_000)
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "how-to" / "your-own-data.md"
    lines = shell_lines(page)
    assert [line.split()[1] for line in lines] == ["example", "run", "evaluate", "predict"]
    for line in lines:
        words = shlex.split(line)[1:]
        short = ["--rounds", "20", "--eval-every", "20"] if words[0] == "run" else []
        assert main([*words, *short]) == 0, f"{line}\n{capsys.readouterr().err}"
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 4_001
    code = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)[0]
    exec(compile(code.replace("lists=", "rounds=20, lists="), page.name, "exec"), {})
    assert "'auc': 0." in capsys.readouterr().out
