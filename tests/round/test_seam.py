"""The seam between server and client, one function at a time: who draws from which key, what
counts for how much, what is left out."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedslice as fs
from fedslice.round.engine import Engine
from fedslice.round.figures import summary
from fedslice.round.plan import Own, Shared
from fedslice.round.protocol import (
    SERVER,
    Invitation,
    Stacked,
    answer,
    conclude,
    find,
    key_of,
    look,
    receive,
)
from fedslice.round.steps import Traced
from fedslice.stage.codes import Steps
from fedslice.types import ClientReport, Data, Message, Phase, Stage, State


def data_of(key: Any) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_client_noise_stages_and_server_draw_from_keys_of_their_own() -> None:
    """Two phases with noise, three stages, the server's half of each, and its step: nine keys.  Nor
    does anybody draw from the key that the phases' noise is derived from."""
    seen: list[tuple[int, ...]] = []

    def run(offer: Any, memory: Any, data: Data, key: Any) -> tuple[Message, Any]:
        seen.extend(data_of(phase.key) for phase in data.phases)
        report = ClientReport(*[jnp.zeros(())] * 4)
        return Message({"b": jnp.ones(())}, jnp.ones(()), report), ()

    def encode(offer: Any, memory: Any, message: Message, key: Any) -> tuple[Message, Any]:
        seen.append(data_of(key))
        return message, ()

    def decode(state: Any, total: Message, key: Any) -> tuple[Message, Any]:
        seen.append(data_of(key))
        return total, state

    def step(state: Any, total: Message, key: Any) -> Any:
        seen.append(data_of(key))
        return state

    client = SimpleNamespace(run=run, model=SimpleNamespace(noisy=True))
    stages = [Stage(lambda params, rows: (), encode, decode)] * 3
    algorithm: Any = SimpleNamespace(
        client=client, survey=None, stages=stages, server=SimpleNamespace(step=step)
    )
    blank = Phase({}, jnp.zeros(1, jnp.int32), jnp.int32(0), jnp.int32(0), jnp.zeros(()))
    data = Data((blank, blank), jnp.zeros(()), jnp.int32(3))
    key, nothing = jax.random.key(0), ((), (), ())
    own, server = key_of(key, jnp.uint32(3), 5), key_of(key, jnp.uint32(3), SERVER)
    message, _ = answer(algorithm, Invitation((), nothing), (), ((), nothing), data, own)
    conclude(algorithm, State((), nothing), (), message, server)
    assert len(seen) == len(set(seen)) == 9
    assert not {data_of(own), data_of(jax.random.fold_in(own, 0)), data_of(server)} & set(seen)


def test_states_of_stages_stay_in_their_places() -> None:
    """Decoding goes from the wire to the learner, so the last stage comes first; each finds its own
    state, and leaves its own."""
    order: list[int] = []

    def stage(number: int) -> Stage:
        def decode(state: Any, total: Message, key: Any) -> tuple[Message, Any]:
            order.append(number)
            return total._replace(update={"b": 10 * total.update["b"] + number}), state + number

        return Stage(lambda params, rows: (), lambda o, m, message, key: (message, m), decode)

    algorithm: Any = SimpleNamespace(
        survey=None,
        stages=[stage(1), stage(2), stage(3)],
        server=SimpleNamespace(step=lambda state, total, key: total.update["b"]),
    )
    report = ClientReport(*[jnp.zeros(())] * 4)
    total = Message({"b": jnp.zeros(())}, jnp.ones(()), report)
    after, size = conclude(algorithm, State(0.0, (10, 20, 30)), (), total, jax.random.key(0))
    assert order == [3, 2, 1]
    assert after.stages == (11, 22, 33)
    assert float(after.server) == float(size) == 321


def test_rounds_clients_and_the_server_have_keys_of_their_own() -> None:
    """Clients' numbers go up to 2^31 - 1: the server's is none of them."""
    key = jax.random.key(1)
    assert SERVER >= 2**31
    keys = {
        data_of(key_of(key, jnp.uint32(round), number))
        for round in range(4)
        for number in (0, 1, 2, 3, 2**31 - 1, SERVER)
    }
    assert len(keys) == 24


def report(count: int | None = None, **told: Any) -> ClientReport:
    zero = jnp.zeros(() if count is None else count)
    return ClientReport(zero, zero, zero, zero)._replace(**told)


def test_a_message_of_a_client_that_was_drawn_three_times_counts_thrice() -> None:
    """Its update, what comes along, its weight and its examples; not its losses.  Codes are
    opened."""
    code = Steps(jnp.array([1, -1], jnp.int8), jnp.float32(2), 1)
    told = report(loss=jnp.float32(5), examples=jnp.float32(4))
    message = Message({"a": code}, jnp.float32(6), told, {"along": jnp.ones(2)})
    once, thrice = receive(message), receive(message, jnp.float32(3))
    assert once.update["a"].tolist() == [2, -2]
    assert (float(once.weight), float(once.report.examples)) == (6, 4)
    assert thrice.update["a"].tolist() == [6, -6]
    assert thrice.extra["along"].tolist() == [3, 3]
    assert (float(thrice.weight), float(thrice.report.examples)) == (18, 12)
    assert float(thrice.report.loss) == 5


