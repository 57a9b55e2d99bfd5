"""A private mean: what one client can change, where the noise falls, what is refused."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from linear import linear
from problems import ROWS, arrays, people, run_of, state_bytes

import fedslice as fs
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.privacy import Adapt, central
from fedslice.privacy import heat as heats
from fedslice.stage import ball, mean
from fedslice.types import Algorithm, Message, Stage

WORK = fs.Work(steps=2, batch=4)
POISSON = fs.sampling.poisson(4)
R = fs.recipes


def probe() -> Stage:
    """Keeps the sum as it arrives, for a test to read it."""

    def decode(state: Any, total: Message, key: Any) -> tuple[Message, Any]:
        return total, total.update

    return Stage(
        lambda params, rows: jax.tree.map(jnp.zeros_like, params),
        lambda offer, memory, message, key: (message, memory),
        decode,
        on_sum=True,
    )


def public(population: Population, model: Model) -> fs.Heat:
    return heats.public(population.heat(model))


def uniform(recipe: Callable[..., Algorithm], *given: Any, **more: Any) -> Callable[..., Algorithm]:
    return partial(recipe, *given, weights="uniform", **more)


ALLOWED: dict[str, Callable[..., Algorithm]] = {
    "fedavg": uniform(R.fedavg, linear(), optax.sgd(0.3), WORK),
    "fedadam": uniform(R.fedavg, linear(), optax.adam(0.3), WORK, server=optax.adam(0.1)),
    "fedprox": uniform(R.fedprox, linear(), optax.sgd(0.3), WORK, mu=0.5),
    "fedpa": uniform(R.fedpa, linear(), optax.sgd(0.1), samples=2, window=1, burn_in=1, batch=4),
    "fedsgd": uniform(R.fedsgd, linear(), optax.sgd(0.5)),
    "fedrecon": uniform(
        R.fedrecon,
        replace(linear(), local=("bias",)),
        optax.sgd(0.3),
        WORK,
        reconstruction=optax.sgd(0.2),
    ),
    "maml": uniform(R.maml, linear(), optax.sgd(0.3), WORK, inner_rate=0.1),
    "reptile": partial(R.reptile, linear(), optax.sgd(0.3), WORK),  # uniform by definition
    "ditto": uniform(R.ditto, linear(), optax.sgd(0.3), WORK, personal=optax.sgd(0.1)),
    "fedper": uniform(R.fedper, replace(linear(), local=("bias",)), optax.sgd(0.3), WORK),
}


def sum_of(method: Algorithm, population: Population) -> Any:
    """The sum of one round that the server would see, as plain numbers for every row."""
    run = run_of(method, population, 1, rows="all", stop_above=1e9)
    return jax.tree.map(np.asarray, run.store.state.stages[-1])


def size(left: Any, right: Any) -> float:
    gaps = jax.tree.map(lambda a, b: np.sum((a.astype(float) - b) ** 2), left, right)
    return float(np.sqrt(sum(jax.tree.leaves(gaps))))


# clients with memory, and corrected by all of the heat: what a server does with the sum comes after
USUAL = {("ditto", 1.0)}


@pytest.mark.parametrize(
    ("name", "power"),
    [
        pytest.param(name, power, marks=[] if (name, power) in USUAL else [pytest.mark.every])
        for name in ALLOWED
        for power in (0.0, 0.5, 1.0)
    ],
)
def test_one_client_changes_the_sum_by_at_most_the_bound(name: str, power: float) -> None:
    """Taken away, or with other data, however wild: the sum of ball's units moves by 1, or 2 if the
    client is replaced; the ball is reached, so the bound is tight."""
    make, columns = ALLOWED[name], arrays()
    heat = public(people(), make().client.model)  # of the whole: it is fixed and public
    stages = [ball(0.05, heat, power), mean("uniform", heat, denominator=4)]
    method = make(stages=[*stages, probe()])
    whole = sum_of(method, people())
    client = 30  # of eight examples
    wild = {**columns, "x": np.where(columns["client"] == client, 1e4, columns["x"])}
    wild["x"] = wild["x"].astype(np.float32)
    other = Population.from_arrays(wild.pop("client"), **wild)
    gone = people().select(people().clients[people().owners] != client)
    alone = people().subset(np.array([3]))
    assert size(whole, sum_of(method, gone)) <= 1 + 1e-5
    assert size(whole, sum_of(method, other)) <= 2 + 1e-5
    nothing = jax.tree.map(np.zeros_like, whole)
    assert size(nothing, sum_of(method, alone)) == pytest.approx(1, abs=1e-3)


@pytest.mark.parametrize("power", few([0.0, 0.5, 1.0], 0.5))
def test_the_geometry_by_hand(power: float) -> None:
    """clip(A delta, C), then C A^-1 c / K: rows within the ball are FedSubAvg's, with K fixed."""
    population, model = people(), linear()
    heat = public(population, model)
    plain = run_of(R.fedsubavg(model, optax.sgd(0.1), WORK, heat=heat, weights="uniform"), people())
    first = np.asarray(plain.table("w", np.arange(ROWS)))
    plain.train(1, progress=False)
    update = np.asarray(plain.table("w", np.arange(ROWS))) - first
    stages = [ball(1e3, heat, power), mean("uniform", heat, denominator=14)]
    wide = run_of(
        R.fedavg(model, optax.sgd(0.1), WORK, weights="uniform", stages=stages), people(), 1
    )
    moved = np.asarray(wide.table("w", np.arange(ROWS))) - first
    np.testing.assert_allclose(moved, update * 7 / 14, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("cohort", "power"),
    [
        pytest.param(
            cohort,
            power,
            marks=[] if (cohort, power) in ((4, 0.5), (0.01, 0.0)) else [pytest.mark.every],
            id=f"{'some' if cohort == 4 else 'nobody'}-{power}",
        )
        for cohort in (4, 0.01)
        for power in (0.0, 0.5, 1.0)
    ],
)
def test_noise_on_every_row(power: float, cohort: float) -> None:
    """Its standard deviation is z C c^(1 - a) / K on rows that are touched, held or nobody's, in
    rounds of no client, too; c is 1 for rows that nobody holds, and for dense leaves."""
    population, (clip, z, wide) = people(), (0.7, 1.5, 400)
    table = fs.Table(rows=ROWS + 2, fields="history", shape=(wide,))

    def loss(params: Any, batch: Any) -> Any:
        return (fs.lookup(params["w"], batch["history"]).sum((1, 2)) - batch["x"]) ** 2

    model = Model(lambda key: {"bias": jnp.zeros(wide)}, loss, {"w": table})
    heat, drawn = public(population, model), fs.sampling.poisson(cohort)
    noisy = central(clip, z, drawn, heat=heat, power=power)
    quiet = central(clip, 1e-12, drawn, heat=heat, power=power)
    runs = [
        run_of(
            R.fedavg(model, optax.sgd(0.1), WORK, weights="uniform", stages=s),
            population,
            1,
            sampler=drawn,
        )
        for s in (noisy, quiet)
    ]
    if cohort < 1:
        assert not len(runs[0].cohort(0))
    rows = np.arange(ROWS + 2)
    gap = np.asarray(runs[0].table("w", rows)) - np.asarray(runs[1].table("w", rows))
    c = heat.coefficient("w", rows, "uniform").astype(float)
    expected = z * clip * c ** (1 - power) / cohort
    np.testing.assert_allclose(gap.std(axis=1) / expected, 1, atol=5 / np.sqrt(2 * wide))
    dense = np.asarray(runs[0].params()["bias"]) - np.asarray(runs[1].params()["bias"])
    assert abs(dense.std() / (z * clip / cohort) - 1) < 5 / np.sqrt(2 * wide)
    assert abs(np.corrcoef(gap[0], gap[-1])[0, 1]) < 5 / np.sqrt(wide)


