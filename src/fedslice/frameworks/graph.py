"""A torch module as a function of JAX: its exported graph of operators, gone through one by one.

``torch.export`` gives a flat list of operators with all of Python's control flow resolved; each is
one function of :mod:`fedslice.frameworks.aten`.  Operators that are not among them are taken apart
by torch's own decompositions, where it has one; those that remain are named and refused.
"""

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedslice.errors import InputError
from fedslice.frameworks.aten import OPERATORS
from fedslice.types import Array, Batch, Params

EXAMPLES = 3  # to trace with: torch takes a size of 0 or 1 for a constant
CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size")
# how sizes are computed from sizes
SIZES = {
    getattr(operator, name): getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "neg", "eq", "ge", "le", "gt", "lt")
}
MOVING = ("reshape", "view", "unsqueeze", "squeeze", "flatten", "slice", "select", "to", "clone")
DROPPING = ("dropout", "native_dropout", "scaled_dot_product_attention", "lstm", "gru")


class Value(NamedTuple):
    """What an earlier step gave."""

    name: str


class Step(NamedTuple):
    """An operator, by its name or a function of sizes, with its arguments."""

    name: str
    operator: Any
    given: Any


class Graph:
    """The operators of ``figure(module, batch)``.  ``padding`` is the padding_idx of each embedding
    that has one; ``noisy`` tells whether anything is drawn in training."""

    def __init__(
        self,
        module: Any,
        figure: Callable[[Any, dict[str, Any]], Any],
        columns: Mapping[str, np.ndarray],
    ) -> None:
        self.columns = sorted(columns)
        program = exported(module, figure, columns)
        self.constants: dict[str, Array] = {}
        self.leaves: dict[str, str] = {}  # inputs that are trained, by their name in the module
        self.fields: dict[str, str] = {}
        self._name_inputs(module, program)
        self.padding: dict[str, int] = {}
        self.unnamed: set[tuple[str, int]] = set()  # columns with the ids that they must not have
        self.plain: set[str] = set()  # columns that index no table, so hold ids as they are
        nodes = list(program.graph.nodes)
        self.masks = self._masks(nodes)
        self.noisy = any(_drops(node) for node in nodes)
        self.read = [node.name for node in nodes if node.name in self.fields and len(node.users)]
        computed = (n for n in nodes if n.op != "placeholder" and _name(n) not in CHECKS)
        self.steps = [self._step(node) for node in computed]
        self.masks = {}

    def _name_inputs(self, module: Any, program: Any) -> None:
        places = iter(self.columns)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        for spec in program.graph_signature.input_specs:
            name, target = spec.arg.name, (spec.target or "").removeprefix("module.")
            if spec.kind.name == "USER_INPUT":
                self.fields[name] = next(places)
            elif spec.kind.name == "PARAMETER" and parameters[target].requires_grad:
                self.leaves[name] = first_name(module, parameters[target])
            else:
                state = {**program.state_dict, **program.constants}
                self.constants[name] = constant(state[spec.target])

    def _masks(self, nodes: Iterable[Any]) -> dict[Any, tuple[str, int, bool]]:
        """Comparisons of ids with the padding_idx of their embeddings: column, number, and whether
        it is padding that is asked for."""
        by_field: dict[str, set[int | None]] = {}
        for node in nodes:
            if _name(node) in ("embedding", "embedding_bag"):
                given = bound(node)
                own = given.get("padding_idx")
                own = None if own is None or own < 0 else own
                leaf = self.leaves.get(given["weight"].name)
                if leaf is not None and own is not None:
                    self.padding[leaf] = own
                if (field := self._field(given["indices"])) is not None:
                    by_field.setdefault(field, set()).add(own)
                    self.unnamed |= set() if own is None else {(field, own)}
        masks = {}
        for node in nodes:
            if _name(node) in ("eq", "ne", "gt"):
                given = bound(node)
                field, other = self._field(given["self"]), given["other"]
                if field is None or by_field.get(field) != {other} or not isinstance(other, int):
                    continue
                if _name(node) != "gt" or other == 0:
                    masks[node] = field, other, _name(node) == "eq"
        return masks

    def _field(self, node: Any) -> str | None:
        """The column whose ids a value holds."""
        while _name(node) in MOVING:
            node = node.args[0]
        return self.fields.get(getattr(node, "name", ""))

    def _step(self, node: Any) -> Step:
        """A node without anything of torch in it, so that a model can be sent to other machines."""
        if node.op == "output":
            return Step(node.name, "output", _plain(node.args[0]))
        if node in self.masks:
            return Step(node.name, "mask", (*self.masks[node], _plain(node.args[0])))
        if node.target is operator.getitem or node.target in SIZES:
            return Step(node.name, node.target, _plain(node.args))
        return Step(node.name, _name(node), _plain(bound(node)))

    def __call__(self, params: Params, batch: Batch) -> Any:
        """The figure of each example, as torch computes it."""
        known: dict[str, Any] = dict(self.constants)
        known |= {node: params[name] for node, name in self.leaves.items() if name in params}
        known |= {node: jnp.asarray(batch[self.fields[node]]) for node in self.read}
        drop = _Dropout(batch.get("step_key"))
        for step in self.steps:
            given = _filled(step.given, known)
            if step.operator == "output":
                return given[0]
            known[step.name] = self._value(step.operator, given, drop)
        raise AssertionError("a graph ends with its output")

    def _value(self, name: Any, given: Any, drop: "_Dropout") -> Any:
        if not isinstance(name, str):
            return name(*given)
        if name == "mask":
            field, number, asked, ids = given
            padding = (ids < 0) | (ids == number) if field in self.plain else ids < 0
            return padding if asked else jnp.logical_not(padding)
        if name == "sym_size":
            return given["self"].shape[given["dim"]]
        if name in ("dropout", "native_dropout"):
            x = drop(given["input"], given["p"]) if given["train"] else given["input"]
            return x if name == "dropout" else (x, None)
        return OPERATORS[name](**given, drop=drop) if name in DROPPING else OPERATORS[name](**given)


