"""The seam between server and client: what is offered, answered, added up and concluded.

    server   invitation        = invite(state, rows of one client)
    client   message, memory   = answer(invitation, memory, data, key)      alone, with its own rows
    server   total             = gather(received messages)
             state             = conclude(state, total, key)

Pure functions over pytrees.  A simulation stacks clients and traces all of it into one program, a
worker maps ``answer`` over its part of a cohort, a device calls it once; between them messages
travel as bytes (:mod:`fedslice.round.wire`) or not at all.  An algorithm with a survey makes two
trips: ``look`` and ``find`` come before.
"""

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from fedslice.reduce.holders import expand
from fedslice.round.store import take
from fedslice.stage.averaging import scale
from fedslice.stage.clipping import norm
from fedslice.stage.codes import opened
from fedslice.types import Algorithm, Array, Client, Cohort, Data, Key, Message, PyTree, State

Memory: TypeAlias = tuple[PyTree, tuple[PyTree, ...]]
"""What a client keeps between its rounds: its client part's, and each stage's."""
SERVER = 0xFFFFFFFF  # the number that the server's own randomness hangs on; no client has it


class Invitation(NamedTuple):
    """What a client is told before it trains: the server's offer, and what each stage's client half
    needs, for its own rows."""

    offer: PyTree
    stages: tuple[PyTree, ...]


class Tags(NamedTuple):
    """Which leaves are row-shaped, for everything that moves between the store and a client."""

    state: State
    invitation: Invitation
    found: PyTree  # by the survey, and the update of its messages; () without a survey
    values: PyTree  # update and extra of a message, opened
    memory: Memory  # of the client part, and of each stage


class Stacked(NamedTuple):
    """Where the rows of the messages of a cohort belong: places among the round's rows of each
    space, and how many those are."""

    places: dict[str, Array]
    sizes: dict[str, int]


def key_of(key: Key, round: Array, number: Array | int) -> Key:
    """The key of one client, by its number, in one round; ``SERVER`` for the server's own."""
    return jax.random.fold_in(jax.random.fold_in(key, round), number)


# -- before training -------------------------------------------------------------------------------


def offered(algorithm: Algorithm, state: State) -> Invitation:
    """What clients are told, for all rows of the state."""
    stages = zip(algorithm.stages, state.stages, strict=True)
    return Invitation(
        algorithm.server.offer(state.server), tuple(stage.offer(own) for stage, own in stages)
    )


def invite(algorithm: Algorithm, tags: Tags, state: State, places: dict[str, Array]) -> Invitation:
    """The invitation of a client whose rows stand at ``places`` of the state's."""
    return take(tags.invitation, offered(algorithm, state), places)


def look(algorithm: Algorithm, invitation: Invitation, data: Data, key: Key) -> Message:
    """A client's message of the first trip, weighted as its update will be."""
    survey = surveyor(algorithm)
    message, _ = survey.run(invitation.offer, (), data_with_noise(survey, data, key), key)
    message = _guard(message._replace(extra={}), _sound(message._replace(extra={})))
    place = algorithm.stages.index(algorithm.mean)
    return algorithm.mean.encode(invitation.stages[place], (), message, key)[0]


def find(algorithm: Algorithm, tags: Tags, messages: Message, stacked: Stacked) -> PyTree:
    """What a survey found: of a row, the mean over the clients of the cohort that hold it.

    Heat is for the update that follows alone: corrected by it too, the survey would meet the same
    cohort twice, and E[update] be up to N/K times too large.
    """
    held = {
        name: jnp.broadcast_to(expand(messages.weight, rows), rows.shape)
        for name, rows in stacked.places.items()
    }
    spaces = {name: name for name in stacked.places}
    told = messages._replace(extra={"held": held})
    total = gather(algorithm, {"update": tags.found, "held": spaces}, told, stacked)

    def mean(tag: str, leaf: Array) -> Array:
        weight = total.extra["held"][tag] if tag else total.weight
        return leaf / expand(jnp.where(weight > 0, weight, 1), leaf)

    return jax.tree.map(mean, tags.found, total.update)


# -- a client, alone -------------------------------------------------------------------------------


