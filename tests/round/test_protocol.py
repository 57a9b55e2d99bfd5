"""Every recipe client by client, each alone with its own rows, through bytes: the same as in the
simulation, to the bit.

A ``Node`` is made of a population of one.  A ``Coordinator`` has the server's state and no data.
All that passes between them is bytes.
"""

from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from kinds import few
from laws import MODEL, RECIPES, avg, sampler_of
from problems import people, run_of

import fedslice as fs
from fedslice.data.population import Population
from fedslice.deploy import Coordinator, InProcess, Node, Program, columns_of, register
from fedslice.deploy.letter import FOUND, INVITE, NONE, Letter, unpack
from fedslice.deploy.rows import take
from fedslice.errors import InputError
from fedslice.round.store import PER_CLIENT, row_shapes
from fedslice.round.wire import Wire
from fedslice.simulation.run import Report, Run
from fedslice.types import Algorithm, Message

ROUNDS = 3
SEED = 5


def lazy_noise(model: fs.Model, population: fs.Population) -> Algorithm:
    """Noise that the server adds to the rows that are read."""
    heat = fs.privacy.heat.public(population.heat(model))
    parts = fs.privacy.lazy(1.0, 2.0, sampler_of("lazy-noise"), heat=heat, rounds=ROUNDS)
    return fs.algorithm(fs.client.sgd(model, optax.sgd(0.3), fs.Work(steps=3, batch=4)), *parts)


def matrix(key: jax.Array) -> dict[str, Any]:
    return {"bias": jnp.zeros(()), "matrix": 0.1 * jax.random.normal(key, (3, 4))}


def of_matrix(params: dict[str, Any], batch: dict[str, Any]) -> jax.Array:
    high = fs.lookup(params["w"], batch["history"]).sum(1) @ params["matrix"]
    return (jnp.sin(high).sum(-1) + params["bias"] - batch["x"]) ** 2


def low_rank(model: fs.Model, population: fs.Population) -> Algorithm:
    """Factors of a matrix, which the other recipes have none of."""
    table = replace(model.tables["w"], shape=(3,), init=jax.nn.initializers.normal(0.1))
    wide = fs.Model(matrix, of_matrix, {"w": table})
    return avg(stages=[fs.stage.compress(fs.stage.low_rank(1), feedback=True)])(wide, population)


# codes that no recipe has
CODES = {
    "low-rank": low_rank,
    "sign": avg(stages=[fs.stage.compress(fs.stage.sign(), feedback=True)]),
    "random": avg(stages=[fs.stage.compress(fs.stage.random(0.5))]),
}
METHODS = {**RECIPES, "lazy-noise": lazy_noise, **CODES}
NAMES = [name for name in METHODS if name != "central"]  # which no client ever runs
# of a recipe that is there with another option, too
AGAIN = {"fedavg", "fedavg-weighted", "fedsubavg", "fedsubavg-adam", "fedsgd", "fedexp"}
AGAIN |= {"fedrecon", "maml-full", "sign", "random"}


class Careful(Wire):
    """unpack(pack(m)) == m: every array of every leaf, for the rows that are sent."""

    @classmethod
    def put_into(cls, program: Program) -> None:
        program.wire.__class__ = cls
        shapes, spaces = program.shapes, list(program.shapes.spaces)
        if program.wire.message.codes or program.wire.found.codes:  # of several arrays each
            trees, _ = row_shapes(shapes.trees, spaces, partial(shapes.trees, still=True))
            sent = {"update": trees.message.update, **trees.message.extra}
            names = {True: jax.tree.leaves(trees.found), False: jax.tree.leaves(sent)}
        else:
            layouts = {True: program.wire.found, False: program.wire.message}
            names = {trip: [leaf.tag for leaf in lay.leaves] for trip, lay in layouts.items()}
        program.wire.names = names  # type: ignore[attr-defined]

    def pack_message(self, round: int, message: Message, rows: Any, ids: Any, survey: bool = False):
        data = super().pack_message(round, message, rows, ids, survey)
        most = {name: max(1, len(each)) for name, each in rows.items()}
        _, again, _ = self.unpack_message(data, most, survey)
        before, after = (
            each.update if survey else {"update": each.update, **each.extra}
            for each in (message, again)
        )
        leaves = self.names[survey], jax.tree.leaves(before), jax.tree.leaves(after)  # type: ignore[attr-defined]
        for name, left, right in zip(*leaves, strict=True):
            expected = np.asarray(left)[rows[name]] if name else np.asarray(left)
            found = np.asarray(right)[: len(rows[name])] if name else np.asarray(right)
            assert expected.dtype == found.dtype
            assert np.array_equal(expected, found)
        assert bits((message.weight, message.report)) == bits((again.weight, again.report))
        return data


class Scales(InProcess):
    """A link that weighs what the letters and replies of each exchange have in them."""

    def __init__(self, nodes: dict[str, Node]) -> None:
        super().__init__(nodes)
        self.down, self.up = 0, 0

    def exchange(self, letters: Any, deadline: float | None) -> dict[str, bytes]:
        replies = super().exchange(letters, deadline)
        for letter in map(unpack, letters.values()):
            # what was found names the invitation that it belongs to
            self.down += len(letter.body) - (len(NONE) if letter.kind == FOUND else 0)
        self.up += sum(len(unpack(reply).body) for reply in replies.values())
        return replies