def test_rounds_differ_in_noise_and_a_run_goes_on_bit_for_bit(tmp_path: Any) -> None:
    stages = central(0.5, 1.0, POISSON, adapt=Adapt())
    method = R.fedavg(linear(), optax.sgd(0.1), WORK, weights="uniform", stages=stages)
    whole = run_of(method, people(), 4, sampler=POISSON)
    part = run_of(method, people(), 2, sampler=POISSON)
    part.save(tmp_path)
    again = run_of(method, people(), sampler=POISSON)
    again.restore(tmp_path)
    again.train(2, progress=False)
    assert state_bytes(again) == state_bytes(whole)


def test_an_adaptive_ball_finds_the_quantile() -> None:
    """Without noise to speak of C goes to a norm that half of the clients have."""
    sizes = np.array([0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 100.0], np.float32)
    model = Model(lambda key: {"v": jnp.zeros(1)}, lambda p, b: -p["v"][0] * b["x"])
    population = Population.from_arrays(np.arange(7), x=sizes)
    everybody = fs.sampling.poisson(7)
    stages = central(0.1, 1e-6, everybody, adapt=Adapt(rate=0.1), below=1e-3)
    method = R.fedavg(
        model, optax.sgd(1.0), fs.Work(steps=1, batch=1), weights="uniform", stages=stages
    )
    run = run_of(method, population, 400, sampler=everybody, stop_above=1e9)
    bound = float(run.store.state.stages[0]["bound"])
    assert 2.0 < bound < 3.4  # norms up to 3 are four of seven, up to 2 three


