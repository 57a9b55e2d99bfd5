"""Every command of README and docs runs as it stands, page by page and in its order, but on less
data, for four rounds, and of a grid's axis with its ends alone.

In ``make test`` those of README and the tutorial do, and what the other pages say is parsed.
"""

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from apps import in_one_process
from kinds import few
from pages import PAGES, ROOT, programs, shell_lines
from sketches import sketched

import fedslice as fs
from fedslice.cli import attack, example
from fedslice.cli.main import main
from fedslice.cli.parser import parser
from fedslice.cli.published import PAPERS, Quick

# Commands that no test can run as they stand, by how they begin, and why.
ELSEWHERE = {
    "make ": "makes environments; what they run are the tests, the demo and benchmarks of an hour",
    "pip install ": "changes the environment",
    "python benchmarks/": "measures for minutes to hours",
    ". .venv": "is the shell's",
    "source ": "is the shell's",
    "export ": "is the shell's",
    "ray ": "starts and ends a cluster",
    "fedslice run sent140-lstm --synthetic --ray ": "needs a cluster; tests/cluster has one",
    "flower-": "several machines; tests/deploy has them on one",
    "flwr ": "several machines; tests/deploy has them on one",
    "fedslice deploy local --algorithm fedsubavg --set clip=1 --set secure=yes": (
        "ten letters a round, minutes over Flower; tests/cli/test_deploy_privacy.py has it in one"
        " process"
    ),
}
# Over Flower this is what README's does; here the app that was written trains in one process, as do
# all in `make test`: tests/deploy has Flower itself.
WITHOUT_FLOWER = "fedslice deploy local trial"
ALONE = ("tutorial.md",)  # pages that begin in an empty folder; the others go on after README
OTHERS = ("your-own-data.md",)  # pages that tests/test_examples.py runs


COMMANDS = {
    page: [line for line in shell_lines(page) if not line.startswith(tuple(ELSEWHERE))]
    for page in PAGES
    if page.name not in OTHERS and any(line.startswith("fedslice") for line in shell_lines(page))
}
READ_FIRST = "README.md", "tutorial.md"  # in `make test`; what others call has tests of its own
QUICK = [page for page in COMMANDS if page.name in READ_FIRST]


FILES = {  # that pages take for granted
    "items.csv": "item,category\ncup,kitchen\nlamp,home\n",
    "mine.csv": "user,item,category,clicked\nana,cup,kitchen,1\nana,lamp,home,0\n",
    "ml-1m/users.dat": "".join(f"{u}::{'FM'[u % 2]}::25::3::12345\n" for u in range(1, 31)),
    "ml-1m/movies.dat": "".join(f"{m}::Film {m} (1990)::Drama\n" for m in range(1, 13)),
    "ml-1m/ratings.dat": "".join(
        f"{u}::{m}::{1 + u * m % 5}::{978300000 + u + m}\n"
        for u in range(1, 31)
        for m in range(1, 13)
    ),
}


def smaller(words: list[str]) -> list[str]:
    """The same command on less data and for four rounds; of what is said twice the last counts.  An
    axis of a grid keeps its first and its last value: those between are the same work again."""
    words = [re.sub(r"^(\w+=[^,]+),.*(,[^,]+)$", r"\1\2", word) for word in words]
    if words[0] == "deploy":
        return [*words, "--nodes", "2", "--rounds", "1"] if "--nodes" in words else words
    if "--synthetic" in words:
        words = [*words, "--scale", "0.02"]
    if words[0] in ("run", "compare", "study"):
        words = [*words, "--rounds", "4", "--eval-every", "2", "--set", "cohort=10"]
    if words[0] in ("compare", "study"):
        words = [*words, "--seeds", "1"]
    return [*words, "--trials", "100"] if words[:2] == ["privacy", "attack"] else words


@pytest.fixture
def small_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The click log that is written has 3,000 rows."""
    monkeypatch.setattr(example, "ROWS", 3_000)


@pytest.fixture
def small_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cohorts, with and without noise."""
    smaller = {"COHORTS": (10, 50), "NOISES": (1.0,), "PRIVATE": 50, "LATER": 2}
    for name, value in smaller.items():
        monkeypatch.setattr(attack, name, value)


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every paper the last row of its first table for two rounds, on a task that compiles at
    once where that has large networks."""
    for paper, (first, *_) in PAPERS.items():
        one = first._replace(rows=first.rows[-1:], rounds=2, eval_every=2, quick=Quick(2, 0.02, 2))
        light = one._replace(task="movielens-lr") if paper == "fieldguide" else one
        monkeypatch.setitem(PAPERS, paper, (light,))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[tuple[str, bool]]]:
    """The folder that pages share, and the commands that have run in it, over Flower or not: each
    runs once."""
    folder = tmp_path_factory.mktemp("pages")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder, set()


@pytest.mark.parametrize(
    ("page", "over_flower"),
    [
        *(pytest.param(page, False, id=page.stem) for page in QUICK),
        *(
            pytest.param(page, True, id=f"all of {page.stem}", marks=pytest.mark.every)
            for page in COMMANDS
            if page.name not in ALONE
        ),
    ],
)
@pytest.mark.usefixtures("small_log", "small_attack", "small_tables")
def test_commands_run_word_for_word(
    page: Path,
    over_flower: bool,
    shared: tuple[Path, set[tuple[str, bool]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In their order: what a line needs an earlier one has made."""
    folder, done = (tmp_path, set[tuple[str, bool]]()) if page.name in ALONE else shared
    monkeypatch.chdir(folder)
    for line in COMMANDS[page]:
        real = over_flower and line.startswith("fedslice deploy local") and line != WITHOUT_FLOWER
        if (line, real) in done or (real and find_spec("flwr") is None):  # an extra
            continue
        done.add((line, real))
        with monkeypatch.context() as patch:
            if not real:
                in_one_process(patch)
            if line.startswith("fedslice study"):  # `fedslice report` paints
                sketched(patch)
            _run(re.sub("/fast-disk|/home/ana", str(tmp_path), line), folder, capsys)


