"""A model: dense leaves that everyone holds, tables of which a client holds a few rows, local
leaves that stay home."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, wraps
from inspect import signature
from typing import NamedTuple, ParamSpec, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.arrays import Array, Batch, Key, Params
from fedslice.errors import InputError
from fedslice.metrics import RISING, Metric, PerExample, mean

RowInit: TypeAlias = Callable[[Key, tuple[int, ...]], Array]
Given = ParamSpec("Given")


class Origin(NamedTuple):
    """Where a model comes from, as Python has it: a module, and the ``call`` of a function of it.

    >>> Origin("fedslice.tasks.logistic", "logistic", {"rows": 10}).call
    'logistic(rows=10)'
    """

    module: str
    function: str
    arguments: Mapping[str, object]

    @property
    def call(self) -> str:
        """What to write to have the same model."""
        given = [f"{name}={value!r}" for name, value in self.arguments.items()]
        return f"{self.function}({', '.join(given)})"


@dataclass(frozen=True)
class Table:
    """A leaf of ``rows`` rows, each of the given ``shape``, indexed by the batch ``fields``.

    ``init`` is called as a ``jax.nn.initializers`` function, once for each row with a key of its
    own, so a row's first value depends on (seed, table, row) alone.  With ``values``, an array of
    all rows such as one that was trained elsewhere, rows start from there.  Ids below zero in a
    field are padding and belong to no row; ``padding`` is a row that no id may name, because a
    module of another library has it for padding.

    >>> Table(rows=1000, shape=(16,), fields=("item", "history")).width
    16
    >>> known = np.arange(6, dtype=np.float32).reshape(3, 2)
    >>> Table(rows=3, shape=(2,), fields="item", values=known).make(None, np.array([2])).tolist()
    [[4.0, 5.0]]
    """

    rows: int
    fields: tuple[str, ...]
    shape: tuple[int, ...] = ()
    init: RowInit = jax.nn.initializers.zeros
    values: np.ndarray | None = field(default=None, repr=False, compare=False, kw_only=True)
    padding: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.fields, str):
            object.__setattr__(self, "fields", (self.fields,))
        if not 1 <= self.rows < 2**63 or not self.fields:
            raise InputError(
                f"a table needs at least one row, fewer than 2^63, and one batch field, got {self}"
            )
        if self.values is None:
            self._check_init()
        elif self.values.shape != (self.rows, *self.shape) or self.values.dtype != np.float32:
            raise InputError(
                f"the values of a table of {self.rows} rows of shape {tuple(self.shape)} must be a"
                f" float32 array of that form, got {self.values.dtype} {self.values.shape}"
            )

    def _check_init(self) -> None:
        try:
            made = jax.eval_shape(
                lambda key: self.init(key, tuple(self.shape)), jax.random.key(0)
            ).shape
        except (ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"a table's init makes one row at a time, here of shape {tuple(self.shape)}, and"
                f" this one cannot ({error}). Initialisers that look at the whole table, such as"
                " Glorot's, depend on its size: give their spread yourself,"
                " jax.nn.initializers.normal(stddev) or, for glorot_uniform, lambda key, shape:"
                " jax.random.uniform(key, shape, minval=-b, maxval=b) with b = sqrt(6 / (rows +"
                " width))"
            ) from error
        if made != tuple(self.shape):
            raise InputError(
                f"a table's init must make a row of shape {tuple(self.shape)}, this one makes"
                f" {made}"
            )

    @property
    def width(self) -> int:
        """Numbers in one row."""
        return int(np.prod(self.shape, dtype=np.int64))

    def make(self, key: Key, ids: np.ndarray) -> Array:
        """The first values of the rows ``ids``."""
        if self.values is not None:  # traces have more rows than small tables
            return jnp.asarray(self.values.take(ids, axis=0, mode="clip"))
        # few shapes: few compilations
        padded = np.zeros(1 << max(0, len(ids) - 1).bit_length(), np.int64)
        padded[: len(ids)] = ids
        parts = (part.astype(np.uint32) for part in (padded >> 32, padded & 0xFFFFFFFF))
        made = _row_maker(self.init, self.shape)(key, *parts)
        return jax.lax.slice_in_dim(made, 0, len(ids))


@lru_cache
def _row_maker(
    init: RowInit, shape: tuple[int, ...]
) -> Callable[[Key, np.ndarray, np.ndarray], Array]:
    """A compiled function from the two halves of row ids to the rows' first values."""

    def row(key: Key, high: Array, low: Array) -> Array:
        return init(jax.random.fold_in(jax.random.fold_in(key, high), low), shape)

    return jax.jit(jax.vmap(row, (None, 0, 0)))


