"""The trained model on a node: the global rows that it was sent, with what is its own.

    server   publish   ->  dense leaves, and rows of the tables with their ids
    node     its own:  local leaves rebuilt on its examples (``Client.adapt``: FedRecon)
                       or kept from its rounds (``Client.serve``: Ditto, FedPer)

What is its own never leaves the node, and predicting asks nobody.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from fedslice.data.population import Population
from fedslice.deploy.rows import put, take
from fedslice.deploy.training import Trainer
from fedslice.errors import InputError
from fedslice.model import Model
from fedslice.round.plan import Planner
from fedslice.round.store import PER_CLIENT
from fedslice.types import Adaptation, Array, Batch, Params, Phase

IDS, LEAF, SEED = "ids/", "leaf", "seed"


class Published(NamedTuple):
    """A global model: of tables the rows ``ids`` of each space, ascending; and the run's seed."""

    params: Params
    ids: Mapping[str, np.ndarray]
    seed: int


def pack(params: Params, ids: Mapping[str, np.ndarray], seed: int) -> bytes:
    """A model as the body of a letter."""
    arrays = {
        LEAF + jax.tree_util.keystr(path): np.asarray(leaf, order="C")
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
    }
    rows = {IDS + name: np.asarray(each, np.int64) for name, each in ids.items()}
    return save({**arrays, **rows, SEED: np.array(seed)})


def unpack(body: bytes, model: Model) -> Published:
    """The model in a letter, which must have the leaves of ``model`` and no others."""
    try:
        arrays = load(body)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"a model that cannot be read: {error}") from error
    seed = int(arrays.pop(SEED, np.array(0)))
    ids = {name: arrays.pop(IDS + name, np.zeros(0)) for name in model.spaces}
    for name, rows in ids.items():
        ascending = rows.dtype == np.int64 and rows.ndim == 1 and (np.diff(rows) > 0).all()
        if not ascending or not (0 <= rows.min(initial=0) <= rows.max(initial=0)):
            raise InputError(f"a model whose rows of {name!r} are not ascending ids")
        if rows.max(initial=0) >= model.tables[name].rows:
            raise InputError(f"a model with more rows of {name!r} than there are")
    like = jax.eval_shape(model.dense, jax.random.key(0))
    for name, table in model.tables.items():
        shape = len(ids[model.space_of[name]]), *table.shape
        like[name] = jax.ShapeDtypeStruct(shape, np.float32)
    paths, tree = jax.tree_util.tree_flatten_with_path(like)
    leaves = []
    for path, wanted in paths:
        found = arrays.pop(LEAF + jax.tree_util.keystr(path), None)
        if found is None or found.shape != wanted.shape or found.dtype != wanted.dtype:
            raise InputError(f"a model without the leaf {jax.tree_util.keystr(path)} of this one")
        leaves.append(found)
    if arrays:
        raise InputError(f"a model with leaves that this one does not have: {sorted(arrays)[:3]}")
    return Published(jax.tree.unflatten(tree, leaves), ids, seed)


