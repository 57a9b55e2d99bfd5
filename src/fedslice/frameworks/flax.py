"""Flax modules as models: every ``Embed`` whose rows a column names is a table, the rest dense.

model = fs.flax.model(module, loss, people)
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.frameworks.assembly import assembled, columns_of, trained_leaves
from fedslice.frameworks.tables import rows_of
from fedslice.metrics import Metric, PerExample
from fedslice.model import Model
from fedslice.simulation.run import Run
from fedslice.types import Array, Batch, Params

Apply = Callable[..., Any]
Figure = Callable[[Apply, Batch], Array]
TABLE = "embedding"  # the leaf of an Embed


def model(
    module: Any,
    loss: Figure,
    data: Population | Mapping[str, Any],
    *,
    seed: int = 0,
    metrics: Mapping[str, Figure] | None = None,
    dense: Collection[str] = (),
    local: tuple[str, ...] = (),
    noisy: bool = False,
    ranges: Mapping[str, int | range] | None = None,
) -> Model:
    """The model of a ``flax.linen`` module, with first values drawn from ``seed``.

    ``loss(apply, batch)`` calls ``apply`` as it would the module and gives one number for each
    example of ``batch``, a dict of arrays with the columns of ``data``.  Leaves are named after
    their place, ``"Dense_0.kernel"``.  With ``noisy`` there is a key for dropout in training: a
    batch then has ``step_key``, so ``deterministic="step_key" not in batch`` tells training from
    evaluation.  ``metrics``, ``dense``, ``local`` and ``ranges`` are those of
    :func:`fedslice.torch.model`.

    >>> from flax import linen
    >>> data = {"item": np.array([3, 1, 3]), "label": np.array([0.0, 1.0, 1.0])}
    >>> net = linen.Sequential([linen.Embed(9, 4), linen.Dense(1)])
    >>> made = model(net, lambda net, b: (net(b["item"])[:, 0] - b["label"]) ** 2, data)
    >>> made.tables["layers_0.embedding"].fields, sorted(made.init(None))
    (('item',), ['layers_1.bias', 'layers_1.kernel'])
    """
    _check_kind(module)
    columns = columns_of(data)
    leaves = _first(module, loss, columns, seed)

    def converted(figure: Figure) -> PerExample:
        return lambda params, batch: figure(_bound(module, leaves, params, batch), batch)

    figures: dict[str, PerExample | Metric] = {
        name: converted(figure) for name, figure in (metrics or {}).items()
    }
    options: dict[str, Any] = {"local": local, "noisy": noisy, "ranges": ranges or {}}
    return assembled(leaves, converted(loss), figures, columns, dense, **options)


def function(module: Any, figure: Figure, data: Population | Mapping[str, Any]) -> PerExample:
    """What ``figure(apply, batch)`` computes, as a function of the model's parameters and a batch:
    for ``fs.metrics.auc``, and for predictions."""
    _check_kind(module)
    leaves = _first(module, figure, columns_of(data), 0)
    return lambda params, batch: figure(_bound(module, leaves, params, batch), batch)


def variables(run: Run) -> dict[str, Any]:
    """What was trained, for ``module.apply(variables(run), ...)``; rows that nobody held are as
    they were."""
    leaves = {name: jnp.asarray(leaf) for name, leaf in trained_leaves(run).items()}
    return {"params": _nested(leaves)}


def _check_kind(module: Any) -> None:
    try:
        from flax import linen
    except ImportError as error:
        raise InputError("this needs Flax: pip install flax") from error
    if not isinstance(module, linen.Module):
        raise InputError(
            f"give a module of flax.linen, got {type(module).__name__}: one of flax.nnx goes into a"
            " model by hand (docs/how-to/your-own-model.md)"
        )


def _first(
    module: Any, figure: Figure, columns: Mapping[str, np.ndarray], seed: int
) -> dict[str, np.ndarray]:
    """The leaves as the module makes them when the figure calls it."""
    made: list[Any] = []
    keys = dict(zip(("params", "dropout"), jax.random.split(jax.random.key(seed)), strict=True))

    def initial(*given: Any, **options: Any) -> Any:
        out, variables = module.init_with_output(keys, *given, **options)
        made.append(variables)
        return out

    batch = {
        name: jnp.asarray(np.asarray(column[:2]).astype(np.int32 if whole else np.float32))
        for name, column in columns.items()
        for whole in [column.dtype.kind in "iu"]
    }
    figure(initial, batch)
    if not made:
        raise InputError("the loss never calls the module, its first argument")
    if others := sorted(set(made[0]) - {"params"}):
        raise InputError(
            f"the module keeps {', '.join(others)} beside its parameters, as batch normalisation"
            " does: use GroupNorm or LayerNorm"
        )
    paths = jax.tree_util.tree_leaves_with_path(made[0]["params"])
    return {".".join(key.key for key in path): np.asarray(leaf) for path, leaf in paths}


def _nested(leaves: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path as Flax has them, in dicts in dicts."""
    tree: dict[str, Any] = {}
    for name, leaf in leaves.items():
        *path, last = name.split(".")
        place = tree
        for key in path:
            place = place.setdefault(key, {})
        place[last] = leaf
    return tree


def _bound(module: Any, leaves: Mapping[str, np.ndarray], params: Params, batch: Batch) -> Apply:
    """The module with these parameters.  Flax checks shapes, so a table that holds some rows is
    replaced by zeros of the size it knows, which nothing reads: embeddings look up our rows."""
    from flax import linen

    whole = {name: params[name].shape == first.shape for name, first in leaves.items()}
    tree = _nested(
        {
            name: params[name] if whole[name] else jnp.broadcast_to(0.0, first.shape)
            for name, first in leaves.items()
        }
    )

    def look(follow: Apply, args: Any, options: Any, context: Any) -> Any:
        if not isinstance(context.module, linen.Embed) or context.method_name != "__call__":
            return follow(*args, **options)
        ids = args[0] if args else options["inputs"]
        return rows_of(params[".".join((*context.module.path, TABLE))], ids)

    def apply(*given: Any, **options: Any) -> Any:
        keys = {"dropout": batch["step_key"]} if "step_key" in batch else {}
        with linen.intercept_methods(look):
            return module.apply({"params": tree}, *given, rngs=keys, **options)

    return apply
