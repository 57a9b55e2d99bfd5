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


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ("fedsgd", "fedpa", "central")])
def test_steps_and_epochs_together_cap_the_passes(name: str) -> None:
    """Whatever the order; each of them alone takes the other's place, as before."""
    task = LOCAL if name in ("fedrecon", "fedper") else TASK
    for changes in (["steps=2", "epochs=3"], ["epochs=3", "steps=2"]):
        works = find_method(name).build(task, settings_for(task, name, ["cohort=10", *changes])).client.work
        assert (2, 3) in [(work.steps, work.epochs) for work in works]


def test_a_cap_on_steps_is_kept() -> None:
    """Clients go through min(2, 3 passes) batches: those of up to 5 examples through at most two batches of 5."""
    settings = settings_for(TASK, "fedavg", ["steps=2", "epochs=3"])
    run = fs.simulate(find_method("fedavg").build(TASK, settings), TASK.train, sampler=fs.sampling.full())
    counts = TASK.train.counts
    passes = 3 * -(-counts // 5)
    expected = np.where(passes > 2, np.minimum(counts, 5) + np.where(counts > 5, np.minimum(counts - 5, 5), counts), 0)
    assert passes.min() > 2
    assert next(run.rounds(1)).examples == expected.sum()
    assert settings_for(TASK, "central", ["steps=2", "epochs=3"]).work == {"steps": 2, "epochs": 3, "batch": 5}


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