class Served(NamedTuple):
    """A node's model: ``params`` with local leaves, of tables the rows ``ids`` of each space."""

    model: Model
    params: Params
    ids: Mapping[str, np.ndarray]

    def predict(self, output: Callable[[Params, Batch], Array], **columns: Any) -> np.ndarray:
        """``output(params, batch)`` for examples in ``columns``, with ids as in the data.

        Rows that the node was not sent are refused; below zero is padding, as ever.

        >>> from fedslice.model import Table
        >>> table = Table(rows=100, fields="item")
        >>> model = Model(lambda key: {}, lambda p, b: p["w"][b["item"]], {"w": table})
        >>> served = Served(model, {"w": np.array([5.0, 7.0])}, {"w": np.array([30, 40])})
        >>> served.predict(model.loss, item=[40, 30, 30]).tolist()
        [7.0, 5.0, 5.0]
        """
        batch: dict[str, Any] = {name: np.asarray(column) for name, column in columns.items()}
        for space, fields in self.model.spaces.items():
            for field in fields:
                if field in batch:
                    batch[field] = self._places(space, field, batch[field])
        return np.asarray(jax.jit(output)(self.params, batch))

    def figures(self, **columns: Any) -> dict[str, np.ndarray]:
        """The loss and the model's metrics, example by example."""
        return {
            name: self.predict(lambda p, b, each=each: each.values(p, b)[0], **columns)  # type: ignore[misc]
            for name, each in self.model.figures.items()
        }

    def measure(self, **columns: Any) -> dict[str, float]:
        """The loss and the model's metrics over all of these examples, as an evaluation has them.

        >>> from fedslice.metrics import root
        >>> loss = lambda params, batch: (params["c"] - batch["x"]) ** 2
        >>> model = Model(lambda key: {}, loss, metrics={"rmse": root(loss)})
        >>> round(Served(model, {"c": np.float32(1)}, {}).measure(x=[1.0, 3.0])["rmse"], 4)
        1.4142
        """
        found = {}
        for name, each in self.model.figures.items():
            left, right = (
                self.predict(lambda p, b, half=half, f=each: f.values(p, b)[half], **columns)  # type: ignore[misc]
                for half in (0, 1)
            )
            found[name] = float(each.figure(left, right))
        return found

    def _places(self, space: str, field: str, ids: np.ndarray) -> np.ndarray:
        known = self.ids[space]
        places = np.searchsorted(known, ids)
        missing = (ids >= 0) & (np.append(known, -1)[places] != ids)
        if missing.any():
            raise InputError(
                f"column {field!r} names row {int(ids[missing][0])}, which this node was not sent:"
                " publish the model with rows='all'"
            )
        return np.where(ids < 0, -1, places).astype(np.int32)


def of(trainer: Trainer, published: Published) -> Served:
    """A published model as a client serves it, with what is its own."""
    client = trainer.program.algorithm.client
    params = published.params
    if client.serve is not None:
        where = places_of(published, trainer.rows)
        tags = tags_of(client.model, params)
        mine = take(tags, params, where)
        memory = trainer.remembered(published.seed).value
        value = trainer.first(published.seed) if memory is None else memory
        drawer = {PER_CLIENT: np.int32(0), **{n: np.arange(k) for n, k in trainer.held.items()}}
        own = take(trainer.program.tags.memory, value, drawer)[0]
        key = jax.random.fold_in(jax.random.key(published.seed), trainer.number)
        params = merged(tags, params, where, client.serve(mine, own, key))
    elif client.adapt is not None:
        params = adapted(client.adapt, published, trainer.data)
    return Served(client.model, params, published.ids)


def adapted(way: Adaptation, published: Published, data: Population) -> Params:
    """The global model with what ``way`` makes of all of a client's examples."""
    model = way.model
    spaces, work = data.spaces(model), way.work._replace(part="all")
    fields, seed = model.fields(data.columns), published.seed
    planner = Planner(data, spaces, [work], seed, rows="held", memory=True, fields=fields)
    plan, _ = planner.plan(0, np.array([0]))
    held = {name: space.ids[space.slots] for name, space in spaces.items()}
    where = {
        name: np.append(places, len(published.ids[name]))[plan.own.held[name][0]]
        for name, places in places_of(published, held).items()
    }
    phases = jax.tree.map(lambda leaf: leaf[0], plan.own.phases)
    (phase,) = (Phase(p.batches, p.sizes, p.steps, p.steps, p.examples) for p in phases)
    key = jax.random.fold_in(jax.random.key(seed), int(data.numbers[0]))
    tags = tags_of(model, published.params)
    found = jax.jit(way.apply)(take(tags, published.params, where), phase, key)
    return merged(tags, published.params, where, found)


def places_of(published: Published, held: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Where a client's rows stand in a model that was sent to it."""
    places = {}
    for name, rows in held.items():
        known = published.ids[name]
        places[name] = np.searchsorted(known, rows)
        if (np.append(known, -1)[places[name]] != rows).any():
            raise InputError(f"the model that was sent lacks rows of {name!r} that this node holds")
    return places


def tags_of(model: Model, params: Params) -> dict[str, str]:
    """The space of each leaf that is a table, "" for the others."""
    return {name: model.space_of.get(name, "") for name in params}


def merged(
    tags: Mapping[str, str], params: Params, where: Mapping[str, Any], found: Params
) -> Params:
    """``found``, whose tables have a client's own rows, with the other rows of ``params``."""
    tables = {name: np.array(params[name]) for name, tag in tags.items() if tag}
    rows = {name: found[name] for name in tables}
    whole = put({name: tags[name] for name in tables}, tables, where, rows)
    return {**found, **whole}
