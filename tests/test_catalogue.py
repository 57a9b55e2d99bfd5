"""The catalogue: one text for the command line and the docs, settings that become parts, refusals."""

from pathlib import Path

import numpy as np
import optax
import pytest

import fedslice as fs
from fedslice.catalogue import ALGORITHMS, find_method, page, settings_for
from fedslice.cli import main
from fedslice.errors import InputError
from fedslice.registry import sampler_for
from fedslice.settings import COMMON, Settings, schedule

TASK = fs.tasks.movielens_lr.synthetic(scale=0.02)
LOCAL = fs.tasks.movielens_mf.synthetic(scale=0.02)


def test_the_docs_page_is_what_the_catalogue_says() -> None:
    assert (Path(__file__).parent.parent / "docs" / "algorithms.md").read_text() == page()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_told_and_built(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", name]) == 0
    text = capsys.readouterr().out
    method = ALGORITHMS[name]
    assert all(part in text for part in (method.equation.splitlines()[0], method.citation, method.messages))
    assert all(f"`{key}`" in text for key in method.options)
    task = LOCAL if name in ("fedrecon", "fedper") else TASK
    settings = settings_for(task, name, ["cohort=10", "steps=2"])
    people = task.train.pool() if method.pooled else task.train
    run = fs.simulate(method.build(task, settings), people, sampler=sampler_for(method, settings))
    reports = list(run.rounds(2))
    assert np.isfinite(reports[-1].loss)
    assert set(method.unused) <= set(COMMON)


def test_one_expression_and_one_command_line_are_the_same() -> None:
    changes = ["cohort=10", "server=yogi", "server_rate=0.01", "mu=0.01", "compress=quantise:127", "reduce=trimmed:0.1"]
    settings = settings_for(TASK, "fedsubavg", changes)
    typed = find_method("fedsubavg").build(TASK, settings)
    written = fs.recipes.fedsubavg(
        TASK.model,
        optax.sgd(0.1),
        heat=TASK.train.heat(TASK.model),
        steps=10,
        batch=5,
        server=optax.yogi(0.01, b1=0.9, b2=0.99, eps=1e-3),
        corrections=[fs.client.proximal(0.01)],
        stages=[fs.stage.compress(fs.stage.quantise(127))],
        reduce=fs.reduce.trimmed(0.1),
    )
    rows = []
    for method in (typed, written):
        run = fs.simulate(method, TASK.train, sampler=fs.sampling.uniform(10))
        run.train(3, progress=False)
        rows.append(run.table("weight", np.arange(100)))
    assert np.array_equal(*rows)
    assert np.abs(rows[0]).max() > 0


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("scaffold", "reduce=median", "plain sum"),
        ("feddyn", "reduce=trimmed:0.1", "plain sum"),
        ("fedavg", "reduce=mode", "is not known"),
        ("fedavg", "reduce=trimmed:half", "do not fit"),
        ("fedavg", "reduce=trimmed:0.7", "below one half"),
        ("fedavg", "compress=zip", "is not known"),
        ("fedavg", "compress=largest", "do not fit"),
        ("fedavg", "feedback=maybe", "yes or no"),
        ("fedavg", "server_schedule=slow:3", "is not known"),
        ("fedavg", "q=1", "there is no setting 'q'"),
        ("feddualavg", "regulariser=l7", "is not known"),
        ("scaffold", "option=3", "options 1"),
        ("feddyn", "clip=1", "leave out clip"),
        ("fedpd", "compress=sign", "leave out clip"),
        ("ifca", "reduce=median", "zeros for the models"),
        ("ifca", "compress=sign", "several models"),
        ("fednova", "client=adam", "not adam"),
    ],
)
def test_what_cannot_be_is_refused(name: str, change: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_method(name).build(TASK, settings_for(TASK, name, ["cohort=10", change]))


def test_heat_and_weighted_sampling_do_not_go_together() -> None:
    with pytest.raises(InputError, match="sampler=weighted"):
        find_method("fedsubavg").build(TASK, settings_for(TASK, "fedsubavg", ["sampler=weighted"]))


def test_fedpd_needs_everyone() -> None:
    settings = settings_for(TASK, "fedpd", ["cohort=10", "sampler=uniform"])
    with pytest.raises(InputError, match="every client in every round"):
        fs.simulate(find_method("fedpd").build(TASK, settings), TASK.train, sampler=fs.sampling.uniform(10))


def test_comparing_passes_over_settings_of_others() -> None:
    assert "q" not in settings_for(TASK, "fedavg", ["q=2"], others=True).values
    assert settings_for(TASK, "qffl", ["q=2"], others=True).q == 2.0
    with pytest.raises(InputError, match="no setting"):
        settings_for(TASK, "fedavg", ["colour=red"], others=True)


def test_schedules() -> None:
    warm_then_fall = schedule("warmup:10+linear:20")
    assert warm_then_fall is not None
    # After 5 rounds: the sixth of ten steps of warming up, three quarters of the fall left.
    assert float(warm_then_fall(5)) == pytest.approx(0.6 * 0.75)
    assert schedule("constant") is None
    settings = Settings({"steps": 3, "epochs": 0, "batch": 4})
    assert settings.work == {"steps": 3, "batch": 4}
    assert settings.change("epochs", "2").work == {"epochs": 2, "batch": 4}
