"""Letters over Flower (flwr 1.41): a link on its grid for the server, an app for the nodes.

    ServerApp   Flower(grid).exchange(letters)      ->  SuperLink  ->  SuperNode
    ClientApp   node.receive(letter)                <-  a new process for every letter

A letter is one array of bytes, which Flower cuts into chunks.  Replies are pulled as they come; a
late one is to a message that nobody asks for any more.  Flower gives a SuperNode an id, which is
the same after a restart only if the node has a key (``authenticated``).  So nodes are known by
name: by the one under which their key was registered, or else by what they call themselves in
their ``--node-config``, and a restarted node that says its old name gets its old letters.
"""

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from fedslice.data.population import Population
from fedslice.deploy import letter as letters
from fedslice.deploy import own
from fedslice.deploy.letter import Letter
from fedslice.deploy.node import Node
from fedslice.errors import FedsliceError, InputError
from fedslice.privacy.heat import Response, Summed
from fedslice.types import Algorithm

MISSING = "Flower is not installed: pip install 'fedslice[flower]'"
BYTES, WHO, TEXT = "letter", "query.who", "name"
POLL = 0.1  # seconds between looks for replies
LOOK = 1.0  # and for nodes that came, or came back
WHOLE = ("number", "rounds")  # in a node's config
CRASHED = (1, 2, 8)  # Flower's codes: the app could not be loaded, raised, or died


class Grid(Protocol):
    """What is used of Flower's own grid, which a ServerApp is given."""

    def get_nodes(self) -> Iterable[Any]:
        """Who is there, with ``node_id`` and ``name``."""
        ...

    def push_messages(self, messages: Iterable[Any]) -> Iterable[str]:
        """Send, and give each message's number; an empty one could not be sent."""
        ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Any]:
        """The replies that are there to messages of these numbers."""
        ...


class Flower:
    """The nodes that a SuperLink knows, by name (see :class:`fedslice.deploy.Link`).

    A name belongs to whoever said it last: a node that was restarted.  With ``authenticated``,
    where the SuperLink lets only registered keys in, what nodes say is not asked.
    """

    def __init__(self, grid: Grid, *, authenticated: bool = False) -> None:
        self.grid, self.authenticated = grid, authenticated
        self.addresses: dict[str, int] = {}
        self._asked: dict[str, int] = {}  # who has not said its name yet, by message
        self._met: set[int] = set()
        self._looked = 0.0

    def nodes(self) -> Sequence[str]:
        """The names of those that are there and have said theirs."""
        self._meet(at_once=True)
        return sorted(self.addresses)

    def exchange(self, letters: Mapping[str, bytes], deadline: float | None) -> dict[str, bytes]:
        """Each letter to where its node is now; replies in the order in which they come.  Whom
        Flower knows to be away is not waited for."""
        end = None if deadline is None else time.monotonic() + deadline
        waiting: dict[str, str] = {}
        places: dict[str, int] = {}
        replies: dict[str, bytes] = {}
        lost: set[int] = set()
        while end is None or time.monotonic() < end:
            self._meet()
            moved = {
                name: self.addresses[name]
                for name in letters
                if name not in replies and self.addresses.get(name) not in (None, places.get(name))
            }
            left = None if end is None else max(1.0, end - time.monotonic())
            waiting |= self._send({name: letters[name] for name in moved}, moved, left)
            places |= moved
            for message in self._pull(waiting):
                name = waiting.pop(message.metadata.reply_to_message_id)
                reply = _reply(message)
                if reply is None:
                    lost.add(places[name])
                else:
                    replies.setdefault(name, reply)
            if all(name in replies or places.get(name) in lost for name in letters):
                break
            time.sleep(POLL)
        return replies

    def _send(
        self, bodies: Mapping[str, bytes], places: Mapping[str, int], ttl: float | None
    ) -> dict[str, str]:
        from flwr.app import Message

        if not bodies:
            return {}
        content = {name: _packed(body) for name, body in bodies.items()}
        messages = [Message(content[name], places[name], "query", ttl=ttl) for name in bodies]
        return dict(zip(self.grid.push_messages(messages), bodies, strict=False))

    def _pull(self, waiting: Iterable[str]) -> list[Any]:
        known = set(waiting)
        found = self.grid.pull_messages(known) if known else []
        return [each for each in found if each.metadata.reply_to_message_id in known]

    # -- who is there ------------------------------------------------------------------------------

    def _meet(self, at_once: bool = False) -> None:
        """Look who came, ask for names, and hear them; nobody is waited for."""
        if at_once or time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            infos = {info.node_id: info for info in self.grid.get_nodes()}
            new = [place for place in infos if place not in self._met]
            self._met |= set(new)
            if self.authenticated:
                named = [(infos[place].name or str(place), place) for place in new]
                self._name(named)
            elif new:
                self._ask(new)
        heard = []
        for message in self._pull(self._asked):
            place = self._asked.pop(message.metadata.reply_to_message_id)
            if not message.has_error() and TEXT in message.content.config_records:
                said = message.content.config_records[TEXT].get(TEXT)
                heard.append((letters.reason(str(said).encode()), place))
        self._name(heard)

    def _ask(self, places: Sequence[int]) -> None:
        from flwr.app import Message, RecordDict

        asked = [Message(RecordDict(), place, WHO) for place in places]
        self._asked |= dict(zip(self.grid.push_messages(asked), places, strict=False))

    def _name(self, named: Sequence[tuple[str, int]]) -> None:
        for name, place in named:
            if self.authenticated and name in self.addresses:
                print(f"two keys have the name {name!r}: the first one counts", file=sys.stderr)
                continue
            if name in self.addresses:
                print(f"{name} is there anew, or two nodes have this name", file=sys.stderr)
            self.addresses[name] = place


