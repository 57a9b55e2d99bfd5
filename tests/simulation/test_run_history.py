"""Rounds as a table: what the reports said, one row each, and what a notebook shows."""

import optax
import pytest

import fedslice as fs
from fedslice.simulation.history import COLUMNS


@pytest.fixture
def run():
    task = fs.tasks.quadratic.example1(clients=4)
    method = fs.recipes.fedavg(task.model, optax.sgd(0.1), weights="uniform")
    return fs.simulate(method, task.train, sampler=fs.sampling.uniform(2))


def test_history_has_a_row_for_every_round_as_reported(run):
    pytest.importorskip("pandas")
    reports = list(run.rounds(20))
    found = run.history
    assert list(found.columns) == list(COLUMNS)
    for name in COLUMNS:
        assert found[name].tolist() == [getattr(report, name) for report in reports]
    assert found["bytes_up"].sum() == run.totals["bytes_up"]


def test_one_that_was_restored_begins_after_that(run, tmp_path):
    pytest.importorskip("pandas")
    run.train(3, progress=False)
    run.save(tmp_path)
    run.train(2, progress=False)
    run.restore(tmp_path)
    run.train(1, progress=False)
    assert run.history["round"].tolist() == [4]


def test_a_notebook_shows_what_it_is_and_its_last_rounds(run):
    assert "0 rounds" in run._repr_html_()
    run.train(7, progress=False)
    shown = run._repr_html_()
    assert repr(run).startswith("<Run: fedavg, 7 rounds, 4 clients")
    assert "&lt;Run: fedavg" in shown
    assert shown.count("<tr>") == 1 + 5


def test_heat_is_a_table_in_a_notebook():
    task = fs.tasks.quadratic.example1(clients=4)
    shown = task.train.heat(task.model)._repr_html_()
    assert "dispersion 4" in shown
    assert "<td>1</td>" in shown
