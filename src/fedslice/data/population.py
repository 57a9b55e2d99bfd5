"""Clients' examples in columns with offsets: client i owns the rows ``offsets[i]:offsets[i + 1]``
of every column."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.data.columns import check, digest
from fedslice.data.derived import submodels
from fedslice.data.stored import Writer, opened, write
from fedslice.data.submodel import Submodels, index
from fedslice.errors import InputError, nearest
from fedslice.heat import Heat
from fedslice.model import Model


@dataclass(frozen=True, eq=False)
class Population:
    """Clients and their data; nothing is copied when it is split or sampled more than needed.

    ``names`` keeps, for a field of ids, what each id was called in the user's data.  ``numbers`` is
    what the randomness of each client hangs on: its batches, halves and keys.  By default it is the
    client's place; it stays with the client, so that one alone draws as it would among all.

    One that is larger than memory is written to a folder, ``write`` or ``writer``, and opened from
    there: its columns are mapped, and the rows that clients hold are kept beside them.  ``home`` is
    that folder, ``digest`` the hash of what it holds.

    >>> people = Population.from_arrays([7, 7, 9], item=[0, 2, 2], label=[1.0, 0.0, 1.0])
    >>> len(people), people.examples, people.counts.tolist()
    (2, 3, [2, 1])
    """

    columns: Mapping[str, np.ndarray]
    offsets: np.ndarray
    clients: np.ndarray  # the users' own names of the clients
    names: Mapping[str, np.ndarray] = field(default_factory=dict)
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    home: Path | None = None
    digest: str = ""

    def __post_init__(self) -> None:
        if not len(self.numbers):
            object.__setattr__(self, "numbers", np.arange(len(self.clients)))
            return
        if len(self.numbers) != len(self.clients) or len(np.unique(self.numbers)) != len(self):
            raise InputError(
                f"{len(self.clients)} clients need as many different numbers, got {self.numbers}"
            )
        if len(self) and not (self.numbers.min() >= 0 and self.numbers.max() < 2**31):
            raise InputError("the clients' numbers must be from 0 to 2^31 - 1")

    @classmethod
    def from_arrays(
        cls, client: Any, names: Mapping[str, np.ndarray] | None = None, /, **columns: Any
    ) -> "Population":
        """From an array of client names or numbers and columns of the same length, in any order."""
        owner = np.asarray(client)
        arrays = {name: np.asarray(column) for name, column in columns.items()}
        check(owner, arrays)
        if owner.dtype.kind in "iu" and np.all(owner[1:] >= owner[:-1]):
            first = (
                np.flatnonzero(np.append(True, owner[1:] != owner[:-1]))
                if len(owner)
                else np.zeros(0, np.int64)
            )
            clients, order = owner[first], None
        else:
            clients, code = np.unique(owner, return_inverse=True)
            order = np.argsort(code, kind="stable")
            first = np.searchsorted(code[order], np.arange(len(clients)))
        offsets = np.append(first, len(owner)).astype(np.int64)
        sorted_columns = {k: v if order is None else v[order] for k, v in arrays.items()}
        return cls(sorted_columns, offsets, clients, dict(names or {}))

    @classmethod
    def open(cls, folder: str | Path) -> "Population":
        """One that was written to ``folder``: its columns stay there, and are read as needed.

        >>> folder = getfixture("tmp_path") / "people"
        >>> Population.from_arrays([7, 7, 9], item=[0, 2, 2]).write(folder)
        >>> Population.open(folder).columns["item"].tolist()
        [0, 2, 2]
        """
        return cls(**opened(folder)._asdict())

    def write(self, folder: str | Path) -> None:
        """Into a new folder, for :meth:`open`."""
        columns = dict(self.columns)
        write(folder, columns, self.offsets, self.clients, self.names, self.numbers)

    @staticmethod
    def writer(folder: str | Path, names: Mapping[str, np.ndarray] | None = None) -> Writer:
        """For what does not fit into memory: ``with Population.writer(folder) as writer:`` and
        ``writer.add(client, **columns)`` with some examples at a time, sorted by client."""
        return Writer(folder, names)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def examples(self) -> int:
        """Number of examples of all clients together."""
        return int(self.offsets[-1])

    @cached_property
    def counts(self) -> np.ndarray:
        """|D_i|: examples of each client."""
        return np.diff(self.offsets)

    @cached_property
    def owners(self) -> np.ndarray:
        """The client of each example."""
        return np.repeat(np.arange(len(self), dtype=np.int32), self.counts)

    @cached_property
    def content(self) -> str:
        """A short hash of all of the clients' data, and of the names of its rows."""
        return self.digest or digest(self.columns, self.offsets, self.names)

    @cached_property
    def _indexes(self) -> dict[tuple[tuple[str, ...], int], Submodels]:
        return {}

    @cached_property
    def _masses(self) -> dict[tuple[tuple[str, ...], int], np.ndarray]:
        """Heat that is kept beside the columns."""
        return {}

    def submodels(self, fields: Sequence[str], rows: int) -> Submodels:
        """S(i) of every client for a table of ``rows`` rows that ``fields`` index (computed once,
        then kept).

        Where all is padding, row 0 stands in, held by nobody: no table is without rows, which JAX
        cannot read from.
        """
        key = (tuple(fields), rows)
        if key not in self._indexes:
            missing = [name for name in fields if name not in self.columns]
            if missing:
                raise InputError(f"the data has no column {missing}; it has {sorted(self.columns)}")
            columns = {name: self.columns[name] for name in fields}
            if self.home is None:
                found = index(columns, self.offsets, rows)
            else:
                found, mass = submodels(self.home, self.digest, columns, self.offsets, rows)
                self._masses[key] = mass
            self._indexes[key] = (
                found if len(found.ids) else found._replace(ids=np.zeros(1, np.int64))
            )
        return self._indexes[key]

    def know(self, fields: Sequence[str], rows: int, found: Submodels) -> None:
        """S(i) of clients whose data are elsewhere, as they named it: :meth:`submodels` then gives
        it, and no column is looked at."""
        self._indexes[(tuple(fields), rows)] = found

    def spaces(self, model: Model) -> dict[str, Submodels]:
        """The submodels of each index space of ``model``."""
        return {
            name: self.submodels(fields, model.tables[name].rows)
            for name, fields in model.spaces.items()
        }

    def shared(self, model: Model) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        """For each index space of ``model`` what tells of slots whether several clients hold them.

        >>> from fedslice import Table
        >>> tables = {"w": Table(rows=9, fields="item")}
        >>> model = Model(lambda key: {}, lambda p, b: p["w"][b["item"]], tables)
        >>> people = Population.from_arrays([0, 0, 1], item=[3, 5, 5])
        >>> people.shared(model)["w"](np.array([0, 1])).tolist()
        [False, True]
        """

        def of(name: str, space: Submodels) -> Callable[[np.ndarray], np.ndarray]:
            kept = self._masses.get((model.tables[name].fields, model.tables[name].rows))
            if kept is not None and len(kept):
                return lambda slots: np.asarray(kept[slots, 0] > 1)
            several = np.bincount(space.slots, minlength=len(space.ids)) > 1
            return lambda slots: np.asarray(several[slots])

        return {name: of(name, space) for name, space in self.spaces(model).items()}

    def heat(self, model: Model, counts: np.ndarray | None = None) -> Heat:
        """How many clients, and how many of their examples, stand behind each row of the model's
        tables.

        ``counts``: how many examples each client counts for, where those are not all that it has
        here (its query examples alone); a client that counts for none takes no part.
        """
        spaces = self.spaces(model)
        weight = self.counts if counts is None else np.where(self.counts > 0, counts, 0)
        ids, masses = {}, {}
        for name, space in model.space_of.items():
            kept = self._masses.get((model.tables[space].fields, model.tables[space].rows))
            if kept is not None and counts is None:  # all that is held, as it is mapped
                ids[name], masses[name] = spaces[space].ids[: len(kept)], kept
                continue
            mass = spaces[space].heat(weight)
            some = mass[:, 0] > 0
            ids[name], masses[name] = spaces[space].ids[some], mass[some]
        widths = {name: int(np.prod(table.shape)) for name, table in model.tables.items()}
        rows = {name: table.rows for name, table in model.tables.items()}
        fields = {name: table.fields for name, table in model.tables.items()}
        dense = jax.tree.leaves(jax.eval_shape(model.dense, jax.random.key(0)))
        numbers = sum(int(np.prod(leaf.shape)) for leaf in dense)
        return Heat(
            int(np.sum(weight > 0)), float(weight.sum()), ids, masses, widths, numbers, rows, fields
        )

    def select(self, keep: np.ndarray) -> "Population":
        """The examples where ``keep`` is true; a client that loses all of them stays, empty."""
        counts = np.bincount(self.owners[keep], minlength=len(self))
        columns = {name: column[keep] for name, column in self.columns.items()}
        offsets = np.append(0, np.cumsum(counts))
        return Population(columns, offsets, self.clients, self.names, self.numbers)

    def subset(self, clients: np.ndarray) -> "Population":
        """Only these clients, by number, in ascending order."""
        some = np.zeros(len(self), bool)
        some[clients] = True
        chosen = np.flatnonzero(some)
        counts = self.counts[chosen]
        offsets = np.append(0, np.cumsum(counts))
        which = np.repeat(self.offsets[:-1][chosen] - offsets[:-1], counts) + np.arange(offsets[-1])
        columns = {name: column[which] for name, column in self.columns.items()}
        return Population(columns, offsets, self.clients[chosen], self.names, self.numbers[chosen])

    def renumbered(self) -> "Population":
        """A population of its own: its clients' numbers are their places in it.

        >>> people = Population.from_arrays([7, 8, 9], x=[1.0, 2.0, 3.0]).subset(np.array([1, 2]))
        >>> people.numbers.tolist(), people.renumbered().numbers.tolist()
        ([1, 2], [0, 1])
        """
        return Population(self.columns, self.offsets, self.clients, self.names)

    def split(
        self,
        *,
        clients: float | None = None,
        examples: float | None = None,
        time: str | None = None,
        at: Any = None,
        seed: int = 0,
    ) -> tuple["Population", "Population"]:
        """(train, test).  ``clients=0.1`` holds out a tenth of the clients, and numbers both anew;
        ``examples=0.2`` a random fifth of all examples, whoever owns them; ``time="column"`` with
        ``at=`` puts what is later than ``at`` into the test set, or with ``examples=`` each
        client's latest share.
        ``at`` is a number, or a moment (a datetime, a pandas or NumPy time stamp, "2013-11-21
        12:00"; UTC unless it says otherwise) for a column of seconds since 1970."""
        for name, share in (("clients", clients), ("examples", examples)):
            if share is not None and not 0 < share < 1:
                raise InputError(f"{name}={share} must be a share between 0 and 1")
        rng = np.random.default_rng(seed)
        if clients is not None and examples is None and time is None:
            if len(self) < 2:
                raise InputError("holding out clients needs at least two of them")
            held = min(max(1, round(clients * len(self))), len(self) - 1)
            test = rng.permutation(len(self))[:held]
            train = np.setdiff1d(np.arange(len(self)), test)
            return self.subset(train).renumbered(), self.subset(test).renumbered()
        if clients is None and time is None and examples is not None:
            late = np.zeros(self.examples, bool)
            late[rng.permutation(self.examples)[: round(examples * self.examples)]] = True
        elif clients is None and time is not None and (at is None) != (examples is None):
            late = self._later(time, at, examples)
        else:
            raise InputError(
                "give one of clients=, examples=, time= with at=, or time= with examples="
            )
        for name, empty in (("training", late.all()), ("test", not late.any())):
            if empty:
                span = (
                    f"; {time!r} goes from {self.columns[time].min()} to {self.columns[time].max()}"
                    if time
                    else ""
                )
                raise InputError(
                    f"this split leaves the {name} set without examples{span}: split otherwise"
                )
        return self.select(~late), self.select(late)

    def _later(self, time: str, at: Any, share: float | None) -> np.ndarray:
        if time not in self.columns:
            wanted = nearest(time, sorted(self.columns))
            raise InputError(f"there is no column {time!r} to split by; {wanted}")
        stamps = self.columns[time]
        if at is not None:
            return np.asarray(stamps > _moment(at))
        order = np.lexsort((stamps, self.owners))
        rank = np.empty(self.examples, np.int64)
        rank[order] = np.arange(self.examples) - self.offsets[self.owners]
        return np.asarray(
            rank >= self.counts[self.owners] - np.floor(share * self.counts)[self.owners]
        )

    def sample(self, examples: int, seed: int = 0) -> "Population":
        """At most this many random examples, for measuring a loss cheaply.  Clients without any are
        left out."""
        rng = np.random.default_rng(seed)
        if self.home is None:
            drawn = rng.permutation(self.examples)[:examples]
        else:  # a permutation of all may not fit into memory
            drawn = rng.choice(self.examples, min(examples, self.examples), replace=False)
        which = np.sort(drawn)
        owners = np.searchsorted(self.offsets, which, side="right") - 1
        chosen, counts = np.unique(owners, return_counts=True)
        columns = {name: column[which] for name, column in self.columns.items()}
        offsets = np.append(0, np.cumsum(counts))
        return Population(columns, offsets, self.clients[chosen], self.names, self.numbers[chosen])

    def pool(self) -> "Population":
        """All examples at one client: what training without federation would see."""
        return Population(
            self.columns, np.array([0, self.examples]), np.array(["pooled"]), self.names
        )

    def summary(self, model: Model) -> dict[str, float]:
        """Clients, examples, spread and heat in a few figures."""
        heat = self.heat(model)
        return {
            "clients": len(self),
            "examples": self.examples,
            "examples per client": float(self.counts.mean()) if len(self) else 0.0,
            "rows": sum(table.rows for table in model.tables.values()),
            "heat dispersion": heat.dispersion,
            "sparsity": heat.sparsity,
        }


def _moment(at: Any) -> float:
    """Seconds since 1970 of a moment in time, or the number given."""
    if isinstance(at, int | float | np.number):
        return float(at)
    if getattr(at, "tzinfo", None) is not None:
        return float(at.timestamp())
    try:
        moment = np.datetime64(at, "us")  # without a zone: UTC, as in the columns that frames makes
    except (ValueError, TypeError):
        moment = np.datetime64("NaT")
    if np.isnat(moment):
        raise InputError(
            f"at={at!r}: give a number, a datetime, or a text such as '2013-11-21 12:00'"
        )
    return float(moment.astype(np.int64)) / 1e6


def numeric(name: str, column: np.ndarray) -> np.ndarray:
    """A column as the model computes with it: 32-bit floats or integers."""
    if column.dtype.kind in "fb":
        return np.ascontiguousarray(column, np.float32)
    if column.size and (int(column.min()) < -(2**31) or int(column.max()) >= 2**31):
        raise InputError(
            f"column {name!r} has whole numbers beyond 32 bits, which models cannot compute with:"
            " rescale it"
        )
    return np.ascontiguousarray(column, np.int32)