@lru_cache(maxsize=1)
def method_of(name: str) -> Algorithm:
    """One and the same value for the run, the nodes and their coordinator: what its parts look like
    is traced once."""
    return METHODS[name](MODEL, people())


@lru_cache(maxsize=1)
def simulated(name: str) -> tuple[Run, list[Report]]:
    method, whole = method_of(name), people()
    # columns that the model reads: the nodes' data have others, which make no difference
    read = {column: whole.columns[column] for column in columns_of(MODEL, whole)}
    population = Population(read, whole.offsets, whole.clients)
    settings: dict[str, Any] = {"engine": "map", "threads": 1, "seed": SEED}
    run = run_of(method, population, sampler=sampler_of(name), **settings)
    return run, list(run.rounds(ROUNDS))


@lru_cache(maxsize=1)
def apart(name: str, home: Path) -> tuple[Coordinator, dict[str, Node], list[int], list[int]]:
    """The same rounds, on nodes and their coordinator; and the bytes of each, down and up."""
    (run, _), population, method = simulated(name), people(), method_of(name)
    program = Program(method, columns_of(method.client.model, population))
    Careful.put_into(program)
    nodes = {
        str(place): Node(program, population.subset(np.array([place])), home / str(place))
        for place in range(len(population))
    }
    link = Scales(nodes)
    schema = register(link, program.model)
    settings: dict[str, Any] = {"room": run.planner.capacity, "secret": SEED}
    server = Coordinator(program, schema, link, sampler=sampler_of(name), seed=SEED, **settings)
    down, up, met = [], [], set()
    for _ in range(ROUNDS):
        link.down = link.up = 0
        report = server.step()
        assert report.accepted
        assert report.counted == report.asked
        new = set(report.counted) - met if run.spaces else set()
        met |= new
        down.append(link.down)
        up.append(link.up + sum(len(program.wire.pack_slice(nodes[n].trainer.rows)) for n in new))
    server.tell()
    return server, nodes, down, up


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


ONCE = [name for name in NAMES if name not in AGAIN]
each_recipe = pytest.mark.parametrize("name", few(NAMES, *ONCE), scope="module")


@pytest.fixture(scope="module")
def home(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe's nodes."""
    return tmp_path_factory.mktemp(name)


@each_recipe
def test_clients_alone_through_bytes_are_the_simulation(name: str, home: Path) -> None:
    (run, _), (server, nodes, _, _) = simulated(name), apart(name, home)
    paths = jax.tree_util.tree_leaves_with_path(server.office.store.state)
    for (path, mine), theirs in zip(paths, jax.tree.leaves(run.store.state), strict=True):
        assert np.array_equal(mine, theirs), jax.tree_util.keystr(path)
    for i, node in enumerate(nodes.values()):
        if node.memory is None:
            continue  # never drawn, or it has none
        drawer = {PER_CLIENT: np.array([i])}
        for space, all_rows in run.spaces.items():
            drawer[space] = np.arange(all_rows.offsets[i], all_rows.offsets[i + 1])
        assert bits(node.memory) == bits(take(run.shapes.tags.memory, run.memory, drawer))


@each_recipe
def test_counted_bytes_are_packed_bytes(name: str, home: Path) -> None:
    (_, reports), (_, _, down, up) = simulated(name), apart(name, home)
    assert [report.bytes_down for report in reports] == down
    assert [report.bytes_up for report in reports] == up


def test_bytes_that_are_wrong_are_refused(tmp_path: Path) -> None:
    """Cut off, too long, of another kind, with rows that are not ascending or not there."""
    run, _ = simulated("fedavg-topk")
    server, nodes, _, _ = apart("fedavg-topk", tmp_path)
    wire, node = run.shapes.wire, nodes["3"]
    letter = server.office.invitation(0, node.trainer.rows)
    head = Letter(INVITE, 0, NONE, server.accepted.get("3", NONE), node.program.fingerprint, letter)
    answer = unpack(node.receive(head.pack())).body
    room = {name: run.planner.capacity[f"{name} rows"] for name in run.spaces}
    assert wire.unpack_message(answer, room)[0] == 0
    for cut in range(len(answer)):
        with pytest.raises(InputError):
            wire.unpack_message(answer[:cut], room)
    for cut in range(len(letter)):
        with pytest.raises(InputError):
            wire.unpack_invitation(letter[:cut], node.trainer.held)
    with pytest.raises(InputError, match="more than its leaves need"):
        wire.unpack_message(answer + b"x", room)
    with pytest.raises(InputError, match="no message of this version"):
        wire.unpack_message(b"what" + answer[4:], room)
    with pytest.raises(InputError, match="this client holds"):
        wire.unpack_invitation(letter, {"w": 1})
    ids = np.frombuffer(answer, "<u4", len(node.trainer.rows["w"]) and 2, 12).copy()
    for wrong in (ids[::-1], np.array([0, 10**6], "<u4")):
        with pytest.raises(InputError, match="not ascending ids below"):
            wire.unpack_message(answer[:12] + wrong.astype("<u4").tobytes() + answer[20:], room)
    with pytest.raises(InputError, match="too many"):
        wire.unpack_message(answer[:8] + np.uint32(10**6).tobytes() + answer[12:], room)
