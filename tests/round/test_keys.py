"""Who draws from which key: no two draws of a round may be the same by accident."""

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.round.protocol import SERVER, Invitation, answer, conclude, key_of
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