def test_the_adaptive_part_is_paid_for() -> None:
    """1 / z^2 = 1 / z_update^2 + 1 / (2 sigma_b)^2 (Andrew et al. 2021, theorem 1)."""
    stages = central(1.0, 1.0, fs.sampling.poisson(100), adapt=Adapt())
    total = Message({"w": jnp.zeros(200_000)}, jnp.zeros(()), None, {"below": jnp.zeros(())})
    noisy, _ = stages[-1].decode((), total, jax.random.key(0))
    expected = (1 - (2 * 5.0) ** -2) ** -0.5
    assert float(noisy.update["w"].std()) == pytest.approx(expected, rel=0.01)
    assert stages[-1].noise is not None
    assert stages[-1].noise.multiplier == 1.0
    with pytest.raises(InputError, match="must be above"):
        central(1.0, 1.0, POISSON, adapt=Adapt(), below=0.4)


# -- what is refused -------------------------------------------------------------------------------


def private(**more: Any) -> list[Stage]:
    return central(1.0, 1.0, POISSON, **more)


def population_heat() -> fs.Heat:
    return people().heat(linear())


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "weights by examples": (
        lambda: fs.algorithm(
            fs.client.sgd(linear(), optax.sgd(0.1)),
            [ball(1.0), mean("examples", denominator=4), private()[-1]],
            fs.server.optimize(),
        ),
        "weights='uniform'",
    ),
    "weights of the recipe": (
        lambda: R.fedavg(linear(), optax.sgd(0.1), WORK, stages=private()),
        "give it weights='uniform'",
    ),
    "a realised denominator": (
        lambda: fs.algorithm(
            fs.client.sgd(linear(), optax.sgd(0.1)),
            [ball(1.0), mean("uniform"), private()[-1]],
            fs.server.optimize(),
        ),
        "fixed denominator",
    ),
    "no ball": (
        lambda: fs.algorithm(
            fs.client.sgd(linear(), optax.sgd(0.1)),
            [fs.stage.clip(2.0), mean("uniform", denominator=4), private()[-1]],
            fs.server.optimize(),
        ),
        "right before the mean",
    ),
    "scaffold": (
        lambda: R.scaffold(
            linear(), 0.1, WORK, population=people(), weights="uniform", stages=private()
        ),
        "leave them out",
    ),
    "scaffold-heat": (
        lambda: R.scaffold_heat(
            linear(),
            0.1,
            WORK,
            population=heats.public(population_heat()),
            weights="uniform",
            stages=private(),
        ),
        "more than updates|same one",
    ),
    "fednova": (
        lambda: R.fednova(linear(), 0.1, WORK, weights="uniform", stages=private()),
        "more than updates",
    ),
    "afl": (
        lambda: R.afl(linear(), optax.sgd(0.1), WORK, stages=private()),
        "more than updates",
    ),
    "mimelite": (
        lambda: R.mimelite(linear(), optax.sgd(0.1), WORK, weights="uniform", stages=private()),
        "more than updates",
    ),
    "ifca": (
        lambda: R.ifca(
            linear(), optax.sgd(0.1), WORK, models=2, weights="uniform", stages=private()
        ),
        "more than updates",
    ),
    "fedexp": (
        lambda: R.fedexp(linear(), optax.sgd(0.1), WORK, weights="uniform", stages=private()),
        "more than",
    ),
    "mime": (
        lambda: R.mime(
            linear(),
            optax.sgd(0.1),
            WORK,
            heat=heats.public(population_heat()),
            weights="uniform",
            stages=private(),
        ),
        "not the heat|of one trip",
    ),
    "feddane": (
        lambda: R.feddane(
            linear(),
            optax.sgd(0.1),
            WORK,
            heat=(heat := heats.public(population_heat())),
            weights="uniform",
            stages=private(heat=heat),
        ),
        "of one trip",
    ),
    "a robust reduction": (
        lambda: R.fedavg(
            linear(),
            optax.sgd(0.1),
            WORK,
            weights="uniform",
            stages=private(),
            reduce=fs.reduce.median(),
        ),
        "reduce=sum",
    ),
    "exact heat in an earlier ball": (
        lambda: fs.algorithm(
            fs.client.sgd(linear(), optax.sgd(0.1)),
            [ball(1.0, population_heat()), *private()],
            fs.server.optimize(),
        ),
        "privacy.heat.estimate",
    ),
    "answers about rows": (
        lambda: R.fedavg(
            linear(),
            optax.sgd(0.1),
            WORK,
            weights="uniform",
            stages=[
                *private(),
                fs.stage.secure(7, answers=fs.types.Answers(0.9, 0.1, 0.9, 0.1), toward_zero=True),
            ],
        ),
        "leave answers out",
    ),
    "rounding at random": (
        lambda: R.fedavg(
            linear(),
            optax.sgd(0.1),
            WORK,
            weights="uniform",
            stages=[*private(), fs.stage.secure(7)],
        ),
        "toward_zero=True",
    ),
    "exact heat": (
        lambda: R.fedavg(
            linear(),
            optax.sgd(0.1),
            WORK,
            weights="uniform",
            stages=private(heat=population_heat()),
        ),
        "privacy.heat.estimate",
    ),
    "another heat": (
        lambda: R.fedsubavg(
            linear(),
            optax.sgd(0.1),
            WORK,
            heat=population_heat(),
            weights="uniform",
            stages=private(),
        ),
        "same one",
    ),
    "compression": (
        lambda: R.fedavg(
            linear(),
            optax.sgd(0.1),
            WORK,
            weights="uniform",
            stages=[fs.stage.compress(fs.stage.sign()), *private()],
        ),
        "not as codes",
    ),
    "weighted draws": (
        lambda: central(1.0, 1.0, fs.sampling.weighted(4)),
        "cannot be accounted for",
    ),
    "no noise": (lambda: central(1.0, 0.0, POISSON), "must be positive"),
    "no bound": (lambda: central(0.0, 1.0, POISSON), "must be positive"),
    "another power": (lambda: central(1.0, 1.0, POISSON, power=2.0), "from 0"),
    "another sampler": (
        lambda: run_of(
            R.fedavg(linear(), optax.sgd(0.1), WORK, weights="uniform", stages=private()),
            people(),
            sampler=fs.sampling.uniform(4),
        ),
        "accounted for poisson sampling of 4 clients, not for uniform",
    ),
    "touched rows": (
        lambda: run_of(
            R.fedavg(linear(), optax.sgd(0.1), WORK, weights="uniform", stages=private()),
            people(),
            sampler=POISSON,
            rows="touched",
        ),
        "would name them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(InputError, match=words):
        make()


def test_extras_of_parts_that_do_not_declare_them_are_found_when_traced() -> None:
    def run(offer: Any, memory: Any, data: Any, key: Any) -> Any:
        message, memory = local.run(offer, memory, data, key)
        return message._replace(extra={"gossip": message.weight}), memory

    local = fs.client.sgd(linear(), optax.sgd(0.1), WORK)
    method = fs.algorithm(local._replace(run=run), private(), fs.server.optimize())
    with pytest.raises(InputError, match="gossip beside their updates"):
        run_of(method, people(), sampler=POISSON)


def test_rounding_toward_zero_does_not_lengthen() -> None:
    """Numbers of an update in the ball, in few digits: no longer than before, and less than a unit
    off."""
    update = np.random.default_rng(0).normal(size=4000).astype(np.float32)
    update /= np.linalg.norm(update.astype(float)).astype(np.float32) * 1.0001
    report = fs.types.ClientReport(*[jnp.ones(())] * 4)
    message = Message({"w": jnp.asarray(update)}, jnp.ones(()), report)
    stage = fs.stage.secure(10**6, toward_zero=True)
    sent, _ = jax.jit(stage.encode)((), (), message, jax.random.key(0))
    back = np.asarray(jax.jit(stage.decode)({}, sent, jax.random.key(0))[0].update["w"])
    assert np.linalg.norm(back.astype(float)) <= np.linalg.norm(update.astype(float))
    assert np.abs(back - update).max() < 2.0**-10
    assert (back != 0).any()


def test_the_run_knows_how_many_clients_are_drawn_from() -> None:
    """Clients without data are never drawn, and do not make the others harder to find."""
    population = people().select(people().owners < 5)
    run = run_of(
        R.fedavg(
            linear(), optax.sgd(0.1), WORK, weights="uniform", stages=central(1.0, 0.3, POISSON)
        ),
        population,
        3,
        sampler=POISSON,
    )
    assert len(population) == 7
    assert run.spent() == fs.privacy.spent(run.algorithm, clients=5, rounds=3)
