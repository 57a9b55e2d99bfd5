"""Equinox modules as models: every ``eqx.nn.Embedding`` whose rows a column names is a table, the
rest dense.

    model = fs.equinox.model(module, loss, people)
"""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
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

Figure = Callable[[Any, Batch], Array]


def model(
    module: Any,
    loss: Figure,
    data: Population | Mapping[str, Any],
    *,
    metrics: Mapping[str, Figure] | None = None,
    dense: Collection[str] = (),
    local: tuple[str, ...] = (),
    noisy: bool = False,
    ranges: Mapping[str, int | range] | None = None,
) -> Model:
    """The model of an Equinox module, which starts from the module's arrays.

    ``loss(module, batch)`` gives one number for each example of ``batch``, a dict of arrays with
    the columns of ``data``.  Leaves are named after their place, ``"tower.layers.0.weight"``.  With
    ``noisy`` batches have a key ``step_key`` in training.  ``metrics``, ``dense``, ``local`` and
    ``ranges`` are those of :func:`fedslice.torch.model`.

    >>> import equinox as eqx
    >>> net = eqx.nn.Sequential([eqx.nn.Embedding(9, 4, key=jax.random.key(0)),
    ...                          eqx.nn.Linear(4, 1, key=jax.random.key(1))])
    >>> data = {"item": np.array([3, 1, 3]), "label": np.array([0.0, 1.0, 1.0])}
    >>> made = model(net, lambda net, b: (jax.vmap(net)(b["item"])[:, 0] - b["label"]) ** 2, data)
    >>> made.tables["layers.0.weight"].fields, sorted(made.init(None))
    (('item',), ['layers.1.bias', 'layers.1.weight'])
    """
    _equinox()
    leaves = {name: np.asarray(leaf) for name, leaf in _leaves(module).items()}
    if not leaves:
        raise InputError(f"{type(module).__name__} has no arrays of real numbers to train")

    def converted(figure: Figure) -> PerExample:
        return function(module, figure)

    figures: dict[str, PerExample | Metric] = {
        name: converted(figure) for name, figure in (metrics or {}).items()
    }
    options: dict[str, Any] = {"local": local, "noisy": noisy, "ranges": ranges or {}}
    return assembled(leaves, converted(loss), figures, columns_of(data), dense, **options)


def function(module: Any, figure: Figure) -> PerExample:
    """What ``figure(module, batch)`` computes, as a function of the model's parameters and a batch:
    for ``fs.metrics.auc``, and for predictions."""
    looking = _looking(module)
    return lambda params, batch: figure(_filled(looking, params), batch)


def trained(module: Any, run: Run) -> Any:
    """The module with the trained parameters of ``run``; rows that nobody held are as they were."""
    leaves = trained_leaves(run)
    return _filled(module, {name: jnp.asarray(leaf) for name, leaf in leaves.items()})


def _equinox() -> Any:
    try:
        import equinox
    except ImportError as error:
        raise InputError("this needs Equinox: pip install equinox") from error
    return equinox


def _leaves(module: Any) -> dict[str, Any]:
    """Arrays of real numbers, by their place."""
    eqx = _equinox()
    paths = jax.tree_util.tree_leaves_with_path(eqx.filter(module, eqx.is_inexact_array))
    return {_name(path): leaf for path, leaf in paths}


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _filled(module: Any, params: Params) -> Any:
    """The module with these arrays in place of its own."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: params.get(_name(path), leaf), module
    )


@lru_cache
def _kind() -> Any:
    eqx = _equinox()

    class Looking(eqx.nn.Embedding):  # type: ignore[misc,name-defined]
        """An embedding whose rows may be those of one client; padding looks up zeros."""

        def __call__(self, x: Any, *, key: Any = None) -> Any:
            return rows_of(self.weight, x)

    return Looking


def _looking(module: Any) -> Any:
    """The same module with embeddings that look rows up as ours do."""
    eqx = _equinox()

    def replaced(part: Any) -> Any:
        if not isinstance(part, eqx.nn.Embedding):
            return part
        other = object.__new__(_kind())
        for name, value in vars(part).items():
            object.__setattr__(other, name, value)
        return other

    return jax.tree.map(replaced, module, is_leaf=lambda x: isinstance(x, eqx.nn.Embedding))
