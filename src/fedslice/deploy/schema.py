"""Who the nodes are, as they said once: all that a coordinator ever knows of their data.

A registration has a node's number, how many examples it has, what its columns are (kind and shape,
no values) and which rows it holds, S(i).  From those come the slots of the tables, heat, padded
sizes, and what a message of this node may weigh at most.  A node whose algorithm hides rows tells
its number, its columns, its key and whether it has any examples, and nothing else.
"""

import hashlib
import json
import secrets
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.data.submodel import Submodels
from fedslice.deploy.letter import LONGEST, NONE, REFUSED, REGISTER, REGISTERED, Letter, reason
from fedslice.deploy.letter import unpack as opened
from fedslice.deploy.link import Link
from fedslice.deploy.program import Columns
from fedslice.errors import InputError
from fedslice.files.sealed import load, seal
from fedslice.heat import Heat
from fedslice.model import Model
from fedslice.round.wire import Layout, Wire

NAME = "schema.safetensors"
ABOUT = 1 << 16  # bytes that a registration may take beside its rows
MOST_EXAMPLES = 10**6  # of a node, unless more are allowed


class Registered(NamedTuple):
    """One node: its number, its examples, the rows of each space that it holds, what it runs.  One
    that is ``hidden`` names no rows, of its examples only whether there are any, and for secure
    sums the public ``key`` by which other nodes know it."""

    number: int
    examples: int
    rows: Mapping[str, np.ndarray]
    program: str
    versions: str
    hidden: bool = False
    key: str = ""


class Schema:
    """The nodes of a run, by name in the order of their numbers; ``refused`` says who was not taken
    and why."""

    def __init__(
        self, columns: Columns, nodes: Mapping[str, Registered], refused: Mapping[str, str]
    ) -> None:
        self.columns = {name: (kind, tuple(shape)) for name, (kind, shape) in columns.items()}
        self.nodes = dict(sorted(nodes.items(), key=lambda item: item[1].number))
        self.refused = dict(refused)

    def population(self, model: Model) -> Population:
        """The nodes as a population with S(i) and numbers of examples, and without any data."""
        counts = np.array([node.examples for node in self.nodes.values()], np.int64)
        numbers = np.array([node.number for node in self.nodes.values()], np.int64)
        made = Population(
            {}, np.append(0, np.cumsum(counts)), np.array(list(self.nodes)), {}, numbers
        )
        for space, fields in model.spaces.items():
            held = [node.rows[space] for node in self.nodes.values()]
            every = np.concatenate(held) if held else np.zeros(0, np.int64)
            ids = np.unique(every)
            slots = np.searchsorted(ids, every).astype(np.int32)
            ends = np.append(0, np.cumsum([len(rows) for rows in held])).astype(np.int64)
            found = Submodels(ids if len(ids) else np.zeros(1, np.int64), slots, ends, {})
            made.know(fields, model.tables[space].rows, found)
        return made

    def heat(self, model: Model) -> Heat:
        """How many nodes, and how many of their examples, stand behind each row."""
        if silent := [name for name, node in self.nodes.items() if node.hidden]:
            raise InputError(
                f"{silent[0]!r} and others do not say which rows they hold: collect the heat from"
                " them privately, deploy.collect(link, schema, model, privacy.heat.symmetric(1.0))"
            )
        return self.population(model).heat(model)

    def fingerprint(self) -> str:
        """A short hash of all of it."""
        digest = hashlib.sha256(json.dumps(self._about(), sort_keys=True).encode())
        for name, rows in self._leaves().items():
            digest.update(f"{name} {len(rows)}".encode() + rows.tobytes())
        return digest.hexdigest()[:16]

    def write(self, folder: str | Path) -> None:
        """Keep it in ``folder``, so that a coordinator goes on with the nodes that it knows."""
        Path(folder).mkdir(parents=True, exist_ok=True)
        seal(Path(folder) / NAME, {"schema": self._about()}, self._leaves())

    @classmethod
    def read(cls, folder: str | Path) -> "Schema":
        """The one that was kept there."""
        about, leaves = load(Path(folder) / NAME)
        spaces, nodes = about["schema"]["spaces"], {}
        for place, (name, told) in enumerate(about["schema"]["nodes"]):
            rows = {space: leaves[f"{place} {space}"] for space in spaces}
            nodes[name] = Registered(told[0], told[1], rows, *told[2:])
        return cls(about["schema"]["columns"], nodes, about["schema"]["refused"])

    def _about(self) -> dict[str, Any]:
        some = next(iter(self.nodes.values()), None)
        return {
            "columns": {name: [kind, list(shape)] for name, (kind, shape) in self.columns.items()},
            "spaces": list(some.rows) if some else [],
            "nodes": [
                [name, [node.number, node.examples, *node[3:]]] for name, node in self.nodes.items()
            ],
            "refused": self.refused,
        }

    def _leaves(self) -> dict[str, np.ndarray]:
        return {
            f"{place} {space}": rows
            for place, node in enumerate(self.nodes.values())
            for space, rows in node.rows.items()
        }


