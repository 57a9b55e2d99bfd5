"""The catalogue: one text for command line and docs, settings that become parts, refusals."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few

import fedslice as fs
from fedslice.cli.catalogue import ALGORITHMS, find_method, settings_for, settings_of_all
from fedslice.cli.main import main
from fedslice.cli.optimizers import OPTIMIZERS, optimizer, schedule
from fedslice.cli.reference import page
from fedslice.cli.settings import COMMON, Settings
from fedslice.cli.workloads import TASKS
from fedslice.compose import check_sampler
from fedslice.errors import InputError
from fedslice.tasks import quadratic
from fedslice.types import ClientReport, Message

TASK = fs.tasks.movielens_lr.synthetic(scale=0.02)
LOCAL = fs.tasks.movielens_mf.synthetic(scale=0.02)


def test_the_docs_page_is_what_the_catalogue_says() -> None:
    assert (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text() == page()


def built(name: str) -> tuple[Any, Any, Any]:
    """The algorithm as the command line makes it, its task, its settings."""
    method, task = ALGORITHMS[name], LOCAL if name in ("fedrecon", "fedper") else TASK
    settings = settings_for(
        task, name, ["cohort=10", *(["steps=2"] if "steps" not in method.unused else [])]
    )
    return method.build(task, settings), task, settings


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_is_told_and_built(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithms", name]) == 0
    text = capsys.readouterr().out
    method = ALGORITHMS[name]
    assert all(part in text for part in (*method.page.body, *method.page.closing))
    assert all(f"`{key}`" in text for key in (*method.options, *method.additions))
    assert set(method.unused) <= set(COMMON)
    built(name)


# other commands of tests train fedsubavg, fedrecon, ditto and central
STRUCTURES = "scaffold", "mime", "ifca"


@pytest.mark.parametrize("name", few(ALGORITHMS, *STRUCTURES))
def test_every_algorithm_trains(name: str) -> None:
    method, (algorithm, task, settings) = ALGORITHMS[name], built(name)
    people = task.train.pool() if method.pooled else task.train
    run = fs.simulate(algorithm, people, sampler=method.sampler(settings))
    reports = list(run.rounds(2))
    assert np.isfinite(reports[-1].loss)


def test_one_expression_and_one_command_line_are_the_same() -> None:
    changes = [
        "cohort=10",
        "server=adam",
        "server_rate=0.01",
        "mu=0.01",
        "compress=quantise:127",
        "reduce=trimmed:0.1",
    ]
    settings = settings_for(TASK, "fedsubavg", changes)
    typed = find_method("fedsubavg").build(TASK, settings)
    written = fs.recipes.fedsubavg(
        TASK.model,
        optax.chain(fs.client.proximal(0.01), optax.sgd(0.1)),
        fs.Work(steps=10, batch=5),
        heat=TASK.train.heat(TASK.model),
        server=optax.adam(0.01, b1=0.9, b2=0.99, eps=1e-3),
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
        ("fedavg", "compress=largest", "after largest comes SHARE"),
        ("fedavg", "client_schedule=exponential:0.5", "after exponential comes FACTOR:ROUNDS"),
        ("fedavg", "feedback=maybe", "yes or no"),
        ("fedavg", "feedback=yes", "set compress too"),
        ("fedavg", ":mu=1", "name the algorithm"),
        ("fedadam", "server=sgd", "by its definition"),
        ("scaffold", "clip=1", "leave them out, or use scaffold_heat"),
        ("fedavg", "server_schedule=slow:3", "is not known"),
        ("fedavg", "q=1", "there is no setting 'q'"),
        ("feddualavg", "regulariser=l7", "is not known"),
        ("scaffold", "option=3", "options 1"),
        ("feddyn", "clip=1", "leave out clip"),
        ("fedpd", "compress=sign", "leave out clip"),
        ("ifca", "reduce=median", "zeros for the models"),
        ("ifca", "compress=sign", "several models"),
        ("fednova", "client=adam", "fednova does not use client"),
        ("fednova", "momentum=1", "from 0 to below 1"),
        ("fedexp", "reduce=median", "fedexp does not use reduce"),
        ("ifca", "heat=yes", "there is no setting 'heat'"),
    ],
)
def test_what_cannot_be_is_refused(name: str, change: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_method(name).build(TASK, settings_for(TASK, name, ["cohort=10", change]))


@pytest.mark.parametrize(
    "name", [name for name in ALGORITHMS if name not in ("fedsgd", "fedpa", "central")]
)
def test_steps_and_epochs_together_cap_the_passes(name: str) -> None:
    """Whatever the order; each of them alone takes the other's place, as before."""
    task = LOCAL if name in ("fedrecon", "fedper") else TASK
    for changes in (["steps=2", "epochs=3"], ["epochs=3", "steps=2"]):
        works = (
            find_method(name)
            .build(task, settings_for(task, name, ["cohort=10", *changes]))
            .client.work
        )
        assert (2, 3) in [(work.steps, work.epochs) for work in works]