@dataclass(frozen=True)
class Model:
    """What is trained.

    ``init(key)`` returns a dict with the dense and local leaves (any pytree behind each name);
    tables are declared, not initialised.  ``loss(params, batch)`` gives one loss for each example;
    in it ``params[table][batch[field]]`` looks rows up just as with a full table; where ids may be
    padding, :func:`lookup` does.  ``metrics`` are functions of the same form, averaged over
    examples, or values of :mod:`fedslice.metrics`.  In training the batches of a ``noisy`` model
    have a field ``step_key``, new in each step, for dropout and the like; in evaluation there is
    none. ``ranges`` says which whole numbers other fields may hold: 10 for classes 0 to 9,
    ``range(-1, 10)`` with padding.

    >>> model = Model(
    ...     init=lambda key: {"bias": jnp.zeros(())},
    ...     loss=lambda p, b: (p["weight"][b["item"]] + p["bias"] - b["label"]) ** 2,
    ...     tables={"weight": Table(rows=100, fields="item")},
    ... )
    >>> model.spaces
    {'weight': ('item',)}
    """

    init: Callable[[Key], Params]
    loss: Callable[[Params, Batch], Array]
    tables: Mapping[str, Table] = field(default_factory=dict)
    local: tuple[str, ...] = ()
    metrics: Mapping[str, PerExample | Metric] = field(default_factory=dict)
    noisy: bool = False
    ranges: Mapping[str, int | range] = field(default_factory=dict)
    # not of a copy with changes: that is another model
    origin: Origin | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.local, str):
            object.__setattr__(self, "local", (self.local,))
        for name, span in self.spans.items():
            if not isinstance(span, range) or span.step != 1 or not len(span):
                raise InputError(
                    f"ranges={{{name!r}: {span!r}}}: give a number of classes, or range(-1,"
                    " classes)"
                )
        leaves = jax.eval_shape(self.init, jax.random.key(0))
        if not isinstance(leaves, dict):
            raise InputError(
                f"init must return a dict of named leaves, got {type(leaves).__name__}"
            )
        names = set(leaves)
        if both := names & set(self.tables):
            raise InputError(
                f"init returns {sorted(both)}, declared as tables too: leave tables out of init"
            )
        if missing := set(self.local) - names:
            raise InputError(
                f"local names {sorted(missing)} are not among the leaves of init: {sorted(names)}"
            )
        owner: dict[str, tuple[str, ...]] = {}
        for table in self.tables.values():
            for field_name in table.fields:
                if owner.setdefault(field_name, table.fields) != table.fields:
                    raise InputError(
                        f"field {field_name!r} indexes tables with fields {owner[field_name]} and"
                        f" {table.fields}: give both tables the same fields, or the field under a"
                        " second name to one of them"
                    )
        sizes: dict[str, int] = {}
        for name, table in self.tables.items():
            if sizes.setdefault(self.space_of[name], table.rows) != table.rows:
                raise InputError(
                    f"tables indexed by {table.fields} must have equal numbers of rows"
                )

    @property
    def spans(self) -> dict[str, range]:
        """The declared ranges, from the lowest to before the highest number."""
        return {
            name: range(given) if isinstance(given, int) else given
            for name, given in self.ranges.items()
        }

    @cached_property
    def tried(self) -> set[str]:
        """Fields whose padding the model was seen to pass over (see
        :mod:`fedslice.data.compatibility`).  A mask is taken to be made of the ids themselves: one
        that is a column of its own is tried on the first population alone."""
        return set()

    @property
    def space_of(self) -> dict[str, str]:
        """For each table its *index space*: tables with the same fields share it, under the first
        one's name."""
        first: dict[tuple[str, ...], str] = {}
        return {name: first.setdefault(table.fields, name) for name, table in self.tables.items()}

    @property
    def spaces(self) -> dict[str, tuple[str, ...]]:
        """Each index space with the batch fields that index it."""
        return {space: self.tables[space].fields for space in dict.fromkeys(self.space_of.values())}

    def dense(self, key: Key) -> Params:
        """First values of the leaves that all clients share."""
        return {name: leaf for name, leaf in self.init(key).items() if name not in self.local}

    def fresh(self, key: Key) -> Params:
        """First values of the local leaves, drawn anew from ``key``."""
        return (
            {name: leaf for name, leaf in self.init(key).items() if name in self.local}
            if self.local
            else {}
        )

    def fields(self, columns: Mapping[str, np.ndarray]) -> set[str]:
        """The columns that loss and metrics use, found by tracing them: others are never gathered
        into batches."""
        key = tuple((name, c.shape[1:], c.dtype.kind) for name, c in columns.items())
        if key not in self._read:
            self._read[key] = self._traced_fields(columns)
        return set(self._read[key])

    @cached_property
    def _read(self) -> dict[tuple[object, ...], set[str]]:
        """What :meth:`fields` found: it is asked for every run and every evaluation."""
        return {}

    def _traced_fields(self, columns: Mapping[str, np.ndarray]) -> set[str]:
        seen = {name for table in self.tables.values() for name in table.fields}
        if missing := seen - set(columns):
            raise InputError(
                f"the model's tables are indexed by {sorted(missing)}, which the data has no"
                " column for"
            )
        batch = {
            name: jax.ShapeDtypeStruct(
                (1, *column.shape[1:]), jnp.int32 if column.dtype.kind in "iu" else jnp.float32
            )
            for name, column in columns.items()
        }
        tables = {
            name: jax.ShapeDtypeStruct((1, *table.shape), jnp.float32)
            for name, table in self.tables.items()
        }
        params = {**jax.eval_shape(self.init, jax.random.key(0)), **tables}

        try:
            jaxpr = jax.make_jaxpr(self.measure)(params, batch).jaxpr
        except KeyError as absent:
            raise InputError(
                f"{self._reader(params, batch)} reads {absent}, which is neither a leaf"
                f" ({sorted(params)}) nor a column ({sorted(columns)})"
            ) from None
        used = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
        used |= {id(variable) for variable in jaxpr.outvars}
        names = sorted(batch)  # jaxpr inputs: leaves of params, then the batch by name
        inputs = jaxpr.invars[len(jaxpr.invars) - len(names) :]
        return seen | {
            name for name, variable in zip(names, inputs, strict=True) if id(variable) in used
        }

    def _reader(self, params: Params, batch: Mapping[str, jax.ShapeDtypeStruct]) -> str:
        """Which figure looks for something that is not there."""
        for name, figure in self.figures.items():
            try:
                jax.eval_shape(figure.values, params, batch)
            except KeyError:
                return "the loss" if name == "loss" else f"the metric {name!r}"
        return "the model"

    @property
    def figures(self) -> dict[str, Metric]:
        """What is measured, by name: the loss, then the metrics."""
        plain = {"loss": self.loss, **self.metrics}
        return {
            name: f if isinstance(f, Metric) else mean(f, name in RISING)
            for name, f in plain.items()
        }

    def measure(self, params: Params, batch: Batch) -> dict[str, tuple[Array, Array]]:
        """The two numbers for each example from which every figure is made."""
        return {name: figure.values(params, batch) for name, figure in self.figures.items()}

    def params(self, key: Key, ids: Mapping[str, np.ndarray]) -> Params:
        """First values of all global leaves, the tables restricted to the rows ``ids`` of each
        space."""
        keys = {name: jax.random.fold_in(key, 1 + place) for place, name in enumerate(self.tables)}
        rows = {
            name: table.make(keys[name], ids[self.space_of[name]])
            for name, table in self.tables.items()
        }
        return {**self.dense(jax.random.fold_in(key, 0)), **rows}


def remembered(make: Callable[Given, Model]) -> Callable[Given, Model]:
    """A function whose models know their ``origin``: with it a program elsewhere, which has none of
    the data, makes the same one.

    >>> @remembered
    ... def constant(value: float) -> Model:
    ...     return Model(lambda key: {"c": jnp.full((), value)}, lambda p, b: p["c"] - b["x"])
    >>> constant(2.0).origin.call
    'constant(value=2.0)'
    """

    @wraps(make)
    def made(*args: Given.args, **kwargs: Given.kwargs) -> Model:
        model = make(*args, **kwargs)
        given = signature(make).bind(*args, **kwargs).arguments
        origin = Origin(make.__module__, make.__qualname__, given)
        object.__setattr__(model, "origin", origin)
        return model

    return made


def lookup(table: Array, ids: Array) -> Array:
    """Rows of ``table``, zeros where an id is padding (below zero).

    >>> lookup(jnp.array([1.0, 2.0]), jnp.array([1, -1])).tolist()
    [2.0, 0.0]
    """
    return table.at[jnp.where(ids < 0, table.shape[0], ids)].get(mode="fill", fill_value=0)