def test_what_a_survey_finds_is_the_mean_over_those_who_hold_a_row() -> None:
    """Weights 1 and 3.  Both hold row 0: (1 2 + 3 6) / 4 = 5; the second one holds row 1: 7; nobody
    holds row 2; the third client came with nothing, which counts for nothing.  Dense: by all."""
    weight = jnp.array([1.0, 3.0, 0.0])
    places = {"w": jnp.array([[0, 3], [1, 0], [2, 0]])}
    rows = weight[:, None] * jnp.array([[2.0, 99.0], [7.0, 6.0], [50.0, 50.0]])
    update = {"w": rows, "b": weight * jnp.array([4.0, 8.0, 50.0])}
    algorithm: Any = SimpleNamespace(reduce=fs.reduce.total())
    tags: Any = SimpleNamespace(found={"w": "w", "b": ""})
    messages = Message(update, weight, report(3))
    found = find(algorithm, tags, messages, Stacked(places, {"w": 3}))
    np.testing.assert_allclose(found["w"], [5, 7, 0], rtol=1e-6)
    np.testing.assert_allclose(found["b"], 7, rtol=1e-6)


def test_a_survey_leaves_out_who_answers_with_what_is_not_finite() -> None:
    """And weighs as the update will be weighed; what comes along stays behind."""
    mean = fs.stage.mean("uniform")
    sent = {"good": 2.0, "bad": np.nan}
    for name, value in sent.items():

        def run(offer: Any, memory: Any, data: Any, key: Any, value: float = value) -> Any:
            along = {"along": jnp.float32(np.nan)}
            return Message({"b": jnp.float32(value)}, jnp.float32(5), report(), along), ()

        survey = SimpleNamespace(run=run, model=SimpleNamespace(noisy=False))
        algorithm: Any = SimpleNamespace(survey=survey, stages=[mean], mean=mean)
        data = Data((), jnp.zeros(()), jnp.int32(0))
        message = look(algorithm, Invitation((), ((),)), data, jax.random.key(0))
        found = (float(message.update["b"]), float(message.weight), float(message.report.failed))
        assert found == ((2, 1, 0) if name == "good" else (0, 0, 1))
        assert message.extra == {}


def test_losses_of_a_round_are_by_the_examples_gone_through() -> None:
    """(1 2 + 3 6) / 4 = 5; of a round of nobody they are zero."""
    told = report(2, loss=jnp.array([2.0, 6.0]), start_loss=jnp.array([4.0, 8.0]))
    some = summary(told._replace(examples=jnp.array([1.0, 3.0]), failed=jnp.ones(2)))
    assert {name: float(value) for name, value in some.items()} == {
        "loss": 5,
        "start_loss": 7,
        "failed": 2,
    }
    assert float(summary(report(2))["loss"]) == 0


def test_a_round_gives_keys_by_round_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's by its number, the server's by its own, both of the round."""
    nothing: Any = SimpleNamespace(values=None)
    traced = Traced(nothing, nothing, "vmap")
    key, shared = jax.random.key(2), Shared(jnp.uint32(3), {})
    client: Any = SimpleNamespace(number=jnp.uint32(5), weight=jnp.float32(4))
    data, own = traced._given(client, (), shared, key)
    assert data_of(own) == data_of(key_of(key, jnp.uint32(3), 5))
    assert (int(data.round), float(data.examples)) == (3, 4)
    seen: list[tuple[int, ...]] = []

    def concluding(algorithm: Any, working: Any, found: Any, total: Any, key: Any) -> Any:
        seen.append(data_of(key))
        return working, jnp.float32(7)

    monkeypatch.setattr("fedslice.round.protocol.gather", lambda *given: None)
    monkeypatch.setattr("fedslice.round.protocol.conclude", concluding)
    everybody: Any = SimpleNamespace(sent={}, places={})
    messages = Message({}, jnp.ones(2), report(2, failed=jnp.zeros(2)))
    _, figures = traced.finish((), (), messages, (), shared, everybody, key)
    assert seen == [data_of(key_of(key, jnp.uint32(3), SERVER))]
    assert float(figures.values[-1]) == 7


@pytest.mark.parametrize(
    ("clients", "threads", "unit", "size"), [(5, 2, 2, 4), (5, 2, 1, 3), (4, 1, 3, 6), (6, 3, 2, 2)]
)
def test_parts_are_whole_units_and_come_back_in_order(
    clients: int, threads: int, unit: int, size: int
) -> None:
    """The last client fills the last parts, and its copies are dropped."""
    engine: Any = Engine.__new__(Engine)
    engine.threads, engine.unit, engine.pool = threads, unit, None
    place = np.arange(clients, dtype=np.int32)
    own = Own(place, place, place, (), {}, {}, {})
    given: list[list[int]] = []

    def train(part: Own) -> jax.Array:
        given.append(np.asarray(part.place).tolist())
        return jnp.asarray(part.place) * 10

    found = engine.in_parts(train, own)
    assert [len(part) for part in given] == [size] * threads
    assert np.concatenate(given)[clients:].tolist() == [clients - 1] * (size * threads - clients)
    assert found.tolist() == (place * 10).tolist()