def register(
    link: Link, model: Model, deadline: float | None = None, most: int = MOST_EXAMPLES
) -> Schema:
    """Ask all nodes who they are.  One whose words cannot be believed is refused, and named: bytes
    that are no registration, columns other than most nodes have, a number that another has too, or
    more than ``most`` examples, by which a node may weigh and all have to make room.

    >>> from fedslice.deploy import InProcess
    >>> from fedslice.tasks import quadratic
    >>> register(InProcess({}), quadratic.example1(clients=4).model).nodes
    {}
    """
    wire = _wire(model)
    letters, nonces = {}, {}
    for name in link.nodes():
        nonces[name] = secrets.token_bytes(len(NONE))
        letters[name] = Letter(REGISTER, 0, nonces[name], NONE, "0" * 16).pack()
    replies = link.exchange(letters, deadline)
    found: dict[str, tuple[str, Registered]] = {}
    refused = {name: "it did not answer in time" for name in letters if name not in replies}
    for name, reply in replies.items():
        try:
            found[name] = _read(reply, nonces[name], wire, most)
        except InputError as error:
            refused[name] = str(error)
    numbers = Counter(node.number for _, node in found.values())
    columns = Counter(said for said, _ in found.values())
    usual = columns.most_common(1)[0][0] if columns else "{}"
    nodes = {}
    for name, (said, node) in found.items():
        if numbers[node.number] > 1:
            refused[name] = f"another node has the number {node.number}, too: give each its own"
        elif said != usual:
            refused[name] = f"its columns are {said[:LONGEST]}, most nodes have {usual[:LONGEST]}"
        else:
            nodes[name] = node
    return Schema(json.loads(usual), nodes, refused)


def pack_registration(
    wire: Wire,
    number: int,
    examples: int,
    columns: Columns,
    versions: str,
    rows: Any,
    key: bytes = b"",
) -> bytes:
    """What a node says of itself; without ``rows`` none of them, and of its examples only whether
    it has any."""
    about = {
        "number": number,
        "examples": min(1, examples) if rows is None else examples,
        "columns": {name: [kind, list(shape)] for name, (kind, shape) in columns.items()},
        "versions": versions,
        "hidden": rows is None,
        "key": key.hex(),
    }
    text = json.dumps(about, sort_keys=True).encode()
    named = b"" if rows is None else wire.pack_slice(rows)
    return len(text).to_bytes(4, "little") + text + named


def _read(data: bytes, nonce: bytes, wire: Wire, most: int) -> tuple[str, Registered]:
    """The columns, as text, and the rest of a registration; refuses whatever is not one."""
    longest = ABOUT + wire.slice(wire.spaces)
    if len(data) > longest:
        raise InputError(f"a registration of {len(data):,} bytes, where {longest:,} are the most")
    letter = opened(data)
    if letter.kind == REFUSED:
        raise InputError(f"it refused: {reason(letter.body)}")
    if letter.kind != REGISTERED or letter.nonce != nonce:
        raise InputError("its reply is none to this letter: it came before, or is of another kind")
    size = int.from_bytes(letter.body[:4], "little")
    try:
        about = json.loads(letter.body[4 : 4 + size])
        number, examples = about["number"], about["examples"]
        columns, versions = about["columns"], about["versions"]
        hidden, key = about["hidden"], about["key"]
        if not (isinstance(number, int) and 0 <= number < 2**31):
            raise ValueError("a number that is none")
        if not (isinstance(examples, int) and 0 <= examples <= most):
            raise ValueError(f"{examples} examples, where {most:,} are the most")
        if not isinstance(versions, str) or not isinstance(hidden, bool):
            raise ValueError("versions that are no text, or nothing about rows")
        if len(bytes.fromhex(key)) not in (0, 32):
            raise ValueError("a key that is none")
        for kind, shape in columns.values():
            whole = all(isinstance(side, int) and 0 <= side < 2**31 for side in shape)
            if kind not in ("int", "float") or not whole or np.prod(shape, dtype=float) > 2**31:
                raise ValueError("a column that is none")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"its registration cannot be read: {error}") from error
    rows = {name: np.zeros(0, np.int64) for name in wire.spaces}
    if not hidden:
        rows = wire.unpack_slice(letter.body[4 + size :])
    said = json.dumps(columns, sort_keys=True)
    shown = reason(versions.encode("utf-8", "replace"))
    return said, Registered(number, examples, rows, letter.program, shown, hidden, key)


def _wire(model: Model) -> Wire:
    """Of slices alone."""
    nothing = Layout((), ())
    spaces = {name: model.tables[name].rows for name in model.spaces}
    return Wire(spaces, nothing, nothing, nothing, [])
