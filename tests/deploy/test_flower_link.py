"""The link over Flower's grid, with a grid in this process: who is who, what is late or lost."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hidden import secure
from laws import MODEL, RECIPES
from nodes import SEED, bits, told
from problems import people, run_of

flwr = pytest.importorskip("flwr.app", reason="Flower is an extra: pip install 'fedslice[flower]'")

from flwr.app import Context, Error, Message, RecordDict  # noqa: E402
from flwr.proto.node_pb2 import NodeInfo  # noqa: E402
from flwr.supercore.task_identity import TaskIdentity  # noqa: E402

import fedslice as fs  # noqa: E402
from fedslice.deploy import letter as letters  # noqa: E402
from fedslice.deploy import own  # noqa: E402
from fedslice.deploy.flower import Flower, client_app  # noqa: E402
from fedslice.deploy.session import coordinate, reports, train  # noqa: E402
from fedslice.errors import InputError  # noqa: E402

Fault = Callable[[Message], Message | None]


@dataclass
class Grid:
    """SuperLink and SuperNodes in one: apps by the id of their node, which answer when messages are
    pulled; a fault may do that in their place."""

    apps: dict[int, tuple[Any, dict[str, Any]]]
    faults: dict[int, Fault] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    sent: dict[str, Message] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=each, name=self.names.get(each, "")) for each in self.apps]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"{len(self.asked)}"
            message.metadata.__dict__["_message_id"] = number
            self.sent[number] = message
            self.asked.append(message.metadata.message_type)
            numbers.append(number)
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        found = []
        for number in list(numbers):
            message = self.sent.get(number)
            if message is None:
                continue
            place = message.metadata.dst_node_id
            fault = self.faults.get(place) if message.metadata.message_type == "query" else None
            reply = fault(message) if fault else self._answer(place, message)
            if reply is not None:
                del self.sent[number]
                found.append(reply)
        return found

    def _answer(self, place: int, message: Message) -> Message:
        app, config = self.apps[place]
        context = Context(0, place, config, RecordDict(), {}, 0)
        return app(message, context)


@pytest.fixture(autouse=True)
def _task(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the process of a ServerApp has it."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


def echo() -> Any:
    app = client_app(lambda population: None)  # type: ignore[arg-type, return-value]
    app._registered_funcs["query.default"] = lambda message, context: Message(
        message.content, reply_to=message
    )
    return app


def grid_of(*names: str) -> Grid:
    return Grid({10 + place: (echo(), {"name": name}) for place, name in enumerate(names)})


def failing(code: int, reason: str = "") -> Fault:
    return lambda message: Message(Error(code, reason), reply_to=message)


def test_letters_go_to_nodes_by_their_own_names() -> None:
    grid = grid_of("ana", "ben")
    link = Flower(grid)
    assert link.nodes() == ["ana", "ben"]
    body = bytes(range(256)) * 3
    assert link.exchange({"ben": body, "ana": b"2"}, None) == {"ben": body, "ana": b"2"}
    assert grid.asked == ["query.who"] * 2 + ["query"] * 2  # names are asked for once


def test_who_does_not_answer_in_time_is_late_and_its_reply_is_never_read() -> None:
    grid = grid_of("ana", "ben")
    link = Flower(grid)
    grid.faults[11] = lambda message: None
    begin = time.monotonic()
    assert list(link.exchange({"ana": b"1", "ben": b"2"}, 0.3)) == ["ana"]
    assert time.monotonic() - begin >= 0.3
    grid.faults = {}  # the reply to the first letter is there now; nobody asks for it
    assert link.exchange({"ben": b"3"}, 5.0) == {"ben": b"3"}
    assert [message.metadata.dst_node_id for message in grid.sent.values()] == [11]


def test_crashes_are_told_and_those_away_are_not_waited_for() -> None:
    grid = grid_of("ana", "ben", "cy")
    grid.faults = {10: failing(2, "no\x1b module"), 11: failing(5, "Node Unavailable")}
    replies = Flower(grid).exchange(dict.fromkeys(("ana", "ben", "cy"), b"x"), None)
    assert set(replies) == {"ana", "cy"}
    refusal = letters.unpack(replies["ana"])
    assert refusal.kind == letters.REFUSED
    assert letters.reason(refusal.body) == "its app failed: no? module"
    grid.faults = {12: lambda message: Message(RecordDict(), reply_to=message)}
    assert Flower(grid).exchange({"cy": b"x"}, None) == {
        "cy": b""
    }  # no letter: it will be left out


def test_a_node_that_was_restarted_gets_its_letter_at_its_new_address(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fedslice.deploy.flower.LOOK", 0.0)
    grid = grid_of("ana", "ben")
    link = Flower(grid)
    link.nodes()

    def dies(message: Message) -> None:
        del grid.apps[11], grid.faults[11]
        grid.apps[99] = (echo(), {"name": "ben"})
        grid.faults[11] = lambda message: None

    grid.faults[11] = dies
    assert link.exchange({"ana": b"1", "ben": b"2"}, 30.0) == {"ana": b"1", "ben": b"2"}
    assert link.addresses == {"ana": 10, "ben": 99}
    assert "ben is there anew" in capsys.readouterr().err


def test_with_keys_names_are_those_of_the_operator() -> None:
    """What a node says of itself is not even asked, and a name has one key."""
    grid = grid_of("ana", "ana", "ana")
    grid.names = {10: "ana", 11: "ana"}
    link = Flower(grid, authenticated=True)
    assert link.nodes() == ["12", "ana"]
    assert link.addresses["ana"] == 10
    assert link.exchange({"ana": b"1"}, None) == {"ana": b"1"}
    assert grid.asked == ["query"]


@pytest.mark.parametrize("name", ["scaffold-2", pytest.param("fedrecon", marks=pytest.mark.every)])
def test_a_session_through_apps_is_the_simulation_and_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Registration, rounds, a second start from the folder, and a node that comes too late."""
    monkeypatch.setattr("fedslice.deploy.flower.compiled_in", lambda folder: None)
    population, recipe = people().subset(np.arange(3)), RECIPES[name]
    model = recipe(MODEL, population).client.model
    grid = Grid({})
    for place in range(len(population)):
        home = tmp_path / str(place)
        own.write(population.subset(np.array([place])), home / "data")
        app = client_app(lambda mine: recipe(MODEL, mine))
        grid.apps[place] = app, {"name": f"n{place}", "folder": str(home)}
    said: list[str] = []
    given: dict[str, Any] = {"folder": tmp_path / "server", "nodes": 3, "seed": SEED}
    given |= {"tell": said.append, "patience": 0.0}
    sampler = fs.sampling.full()

    def start() -> Any:
        return coordinate(Flower(grid), model, lambda p: recipe(MODEL, p), sampler, **given)

    with pytest.raises(InputError, match="0 of 3 nodes came"):
        coordinate(Flower(Grid({})), model, lambda p: recipe(MODEL, p), sampler, **given)
    list(train(start(), 2, said.append))
    grid.apps[3] = echo(), {"name": "late"}
    server = start()
    list(train(server, 3, said.append))
    assert [each.round for each in reports(tmp_path / "server")] == [1, 2, 3]
    assert sum("late came after the start of this run" in line for line in said) == 2
    run = run_of(
        recipe(MODEL, population),
        population,
        sampler=told([[*range(3)]] * 3),
        engine="map",
        threads=1,
        seed=SEED,
    )
    run.planner.capacity = dict(server.office.room)
    list(run.rounds(3))
    assert bits(server.office.store.state) == bits(run.store.state)


