"""Studies: what a grid's cells are, that nothing is run twice, and that an interrupted study ends
as an undisturbed one does."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sketches import sketched

from fedslice.cli import experiment, grid
from fedslice.cli.main import main
from fedslice.cli.stopping import Stopped
from fedslice.errors import InputError
from fedslice.report.selection import Edge
from fedslice.tasks import quadratic

TASK = quadratic.random_quadratic(clients=12, rows=6).task


def names(*texts, algorithms=("fedavg", "fedprox"), changes=()):
    axes = [grid.axis(text) for text in texts]
    return [(cell.algorithm, cell.name) for cell in grid.cells(TASK, algorithms, changes, axes)]


def test_cells_are_the_product_of_the_axes_that_an_algorithm_has():
    assert names("client_rate=0.1,1", "fedprox:mu=0.5,2") == [
        ("fedavg", "client_rate=0.1"),
        ("fedavg", "client_rate=1"),
        ("fedprox", "client_rate=0.1,mu=0.5"),
        ("fedprox", "client_rate=0.1,mu=2"),
        ("fedprox", "client_rate=1,mu=0.5"),
        ("fedprox", "client_rate=1,mu=2"),
    ]
    assert names() == [("fedavg", "as-published"), ("fedprox", "as-published")]


def test_a_cell_runs_with_what_it_was_given_and_with_what_all_are_set_to():
    axes = [grid.axis("client_rate=0.1,0.25"), grid.axis("fedprox:mu=2")]
    cells = grid.cells(TASK, ["fedavg", "fedprox"], ["cohort=3"], axes)
    last = cells[-1].settings
    assert (last.client_rate, last.mu, last.cohort) == (0.25, 2.0, 3)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("client_rat=0.1", "did you mean 'client_rate'"),
        ("client_rate", "write a setting and its values"),
        ("client_rate=", "give the values to try"),
        ("client_rate=1,1", "named twice"),
        ("scaffold:client_rate=1", "not among those compared"),
        ("client_rate=fast", "must be a number"),
    ],
)
def test_a_grid_that_cannot_be_is_refused(text, words):
    with pytest.raises(InputError, match=words):
        names(text)


def test_a_grid_grows_beyond_the_edge_at_which_its_optimum_lies():
    axes = [grid.axis("client_rate=0.1,0.3"), grid.axis("fedprox:mu=1,2"), grid.axis("epochs=1,2")]
    grown = grid.beyond(
        axes,
        [
            Edge("fedavg", "client_rate", 0.1, True),
            Edge("fedprox", "mu", 2.0, False),
            Edge("fedavg", "epochs", 2, False),
        ],
    )
    assert [one.values for one in grown] == [
        ("0.1", "0.3", "0.03333"),
        ("1", "2", "4"),
        ("1", "2", "4"),
    ]
    # one that has grown since is left alone
    assert grid.beyond(grown, [Edge("fedavg", "client_rate", 0.1, True)]) == grown
    zero = [grid.axis("mu=0,1")]
    assert grid.beyond(zero, [Edge("fedprox", "mu", 0.0, True)]) == zero


STUDY = ["study", "quadratic", "fedavg", "fedsubavg", "--grid", "client_rate=0.05,0.2"]
SMALL = ["--rounds", "6", "--eval-every", "3", "--seeds", "2", "--scale", "0.4", "--jobs", "1"]


def files(out: Path):
    """All that a study leaves but what tells of time and of this machine."""
    found = {}
    for file in sorted(out.rglob("*")):
        if file.is_file() and file.name not in ("done.json", "checkpoint.safetensors", ".lock"):
            found[str(file.relative_to(out))] = file.read_bytes()
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("study") / "s"
    with pytest.MonkeyPatch.context() as patch:
        sketched(patch)
        assert main([*STUDY, *SMALL, "--out", str(out)]) == 0
    return out


@pytest.fixture
def _sketched(monkeypatch):
    sketched(monkeypatch)


def test_a_study_leaves_a_folder_for_every_cell_and_one_report(undisturbed, capsys):
    folders = sorted(str(f.parent.relative_to(undisturbed)) for f in undisturbed.rglob("done.json"))
    assert folders == [
        f"cells/{name}/client_rate={rate}-seed{seed}"
        for name in ("fedavg", "fedsubavg")
        for rate in ("0.05", "0.2")
        for seed in (0, 1)
    ]
    assert "<h1>quadratic</h1>" in (undisturbed / "report.html").read_text()
    about = json.loads((undisturbed / folders[3] / "about.json").read_text())
    assert about["command"] == (
        "fedslice run quadratic --scale 0.4 --validation 0.1 --algorithm fedavg --seed 1"
        " --rounds 6 --eval-every 3 --set client_rate=0.2"
    )
    assert about["data"]["hash"]


def test_the_command_of_a_cell_repeats_it(undisturbed, tmp_path):
    cell = undisturbed / "cells/fedavg/client_rate=0.2-seed1"
    command = json.loads((cell / "about.json").read_text())["command"].split()[1:]
    assert main([*command, "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "metrics.jsonl").read_bytes() == (
        cell / "metrics.jsonl"
    ).read_bytes()
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        cell / "model.safetensors"
    ).read_bytes()


@pytest.mark.usefixtures("_sketched")
def test_what_has_ended_is_not_run_again(undisturbed, monkeypatch, capsys):
    def never(self, run=None):
        raise AssertionError("a cell that has ended was run again")

    monkeypatch.setattr(experiment.Experiment, "execute", never)
    before = files(undisturbed)
    assert main([*STUDY, *SMALL, "--out", str(undisturbed)]) == 0
    assert capsys.readouterr().err.count("ended before") == 8
    assert files(undisturbed) == before


@pytest.mark.parametrize(
    "cell", [pytest.param(0, marks=pytest.mark.every), 3, pytest.param(7, marks=pytest.mark.every)]
)
@pytest.mark.usefixtures("_sketched")
def test_a_study_that_was_stopped_goes_on_and_ends_the_same(
    undisturbed, tmp_path, monkeypatch, cell
):
    """A signal in a round of some cell: that cell saves, the others do not start."""
    ran, lap = [0], experiment.Experiment._lap

    def stopping(self, run, *rest):
        lap(self, run, *rest)
        ran[0] += 1
        if ran[0] == 2 * cell + 2:
            raise Stopped(15)

    out = tmp_path / "s"
    with monkeypatch.context() as patch:
        patch.setattr(experiment.Experiment, "_lap", stopping)
        assert main([*STUDY, *SMALL, "--out", str(out)]) == 128 + 15
    assert not (out / "report.html").exists()
    assert main([*STUDY, *SMALL, "--out", str(out)]) == 0
    same(undisturbed, out)


@pytest.mark.every
def test_a_study_that_was_killed_goes_on_and_ends_the_same(undisturbed, tmp_path, monkeypatch):
    """SIGKILL at two moments, wherever they fall: what is left goes on, and all is the same to the
    byte."""
    out = tmp_path / "s"
    command = [*STUDY, *SMALL, "--out", str(out)]
    for written in (3, 25):  # files that the cells have before it is killed
        words = [sys.executable, "-m", "fedslice.cli.main", *command]
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while process.poll() is None and len(list(out.glob("cells/*/*/*"))) < written:
            time.sleep(0.001)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert not (out / "report.html").exists()
    sketched(monkeypatch)
    assert main(command) == 0
    same(undisturbed, out)


def same(one: Path, two: Path):
    """Whether two studies left the same; the page names their folders."""
    left, right = files(one), files(two)
    pages = [
        found.pop("report.html").replace(str(place).encode(), b"")
        for found, place in ((left, one), (right, two))
    ]
    assert pages[0] == pages[1]
    assert left == right


@pytest.mark.usefixtures("_sketched")
def test_a_diverging_cell_is_stopped_left_out_and_not_tried_again(tmp_path, capsys):
    out = tmp_path / "s"
    command = ["study", "quadratic", "fedavg", "--grid", "client_rate=0.1,1e30", "--scale", "0.4"]
    command += [*SMALL[:4], "--seeds", "1", "--out", str(out)]
    assert main(command) == 0
    told = capsys.readouterr()
    assert told.err.count("client_rate=1e30 seed") == 1
    assert "1 of 2 runs diverged and are left out." in told.out
    assert main(command) == 0
    assert capsys.readouterr().err.count("ended before") == 2


@pytest.mark.usefixtures("_sketched")
def test_extending_tries_the_next_value_until_the_optimum_is_inside(tmp_path, capsys):
    """One step on one-dimensional quadratics of curvature 1: a rate of 1 solves each at once."""
    out = tmp_path / "s"
    command = ["study", "example1", "central", "--grid", "client_rate=0.125,0.25", "--extend"]
    more = ["--rounds", "2", "--eval-every", "1", "--seeds", "1", "--scale", "0.1"]
    assert main([*command, *more, "--validation", "0", "--out", str(out)]) == 0
    tried = sorted(path.name for path in (out / "cells" / "central").iterdir())
    assert "client_rate=0.5-seed0" in tried
    assert "client_rate=1-seed0" in tried
    assert "trying client_rate" in capsys.readouterr().err


@pytest.mark.usefixtures("_sketched")
def test_a_study_in_a_file(undisturbed, tmp_path):
    file = tmp_path / "study.toml"
    file.write_text(
        'task = "quadratic"\nalgorithms = ["fedavg"]\nrounds = 6\neval_every = 3\n'
        "seeds = 1\nscale = 0.4\njobs = 1\n[grid]\nclient_rate = [0.05, 0.2]\n"
    )
    out = tmp_path / "s"
    assert main(["study", str(file), "--out", str(out)]) == 0
    one, two = (
        {name: text for name, text in files(each).items() if name.endswith("metrics.jsonl")}
        for each in (undisturbed, out)
    )
    assert two == {name: text for name, text in one.items() if name in two}
    assert len(two) == 2
    file.write_text('task = "quadratic"\nalgorithm = ["fedavg"]\n')
    assert main(["study", str(file)]) == 2
    file.write_text('task = "quadratic"\nalgorithms = ["fedavg"]\nrounds = "six"\n')
    assert main(["study", str(file)]) == 2
    file.write_text("task = \n")
    assert main(["study", str(file)]) == 2


def test_report_of_some_runs(undisturbed, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert (
        main(
            ["report", str(undisturbed / "cells/fedavg"), "-o", str(page), "--files"]
            + [str(tmp_path / "parts"), "--formats", "svg"]
        )
        == 0
    )
    assert "fedsubavg" not in page.read_text()
    assert (tmp_path / "parts" / "results.csv").exists()
    assert not list((tmp_path / "parts").glob("*.png"))
    assert main(["report", str(tmp_path / "nowhere")]) == 2
    assert "there is no folder" in capsys.readouterr().err