def _run(line: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A command of fedslice, or one of the few others that pages have."""
    line = line.partition(" | ")[0]  # what only looks at the output is left out
    words = shlex.split(line)
    if words[0] == "fedslice":
        code = main(smaller(words[1:]))
        assert code == 0, f"{line}\n{capsys.readouterr().err}"
    elif words[0] in ("head", "tail"):
        _head_or_tail(words, folder)
    else:
        raise AssertionError(f"{line}: run it here, or say in ELSEWHERE why not")


def _head_or_tail(words: list[str], folder: Path) -> None:
    """``head -n 3 FILE`` and ``tail -n 1000 FILE > OTHER``, as shells do them."""
    count, file, *rest = words[2:]
    lines = (folder / file).read_text().splitlines(keepends=True)
    kept = lines[: int(count)] if words[0] == "head" else lines[-int(count) :]
    if rest[:1] in (["&gt;"], [">"], [">>"]):
        with (folder / rest[1]).open("a" if rest[0] == ">>" else "w") as sink:
            sink.writelines(kept)


def test_every_reason_is_needed() -> None:
    """What is left out is on a page, as is every command of the command line."""
    lines = [line for page in PAGES for line in shell_lines(page)]
    shown = {line.split()[1] for line in lines if line.startswith("fedslice ")}
    assert shown >= set(parser().below) - {"data", "demo", "completion"}


def test_commands_in_the_text_can_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    """What stands between backticks and is a whole command is understood, and so are the commands
    of blocks, whether or not they run here."""
    for page in PAGES:
        for text in re.findall(r"`(fedslice [^`\n]+)`", page.read_text(encoding="utf-8")):
            command = re.split(r" \\?\||[<>]", text.replace('"', "'").rstrip("')\""))[0]
            if re.search(r"\.\.\.|\b[A-Z]+\b|\[|\$\(", command):  # FILE, [NAME]: a form
                continue
            with suppress(SystemExit):
                parser().parse_args(shlex.split(command)[1:])
            said = capsys.readouterr().err  # `fedslice heat` stands for any of its commands
            assert not said or "are required" in said, f"{page.name}: {command}"
        for line in COMMANDS.get(page, []):
            words = shlex.split(line.partition(" | ")[0])
            if words[0] == "fedslice":
                parser().parse_args(words[1:])


# -- programs --------------------------------------------------------------------------------------


def clicks() -> dict[str, Any]:
    """A few users, items and labels, as the pages speak of them."""
    rng = np.random.default_rng(0)
    user = np.repeat(np.arange(25), 8)
    columns = {"item": rng.integers(300, size=200), "label": rng.integers(2, size=200) * 1.0}
    people = fs.Population.from_arrays(user, **columns)
    return {"user": user, "people": people, **columns}


def trained() -> dict[str, Any]:
    """A population, a model and a method, as the pages speak of them."""
    import optax

    task = fs.tasks.movielens_lr.synthetic(scale=0.01)
    heat = task.train.heat(task.model)
    method = fs.recipes.fedsubavg(task.model, optax.sgd(0.1), fs.Work(steps=2, batch=5), heat=heat)
    part = SimpleNamespace(
        user=np.repeat(np.arange(4), 3), item=np.arange(12) % 5, clicked=np.ones(12, np.float32)
    )
    table = fs.Table(rows=9, shape=(), fields="item")
    model = fs.Model(lambda key: {}, lambda p, b: p["weight"][b["item"]], {"weight": table})
    given = {"method": method, "people": task.train, "population": task.train, "test": task.test}
    return {**given, "model": model, "parts": [part], "fs": fs}


# pages whose programs run here: what they are given, and what is made smaller
PROGRAMS: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, str]]] = {
    "README.md": (dict, {"scale=0.25": "scale=0.02", "uniform(50)": "uniform(20)"}),
    "docs/privacy.md": (dict, {"scale=0.1": "scale=0.03"}),
    "docs/privacy-accounting.md": (dict, {}),
    "docs/secure-sums.md": (dict, {}),
    "docs/how-to/long-runs.md": (dict, {}),
    "docs/how-to/personalise.md": (
        dict,
        {"scale=0.25": "scale=0.02", "train(200)": "train(2)", "uniform(100)": "uniform(10)"},
    ),
    "docs/how-to/cluster.md": (
        trained,
        {'ray("auto", workers=8, shards=4)': "here(workers=2, shards=2)",
         "uniform(400)": "uniform(5)", "train(200)": "train(2)"},
    ),
    "docs/how-to/large.md": (trained, {"uniform(50)": "uniform(5)"}),
    "docs/tutorial.md": (dict, {"rounds=360": "rounds=4"}),
}  # fmt: skip


@pytest.mark.parametrize("name", few(PROGRAMS, "README.md", "docs/tutorial.md"))
@pytest.mark.usefixtures("small_log")
def test_programs_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A page's blocks, one after the other, in one scope."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / name
    given, fewer = PROGRAMS[name]
    scope = given()
    if name.endswith("tutorial.md"):
        assert main(["example", "clicks.csv"]) == 0
    found = programs(page)
    assert found
    for code in found:
        for long, short in fewer.items():
            code = code.replace(long, short)
        code = code.replace("/fast-disk", str(tmp_path))
        exec(compile(code, page.name, "exec"), scope)
    said = capsys.readouterr().out
    wanted = {"README.md": "round 200: 20 clients", "docs/privacy.md": "Each client has epsilon"}
    assert wanted.get(name, "") in said