def test_a_node_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedslice.deploy.flower.compiled_in", lambda folder: None)
    app = client_app(lambda population: None)  # type: ignore[arg-type, return-value]
    grid = Grid({1: (app, {"name": "ana"}), 2: (app, {"name": "ben", "folder": str(tmp_path)})})
    replies = Flower(grid).exchange({"ana": b"x", "ben": b"x"}, None)
    why = {name: letters.reason(letters.unpack(reply).body) for name, reply in replies.items()}
    assert "this node has no folder" in why["ana"]
    assert "has no node's data" in why["ben"]


def test_what_a_node_fails_with_stays_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words of an error may be data: of a reader's own, and of data that do not fit a model whose
    rows are hidden."""
    monkeypatch.setattr("fedslice.deploy.flower.compiled_in", lambda folder: None)

    def reader(path: Path) -> fs.Population:
        raise KeyError("item 4711 of ana")

    beyond = {**people().columns, "history": np.full_like(people().columns["history"], 4711)}
    alone = fs.Population(beyond, people().offsets, people().clients).subset(np.array([2]))
    grid = Grid(
        {
            1: (client_app(lambda mine: secure(), reader), {"name": "ana"}),
            2: (client_app(lambda mine: secure(), lambda path: alone), {"name": "ben"}),
        }
    )
    for _, config in grid.apps.values():
        config["folder"] = str(tmp_path)
    replies = Flower(grid).exchange({"ana": b"x", "ben": b"x"}, None)
    why = {name: letters.reason(letters.unpack(reply).body) for name, reply in replies.items()}
    assert why["ana"] == "it failed with KeyError: its own log says more"
    assert why["ben"] == "its data do not fit the model: its own log says more"
    assert "4711" in capsys.readouterr().err