class _Dropout:
    """Drawn from the key of the step, each time from another one; without a key nothing happens."""

    def __init__(self, key: Any) -> None:
        self.key, self.drawn = key, 0

    def __call__(self, x: Array, share: float) -> Array:
        if self.key is None or not share:
            return x
        self.drawn += 1
        kept = jax.random.bernoulli(jax.random.fold_in(self.key, self.drawn), 1 - share, x.shape)
        return jnp.where(kept, x / (1 - share), 0.0)


def exported(module: Any, figure: Callable[..., Any], columns: Mapping[str, np.ndarray]) -> Any:
    """The graph as torch exports it, with operators that we know."""
    import torch

    names = sorted(columns)

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, values: tuple[Any, ...]) -> Any:
            return figure(self.module, dict(zip(names, values, strict=True)))

    given = tuple(_example(columns[name]) for name in names)
    free = tuple({0: torch.export.Dim.DYNAMIC} for _ in names)
    whole = Whole()
    try:
        program = quietly(
            torch.export.export, whole, (given,), dynamic_shapes=(free,), strict=False
        )
    except InputError:
        raise
    except Exception as error:  # torch has many kinds of its own
        raise InputError(
            "torch.export cannot trace this module and loss, with three examples of your columns:"
            f" {str(error).strip().splitlines()[0]}. Decisions that depend on values, and batches"
            " of one size alone, have no graph"
        ) from error
    program = quietly(program.run_decompositions, {})
    signature = program.graph_signature
    if changed := [*signature.buffers_to_mutate.values(), *_changed_parameters(signature)]:
        raise InputError(
            f"the module changes {', '.join(sorted(changed))} while it computes, as batch"
            " normalisation and max_norm do: a loss must leave everything as it is. Use GroupNorm"
            " or LayerNorm, or call eval() on that layer"
        )
    if unknown(program.graph.nodes):
        ours = {
            key: how for key, how in _decompositions().items() if key_name(key) not in OPERATORS
        }
        program = quietly(program.run_decompositions, ours)
    if left := unknown(program.graph.nodes):
        raise InputError(
            f"no way is known to convert {', '.join(left)}: write the module without, or the model"
            " in JAX (docs/how-to/your-own-model.md)"
        )
    return program