def test_a_cap_on_steps_is_kept() -> None:
    """Clients go through min(2, 3 passes) batches: those of up to 5 examples through at most two
    batches of 5."""
    settings = settings_for(TASK, "fedavg", ["steps=2", "epochs=3"])
    run = fs.simulate(
        find_method("fedavg").build(TASK, settings), TASK.train, sampler=fs.sampling.full()
    )
    counts = TASK.train.counts
    passes = 3 * -(-counts // 5)
    expected = np.where(
        passes > 2,
        np.minimum(counts, 5) + np.where(counts > 5, np.minimum(counts - 5, 5), counts),
        0,
    )
    assert passes.min() > 2
    assert next(run.rounds(1)).examples == expected.sum()
    assert settings_for(TASK, "central", ["steps=2", "epochs=3"]).work == fs.Work(2, 3, 5)


def test_fedpd_needs_everyone() -> None:
    settings = settings_for(TASK, "fedpd", ["cohort=10", "sampler=uniform"])
    with pytest.raises(InputError, match="every client in every round"):
        fs.simulate(
            find_method("fedpd").build(TASK, settings), TASK.train, sampler=fs.sampling.uniform(10)
        )


def all_of(algorithms: str, *changes: str) -> dict[str, Settings]:
    return settings_of_all(TASK, algorithms.split(), changes)[0]


def test_a_plain_change_goes_to_those_who_have_it_as_their_own_or_share_it() -> None:
    """mu is FedProx's own; on FedAvg it would be FedProx under another name."""
    found = all_of("fedavg fedprox fednova fedsubavg qffl", "mu=1", "q=2", "batch=3")
    assert {name: each.values.get("mu") for name, each in found.items()} == {
        "fedavg": 0.0, "fedprox": 1.0, "fednova": 0.0, "fedsubavg": 0.0, "qffl": None,
    }  # fmt: skip
    assert found["qffl"].q == 2.0
    assert {each.batch for each in found.values()} == {3}
    _, notes = settings_of_all(TASK, ["fedavg", "fedprox"], ["mu=1", "batch=3"])
    assert notes == ["note: mu=1 is for fedprox only"]


def test_a_change_can_be_for_one_algorithm() -> None:
    found = all_of(
        "fedavg fedadam fedprox",
        "fedavg:mu=0.5",
        "fedadam:server_rate=0.1",
        "fedprox:reduce=trimmed:0.2",
    )
    assert [found["fedavg"].mu, found["fedprox"].mu] == [0.5, 0.01]
    assert [found["fedavg"].server_rate, found["fedadam"].server_rate] == [1.0, 0.1]
    assert [found["fedavg"].values["reduce"], found["fedprox"].values["reduce"]] == [
        "sum",
        "trimmed:0.2",
    ]
    assert (
        settings_for(TASK, "fedavg", ["fedavg:mu=0.5"]).mu
        == settings_for(TASK, "fedavg", ["mu=0.5"]).mu
        == 0.5
    )


@pytest.mark.parametrize(
    ("algorithms", "change", "words"),
    [
        (
            "fedavg fedsubavg",
            "mu=1",
            "makes fedavg another method, so say for which: --set fedavg:mu=1",
        ),
        ("fedprox central", "heat=yes", "--set fedprox:heat=yes"),
        ("fedavg fedprox", "chort=3", "none of fedavg, fedprox has it; did you mean 'cohort'"),
        ("fedavg fedprox", "q=3", "none of fedavg, fedprox has it"),
        ("scaffold fedsgd", "client_schedule=linear:3", "scaffold, fedsgd: not used"),
        ("feddyn fedpd", "weights=examples", "feddyn, fedpd: not used, or fixed"),
        (
            "fedavg fedprox",
            "fedadam:server_rate=1",
            "fedadam is not among those compared, fedavg, fedprox",
        ),
        ("fedavg fedprox", "fedadm:server_rate=1", "there is no algorithm 'fedadm'"),
        ("fedavg fedprox", "server_eps=1", "none of fedavg, fedprox has it"),
        ("fedavg fedprox", "batch", "write key=value"),
    ],
)
def test_a_change_that_nobody_takes_is_refused(algorithms: str, change: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        all_of(algorithms, change)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("fedsgd", "client_rate=1", "fedsgd does not use client_rate"),
        ("fedsubavg", "heat=no", "fedsubavg has heat=True by its definition"),
        ("feddyn", "weights=examples", "feddyn has weights=uniform by its definition"),
        ("fedavg", "fedprox:mu=1", "is for fedprox, not for fedavg"),
        (
            "fedavg",
            "server_b2=0.9",
            "sgd has no b2, so server_b2 cannot be set; adam, yogi, adamw, rmsprop, lion",
        ),
        ("fedadam", "server_b2=1", "b2=1.0 is not possible: from 0 to below 1"),
        ("fedadagrad", "server_accumulator=-1", "at least 0"),
        ("fedavg", "client_schedule=exponential:0:3", "must be positive"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(name: str, change: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        find_method(name).build(TASK, settings_for(TASK, name, [change]))


def test_settings_are_what_is_used() -> None:
    """What a run records: nothing that its algorithm ignores, and what it chooses itself."""
    used = {name: settings_for(TASK, name, []).values for name in ALGORITHMS}
    assert all(not set(method.unused) & set(used[name]) for name, method in ALGORITHMS.items())
    names = ("fedavg", "fedsubavg", "scaffold", "scaffold-heat", "mime")
    assert [used[name].get("heat", False) for name in names] == [False, True, False, True, True]
    assert [used[name]["weights"] for name in ("scaffold", "feddyn", "reptile", "maml")] == [
        "examples", "uniform", "uniform", "uniform",
    ]  # fmt: skip
    assert settings_for(fs.tasks.quadratic.random_quadratic(4).task, "mime", []).heat
    dense = replace(TASK, model=fs.Model(lambda key: {}, lambda params, batch: batch["x"]))
    assert not settings_for(dense, "mime", []).heat


def test_a_task_has_settings_for_single_algorithms() -> None:
    """Table 5 of Ding et al.: client and server rate, b1, b2 of FedAdam; eps is not given, so the
    Field Guide's."""
    published = {
        "movielens-lr": (0.1, 1, 0.99),
        "sent140-lstm": (1, 1, 0.99),
        "amazon-din": (0.1, 0.001, 0.999),
    }
    for name, (client, server, b2) in (published | {"taobao-din": (1, 0.001, 0.99)}).items():
        work = TASKS[name]
        task = replace(
            TASK,
            settings=work.settings,
            learning_rates=work.learning_rates,
            algorithms=work.algorithms,
        )
        used = settings_for(task, "fedadam", [])
        assert (used.client_rate, used.server_rate, used.server_b1, used.server_b2) == (
            client,
            server,
            0.9,
            b2,
        )
        assert used.server_eps == 1e-3
        assert settings_for(task, "fedavg", []).server_rate == 1
        assert "b2" in work.sections()["settings"]["settings of fedadam"]
    assert TASK.algorithms == TASKS["movielens-lr"].algorithms
    assert settings_for(TASK, "fedadam", ["server_rate=0.3", "server_b2=0.5"]).server_rate == 0.3


def test_constants_of_optimizers() -> None:
    """Adagrad with rate eta, accumulator a and eps on one gradient g: eta g / sqrt(a + g^2 + eps).
    Adam's first step is eta g / (|g| + eps), momentum's second eta (1 + b1) g."""
    changes = [
        "server_accumulator=0.5",
        "server_eps=0.25",
        "server=adagrad",
        "server_rate=2",
    ]  # in any order
    g = {"x": jnp.array(3.0)}

    def moves(changes: list[str], steps: int = 1) -> float:
        rule = settings_for(TASK, "fedavg", changes).server_optimizer
        state = rule.init(g)
        for _ in range(steps):
            step, state = rule.update(g, state, g)
        return -float(step["x"])

    assert moves(changes) == pytest.approx(2 * 3 / (0.5 + 9 + 0.25) ** 0.5)
    assert moves(["server=adam", "server_eps=1", "server_rate=1"]) == pytest.approx(3 / 4)
    assert moves(["server=momentum", "server_b1=0.5"], 2) == pytest.approx(1.5 * 3)
    client = settings_for(
        TASK, "fedavg", ["client=momentum", "client_b1=0.25", "client_rate=1"]
    ).client_optimizer
    _, state = client.update(g, client.init(g), g)
    assert float(client.update(g, state, g)[0]["x"]) == pytest.approx(-1.25 * 3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_builds_with_its_constants(name: str) -> None:
    constants = [f"server_{key}={value}" for key, value in OPTIMIZERS[name][1].items()]
    settings = settings_for(TASK, "fedavg", [*constants, f"server={name}"])
    assert {key: settings.values[f"server_{key}"] for key in OPTIMIZERS[name][1]} == OPTIMIZERS[
        name
    ][1]
    params = {"x": jnp.ones(2)}
    rule = settings.server_optimizer
    usual = optimizer(name, 1.0)
    for step in (
        rule.update(params, rule.init(params), params),
        usual.update(params, usual.init(params), params),
    ):
        assert np.all(np.asarray(step[0]["x"]) < 0)


def test_schedules() -> None:
    warm_then_fall = schedule("warmup:10+linear:20")
    assert warm_then_fall is not None
    # After 5 rounds: the sixth of ten steps of warming up, three quarters of the fall left.
    assert float(warm_then_fall(5)) == pytest.approx(0.6 * 0.75)
    assert schedule("constant") is None
    falling = schedule("exponential:0.01:100")
    assert falling is not None
    assert [float(falling(r)) for r in (0, 50, 200)] == pytest.approx([1, 0.1, 1e-4])
    settings = Settings({"steps": 3, "epochs": 0, "batch": 4})
    assert settings.work == fs.Work(steps=3, batch=4)
    assert settings.change("epochs", "2").work == fs.Work(epochs=2, batch=4)


def test_what_names_the_algorithm_has_the_last_word() -> None:
    task = quadratic.example1(clients=4)
    assert settings_for(task, "fedprox", ["fedprox:mu=1", "mu=2"]).mu == 1


@pytest.mark.parametrize(
    "changes", [["sampler=weighted", "weights=examples"], ["weights=examples", "sampler=weighted"]]
)
def test_weights_that_were_asked_for_are_not_changed_without_a_word(changes: list[str]) -> None:
    """They are refused where the sampler meets them, in either order; where nobody asked, the
    sampler's follow."""
    task = TASKS["movielens-lr"].synthetic(scale=0.01)
    settings = settings_for(task, "fedavg", ["cohort=4", *changes])
    method = find_method("fedavg")
    with pytest.raises(InputError, match="size would count twice"):
        check_sampler(method.build(task, settings), method.sampler(settings))
    assert settings_for(task, "fedavg", ["sampler=weighted"]).weights == "uniform"
    assert (
        settings_for(task, "fedavg", ["sampler=weighted", "sampler=uniform"]).weights == "examples"
    )


def test_yogi_does_not_move_what_has_no_gradient() -> None:
    """Whatever its second moment starts from, the first one starts at zero."""
    rule, x = optimizer("yogi", 0.1, accumulator=0.1), {"w": jnp.ones(1)}
    updates, _ = rule.update({"w": jnp.zeros(1)}, rule.init(x))
    assert float(updates["w"][0]) == 0
    g = 0.5  # by hand: m = 0.1 g, v = v0 - 0.01 sign(v0 - g^2) g^2, both without their bias
    updates, _ = rule.update({"w": jnp.full(1, g)}, rule.init(x))
    v = 0.1 + (1 - 0.99) * g**2
    assert float(updates["w"][0]) == pytest.approx(
        -0.1 * g / (np.sqrt(v / (1 - 0.99)) + 1e-3), rel=1e-5
    )


def test_fednova_normalises_by_the_momentum_that_is_used() -> None:
    """||a||_1 of 3 steps with momentum 1/2 is 1 + 1.5 + 1.75."""
    task = quadratic.example1(clients=4)
    settings = settings_for(task, "fednova", ["momentum=0.5", "steps=3"])
    method = find_method("fednova").build(task, settings)
    report = ClientReport(*[jnp.zeros(())] * 3, steps=jnp.array(3.0))
    message = Message({}, jnp.ones(()), report)
    encoded, _ = method.stages[0].encode((), (), message, jax.random.key(0))
    assert float(encoded.extra["progress"]) == 4.25
