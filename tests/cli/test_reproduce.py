"""Published tables: every row can be run, and a small table is run and shown as it came out."""

import json
from argparse import Namespace

import pytest

from fedslice.cli import reproduce
from fedslice.cli.catalogue import find_method, settings_for
from fedslice.cli.main import main
from fedslice.cli.published import PAPERS, ROUNDS, Quick, Row, Sheet
from fedslice.cli.reproduced import slug
from fedslice.cli.workloads import find_task, make_task

SHEETS = [sheet for sheets in PAPERS.values() for sheet in sheets]


@pytest.mark.parametrize("name", sorted({sheet.task for sheet in SHEETS}))
def test_every_row_is_of_settings_that_there_are_and_figures_that_are_measured(name):
    mine = [sheet for sheet in SHEETS if sheet.task == name]
    tasks = {}
    for sheet in mine:
        for row in sheet.rows:
            if row.options not in tasks:
                scale = min(sheet.quick.scale, 0.05)
                tasks[row.options] = make_task(find_task(name), None, scale, row.options)
            task = tasks[row.options]
            settings_for(task, row.algorithm, row.changes)
            find_method(row.algorithm)
            assert len(row.published) in (0, len(sheet.figures))
            for figure in sheet.figures:
                if figure == ROUNDS:
                    assert task.target is not None
                else:
                    assert figure in (*task.model.figures, "test_loss")


def test_a_table_shows_what_came_out_beside_what_was_published(tmp_path, monkeypatch, capsys):
    """Example 1 of Ding et al.: FedSubAvg meets its target in one round, FedAvg in none of three;
    with a tenth of the clients the first is drawn seldom."""
    sheet = Sheet(
        "A table",
        "example1",
        3,
        1,
        (
            Row("FedAvg", "fedavg", ("never",)),
            Row("FedSubAvg", "fedsubavg", ("1",), ("cohort=10",)),
        ),
        (ROUNDS,),
        Quick(3, 0.1, 1),
    )
    monkeypatch.setitem(reproduce.PAPERS, "fedsubavg", (sheet,))
    command = ["reproduce", "fedsubavg", "--quick", "--seeds", "2", "--out", str(tmp_path)]
    assert main(command) == 0
    told = capsys.readouterr()
    lines = [line.split() for line in told.out.splitlines()]
    assert ["FedAvg", "never", "3+,", "3+"] in lines
    assert ["FedSubAvg", "1", "1,", "1"] in lines
    assert "The data are generated" in told.out
    assert "about" in told.err
    about = json.loads((tmp_path / "example1" / "fedsubavg-seed1" / "about.json").read_text())
    assert about["command"].endswith("--seed 1 --rounds 3 --eval-every 1 --set cohort=10")
    page = (tmp_path / "report.html").read_text()
    assert "A quick look" in page
    assert page.count("<svg") == 2
    # a second time nothing is run
    assert main(command) == 0
    assert capsys.readouterr().err.count("ended before") == 4


def test_unknown_tasks_are_refused(capsys):
    assert main(["reproduce", "fedrecon", "--task", "movielens-mff"]) == 2
    assert "did you mean 'movielens-mf'?" in capsys.readouterr().err


def test_no_two_rows_of_a_paper_have_one_folder():
    """Rows that differ are runs that differ; sheets of one task may share a row, not its name."""
    for paper, sheets in PAPERS.items():
        known = {}
        for sheet in sheets:
            for row in sheet.rows:
                what = (row.algorithm, row.changes, row.options, sheet.rounds, sheet.quick)
                assert known.setdefault((sheet.task, slug(row.label)), what) == what, paper


def test_each_table_has_the_data_that_it_asks_for():
    """Two tables of one task, of which one needs more clients to tell anything."""
    row = Row("FedAvg", "fedavg")
    given = ("movielens-lr", 10, 5, (row,), (ROUNDS,))
    few, many = (Sheet("T", *given, Quick(1, scale, 1)) for scale in (0.01, 0.02))
    options = Namespace(quick=True, synthetic=False, scale=None, data_dir=None)
    known = {}
    one, two, again = (reproduce._source(options, sheet, row, known) for sheet in (few, many, few))
    assert 2 * len(one.task.train) == pytest.approx(len(two.task.train), abs=2)
    assert again is one


def test_a_quick_look_has_the_rows_that_it_names_or_all():
    for sheet in SHEETS:
        numbers = sheet.quick.rows or range(len(sheet.rows))
        assert sheet.quickly().rows == tuple(sheet.rows[number] for number in numbers)
        if "Rates" in sheet.title:  # of every algorithm the smallest and the largest
            assert [row.algorithm for row in sheet.quickly().rows] == [
                name for name in ("fedavg", "fedavgm", "fedadam") for _ in range(2)
            ]