def _reply(message: Any) -> bytes | None:
    """The bytes of a reply; the words of a node that crashed; nothing, if Flower lost it."""
    if not message.has_error():
        return _unpacked(message)
    if message.error.code not in CRASHED:
        return None
    return _refusal(f"its app failed: {message.error.reason}")


def _refusal(why: str) -> bytes:
    nobody = letters.NONE, letters.NONE, "0" * 16
    return Letter(letters.REFUSED, 0, *nobody, why.encode()).pack()


def _packed(body: bytes) -> Any:
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({BYTES: ArrayRecord({BYTES: Array("uint8", (len(body),), "bytes", body)})})


def _unpacked(message: Any) -> bytes:
    record = message.content.array_records.get(BYTES)
    return b"" if record is None or BYTES not in record else record[BYTES].data


# -- a node ----------------------------------------------------------------------------------------


def client_app(
    algorithm: Callable[[Population], Algorithm],
    data: Callable[[Path], Population] = own.read,
    heat: Response | Summed | None = None,
) -> Any:
    """Flower's app for a node: ``algorithm`` from its own data, which ``data`` reads; ``heat`` is
    how it tells which rows it holds, where those are hidden.

    The node's ``--node-config`` says what it is called and where its things are:

        name="node-3" folder="/home/ana/fedslice" data="/home/ana/clicks.csv" number=3

    ``folder`` is for its memory and for compiled code; ``data`` is by default ``data`` in it, and
    ``number``, which its randomness hangs on, that of its data.  ``rounds=200`` is how often at all
    it takes part where rows are hidden; ``trial=true`` draws noise from the run's seed, which
    everybody knows, to compare it with a simulation.
    """
    try:
        from flwr.app import ConfigRecord, Context, Message, RecordDict
        from flwr.clientapp import ClientApp
    except ImportError as error:
        raise InputError(MISSING) from error
    app = ClientApp()

    @app.query("who")
    def who(message: Message, context: Context) -> Message:
        name = str(context.node_config.get(TEXT, context.node_id))
        return Message(RecordDict({TEXT: ConfigRecord({TEXT: name})}), reply_to=message)

    @app.query()
    def receive(message: Message, context: Context) -> Message:
        try:
            reply = _answer(context.node_config, _unpacked(message), algorithm, data, heat)
        except FedsliceError as error:
            reply = _refusal(str(error))
        except Exception as error:  # Flower would tell the server its words, which may be data
            traceback.print_exc()
            reply = _refusal(f"it failed with {type(error).__name__}: its own log says more")
        return Message(_packed(reply), reply_to=message)

    return app


def _answer(config: Mapping[str, Any], letter: bytes, *how: Any) -> bytes:
    """A node's reply; it is not made where its folder alone is enough."""
    kind, folder = letter[len(letters.MAGIC) : len(letters.MAGIC) + 1], config.get("folder")
    if kind == bytes([letters.TURN]) and folder is not None:
        from fedslice.deploy import light  # secure sums need what fedslice[privacy] brings

        if (said := light.reply(Path(str(folder)), letter)) is not None:
            return said
    return node(config, *how).receive(letter)


def node(
    config: Mapping[str, Any],
    algorithm: Callable[[Population], Algorithm],
    data: Callable[[Path], Population] = own.read,
    heat: Response | Summed | None = None,
) -> Node:
    """The node that a ``--node-config`` describes."""
    if "folder" not in config:
        raise InputError(
            "this node has no folder: start its SuperNode with --node-config"
            ' \'name="node-0" folder="/where/its/things/are"\''
        )
    folder = Path(str(config["folder"]))
    compiled_in(Path(str(config.get("compiled", folder / "compiled"))))
    mine = data(Path(str(config.get("data", folder / "data"))))
    number, rounds = (None if config.get(name) is None else int(config[name]) for name in WHOLE)
    trial, method = bool(config.get("trial", False)), algorithm(mine)
    try:
        return Node(method, mine, folder, number, heat=heat, rounds=rounds, trial=trial)
    except FedsliceError as error:
        if method.rows == "named":
            raise
        print(f"this node cannot start: {error}", file=sys.stderr)
        raise InputError("its data do not fit the model: its own log says more") from error


def compiled_in(folder: Path) -> None:
    """Keep what JAX compiles, however quickly it did, for the next process."""
    import jax

    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