def quietly(act: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """Without torch's warnings, which are about its own insides."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return act(*given, **options)


def _changed_parameters(signature: Any) -> list[str]:
    return list(getattr(signature, "parameters_to_mutate", {}).values())


def _decompositions() -> Any:
    from torch.export import default_decompositions

    return default_decompositions()


def unknown(nodes: Iterable[Any]) -> list[str]:
    """Operators that have no function here, each with the line of the module that it stands in."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.op == "call_function" and not _known(node):
            lines = [line.strip() for line in (node.meta.get("stack_trace") or "").splitlines()]
            where = f" (in {lines[-1]!r})" if lines else ""
            found.setdefault(str(node.target), f"{node.target}{where}")
    return list(found.values())


def _known(node: Any) -> bool:
    own = node.target is operator.getitem or node.target in SIZES
    return own or _name(node) in (*OPERATORS, *CHECKS, *DROPPING, "sym_size")


def _name(node: Any) -> str:
    return key_name(getattr(node, "target", None))


def key_name(target: Any) -> str:
    """An operator without its library and overload: ``add`` of ``aten.add.Tensor``."""
    packet = getattr(target, "_overloadpacket", None) or getattr(target, "overloadpacket", None)
    return packet.__name__ if packet is not None else ""


def bound(node: Any) -> dict[str, Any]:
    """An operator's arguments under the names of its schema."""
    names = [argument.name for argument in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | dict(node.kwargs)
    for unused in ("memory_format", "layout", "device", "pin_memory", "non_blocking", "copy"):
        given.pop(unused, None)
    return given


def _plain(given: Any) -> Any:
    """The same with names for nodes and for torch's types of numbers."""
    if isinstance(given, Mapping):
        return {name: _plain(each) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return [_plain(each) for each in given]
    kind = type(given).__name__
    return Value(given.name) if kind == "Node" else str(given) if kind == "dtype" else given


def _filled(given: Any, known: Mapping[str, Any]) -> Any:
    """The same with arrays for names."""
    if isinstance(given, Value):
        return known[given.name]
    if isinstance(given, Mapping):
        return {name: _filled(each, known) for name, each in given.items()}
    if isinstance(given, list | tuple):
        return [_filled(each, known) for each in given]
    return given


def _drops(node: Any) -> bool:
    name = _name(node)
    if name not in DROPPING:
        return False
    given = bound(node)
    if name in ("dropout", "native_dropout"):
        return bool(given["train"] and given["p"])
    return bool(given.get("dropout_p") or (given.get("train") and given.get("dropout")))


def _example(column: np.ndarray) -> Any:
    import torch

    some = np.asarray(column[np.arange(EXAMPLES) % len(column)])
    whole = some.dtype.kind in "iu"
    return torch.as_tensor(some.astype(np.int64 if whole else np.float32))


def constant(tensor: Any) -> Array:
    """A tensor that is not trained, as an array of 32 bits."""
    array = np.array(tensor.detach().cpu().numpy())
    narrow = {"float64": np.float32, "int64": np.int32}.get(array.dtype.name, array.dtype)
    return jnp.asarray(array.astype(narrow))


def first_name(module: Any, parameter: Any) -> str:
    """Weights that are tied have several names: the first one counts."""
    return next(name for name, each in module.named_parameters() if each is parameter)