def answer(
    algorithm: Algorithm,
    invitation: Invitation,
    found: PyTree,
    memory: Memory,
    data: Data,
    key: Key,
) -> tuple[Message, Memory]:
    """One client, from its invitation (and what the survey ``found``) to its encoded message, and
    what it remembers.  One whose message is not finite sends zeros of weight zero, says so, and
    remembers what it did before."""
    client = algorithm.client
    offer = invitation.offer if algorithm.survey is None else (invitation.offer, found)
    message, own = client.run(offer, memory[0], data_with_noise(client, data, key), key)
    trained, kept = message, []
    for place, stage in enumerate(algorithm.stages):
        stage_key = jax.random.fold_in(key, place + 1)
        given = invitation.stages[place], memory[1][place]
        message, left = stage.encode(*given, message, stage_key)
        kept.append(left)
    good = _sound(trained, message)
    after = (own, tuple(kept))
    remembered = jax.tree.map(lambda new, old: jnp.where(good, new, old), after, memory)
    return _guard(message, good), remembered


def shaken(algorithm: Algorithm, update: PyTree, key: Key) -> PyTree:
    """An update of all rows with the noise that its client adds by itself; where stages have none,
    as it is.  It comes after all else, so that zeros of a client that failed have it, too."""
    for place, stage in enumerate(algorithm.stages):
        if stage.own is not None:
            update = stage.own.add(update, jax.random.fold_in(key, place + 1))
    return update


def data_with_noise(client: Client, data: Data, key: Key) -> Data:
    """Data with keys for the noise in the loss, if the model has any."""
    if not client.model.noisy:
        return data
    noise = jax.random.fold_in(key, 0)  # stages use the numbers from 1
    phases = enumerate(data.phases)
    return data._replace(
        phases=tuple(p._replace(key=jax.random.fold_in(noise, place)) for place, p in phases)
    )


def _sound(*messages: Message) -> Array:
    """Whether all of some messages is finite: the loss too, for stages weigh by it, and a client
    that cannot score its own examples has learned nothing from them.  Leaves of one shape are
    looked at together, or this would be much of a small client's time."""
    finite: dict[tuple[int, ...], Array] = {}
    for leaf in jax.tree.leaves(messages):
        finite[leaf.shape] = finite.get(leaf.shape, True) & jnp.isfinite(leaf)
    return jnp.all(jnp.stack([jnp.all(each) for each in finite.values()]))


def _guard(message: Message, good: Array) -> Message:
    """A message that is not ``good`` becomes one of weight zero, and is counted."""
    clean: Message = jax.tree.map(lambda leaf: jnp.where(good, leaf, jnp.zeros_like(leaf)), message)
    return clean._replace(report=clean.report._replace(failed=1 - good.astype(jnp.float32)))


# -- the server ------------------------------------------------------------------------------------


def receive(message: Message, repeats: Array | None = None) -> Message:
    """A message as it is added up: codes are opened; one of a client that was drawn several times
    counts as if it had come so often."""
    message = message._replace(update=opened(message.update))
    if repeats is None:
        return message
    report = message.report._replace(examples=repeats * message.report.examples)
    return scale(message, repeats)._replace(weight=repeats * message.weight, report=report)


def gather(algorithm: Algorithm, tags: PyTree, messages: Message, stacked: Stacked) -> Message:
    """Stacked messages as one, in the order of the clients: their sum, or what stands for it."""
    values = {"update": messages.update, **messages.extra}
    cohort = Cohort(values, messages.weight, messages.report, tags, *stacked)
    total, weight = algorithm.reduce.apply(cohort)
    update = total.pop("update")
    return Message(update, weight, messages.report, total)


def conclude(
    algorithm: Algorithm, state: State, found: PyTree, total: Message, key: Key
) -> tuple[State, Array]:
    """The state after a round, and the norm of the aggregated update: stages decode from the wire
    to the learner, the server steps."""
    kept = []
    for place in reversed(range(len(algorithm.stages))):
        stage_key = jax.random.fold_in(key, place + 1)
        total, after = algorithm.stages[place].decode(state.stages[place], total, stage_key)
        kept.append(after)
    size = norm(total.update)
    if algorithm.survey is not None:
        total = total._replace(extra={**total.extra, "survey": found})
    server = algorithm.server.step(state.server, total, jax.random.fold_in(key, 0))
    return State(server, tuple(kept[::-1])), size


def surveyor(algorithm: Algorithm) -> Client:
    """The client part of the first trip, of an algorithm that has one."""
    assert algorithm.survey is not None
    return algorithm.survey
