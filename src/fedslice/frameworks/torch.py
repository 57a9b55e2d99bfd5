"""PyTorch modules as models: converted once into JAX, trained by the same compiled rounds, and
loaded back.

    model = fs.torch.model(module, loss, people)
    ...
    fs.torch.load(module, run)

The module's graph (``torch.export``) is gone through operator by operator, so that every recipe,
engine and deployment works as with a model written in JAX, at its speed; what cannot be converted
is named and refused.  Embeddings whose rows a column names are tables, all else is dense; frozen
parameters and buffers are constants.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from fedslice.data.compatibility import check_unnamed
from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.frameworks.assembly import Columns, assembled, columns_of, trained_leaves
from fedslice.metrics import Metric, PerExample
from fedslice.model import Model
from fedslice.simulation.run import Run
from fedslice.types import Array, Batch, Params

Data = Population | Mapping[str, Any]
Figure = Callable[[Any, dict[str, Any]], Any]  # of a module and a batch of tensors


def model(
    module: Any,
    loss: Figure,
    data: Data,
    *,
    metrics: Mapping[str, Figure | Metric] | None = None,
    dense: Collection[str] = (),
    local: tuple[str, ...] = (),
    ranges: Mapping[str, int | range] | None = None,
) -> Model:
    """The model of a ``torch.nn.Module``, which starts from the module's weights.

    ``loss(module, batch)`` is written in torch and gives one number for each example of ``batch``,
    a dict of tensors with the columns of ``data``: the population to train on, or arrays of that
    form.  ``metrics`` are functions of the same kind, or values of :mod:`fedslice.metrics` over
    :func:`function`.  Leaves have their names in the module, ``"item.weight"``.  ``dense`` names
    embeddings to hold whole, such as one of seven weekdays; ``local`` and ``ranges`` are those of
    :class:`fedslice.Model`.

    Padding is -1 in the data and looks up zeros, as the ``padding_idx`` of an embedding does: a
    module may compare ids with that number, and no id may be that number itself.  A module in
    training mode has its dropout, new in each step; batch normalisation is refused.
    """
    torch = _torch()
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"give a torch.nn.Module, got {type(module).__name__}")
    columns = columns_of(data)
    graph = _graph(module, loss, columns)
    leaves = {
        name: np.array(parameter.detach().cpu().numpy())
        for name, parameter in module.named_parameters()
        if parameter.requires_grad
    }
    figures: dict[str, PerExample | Metric] = {
        name: figure if isinstance(figure, Metric) else _graph(module, figure, columns)
        for name, figure in (metrics or {}).items()
    }

    def settle(loss: PerExample, tables: Collection[str]) -> PerExample:
        held = {name: place for name, place in graph.padding.items() if name not in tables}
        return _frozen(loss, held) if held else loss

    options: dict[str, Any] = {"local": local, "noisy": graph.noisy, "ranges": ranges or {}}
    found = assembled(leaves, graph, figures, columns, dense, settle, graph.padding, **options)
    graph.plain = set(columns) - {name for names in found.spaces.values() for name in names}
    return found


def function(module: Any, figure: Figure, data: Data) -> PerExample:
    """What ``figure(module, batch)`` computes in torch, as a function of the model's parameters and
    a batch of arrays: for metrics such as ``fs.metrics.auc``, and for predictions.

    ``function(module, lambda m, b: m(b["item"]), people)(run.params(), batch)``
    """
    return _graph(module, figure, columns_of(data))


def load(module: Any, run: Run) -> None:
    """Put the trained parameters of ``run`` into the ``module``, or into another one of its kind:
    rows that nobody held are as they were when the model was made."""
    torch, state = _torch(), module.state_dict()
    several = dict(module.named_parameters(remove_duplicate=False))
    for name, value in trained_leaves(run).items():
        if name not in several:
            raise InputError(f"the module has no parameter {name!r}: it has {sorted(several)}")
        own = several[name]
        if tuple(own.shape) != value.shape:
            raise InputError(
                f"{name!r} has the shape {tuple(own.shape)} in this module and {value.shape} in the"
                " run: load into a module of the same sizes"
            )
        for other, parameter in several.items():  # tied weights
            if parameter is own:
                state[other] = torch.from_numpy(value)
    module.load_state_dict(state)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InputError(
            "this needs PyTorch: pip install 'fedslice[torch]' (a build for CPUs alone is far"
            " smaller, and all that is needed)"
        ) from error
    return torch


def _graph(module: Any, figure: Figure, columns: Columns) -> Any:
    _torch()
    from fedslice.frameworks.graph import Graph

    graph = Graph(module, figure, columns)
    for name, row in graph.unnamed:
        check_unnamed(name, columns[name], row)
    return graph


def _frozen(loss: PerExample, held: Mapping[str, int]) -> PerExample:
    """The padding rows of embeddings that are no tables stay as they are, as in torch."""

    def settled(params: Params, batch: Batch) -> Array:
        rows = {
            name: params[name].at[place].set(jax.lax.stop_gradient(params[name][place]))
            for name, place in held.items()
        }
        return loss({**params, **rows}, batch)

    return settled
