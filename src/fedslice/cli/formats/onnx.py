"""A model for own data as an ONNX graph that predicts, with its preprocessing inside as JSON.

The graph reads what the preprocessing makes of a row: ``features``, int64 [N, ids], where -1 is
padding, and ``numbers``, float32 [N, numbers], if there are any.  It gives ``score`` and, as
``fedslice predict`` does, ``probability`` (of the second class, or of each) or ``prediction``.  A
model with local leaves reads them as well: ``user`` [N, k] and ``user_bias`` [N].

Every table has one more row, of zeros: ONNX takes the index -1 for the last one, so padding
contributes nothing without a mask.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedslice.data.features import Features
from fedslice.errors import InputError
from fedslice.files.writing import atomic_write
from fedslice.tasks.own import layout
from fedslice.types import Params

OPSET, VERSION = 17, 9  # of 2022: whatever serves models reads them
LARGEST = 2**31 - 2**20  # bytes of a file
LOWEST = np.finfo(np.float32).min


def write(features: Features, params: Params, file: Path) -> None:
    """The model with the tables' rows in the order of ``features``, all of them, to ``file``."""
    try:
        import onnx
    except ImportError as error:
        raise InputError("ONNX needs a package: pip install 'fedslice[onnx]'") from error
    size = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(params))
    if size > LARGEST:
        raise InputError(
            f"an ONNX file holds two gigabytes at most, and this model has {size / 2**30:.1f}:"
            " export .safetensors or .parquet"
        )
    graph = Graph(onnx)
    score = _score(graph, features, params)
    graph.output("score", score, _shape(features))
    _meaning(graph, features, score)
    model = graph.model(str(features.model["name"]))
    model.metadata_props.add(
        key="features", value=json.dumps(features.as_json(), ensure_ascii=False)
    )
    onnx.checker.check_model(model)
    atomic_write(file, model.SerializeToString())


class Graph:
    """ONNX's lists of nodes, constants, inputs and outputs, built up by calls."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def __call__(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node; the name of what it gives."""
        name = f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operator, inputs, [name], **attributes))
        return name

    def constant(self, value: Any, name: str = "") -> str:
        """Numbers that the graph holds."""
        name = name or f"constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def input(self, name: str, kind: str, shape: Sequence[int | str]) -> str:
        """Numbers that it is given."""
        self.inputs.append(self._described(name, kind, shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str]) -> None:
        """Numbers that it gives, under a name."""
        self.nodes.append(self.onnx.helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._described(name, "FLOAT", shape))

    def _described(self, name: str, kind: str, shape: Sequence[int | str]) -> Any:
        number = getattr(self.onnx.TensorProto, kind)
        return self.onnx.helper.make_tensor_value_info(name, number, list(shape))

    def model(self, name: str) -> Any:
        """All of it."""
        helper = self.onnx.helper
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, self.constants)
        versions = [helper.make_opsetid("", OPSET)]
        return helper.make_model(
            graph, producer_name="fedslice", opset_imports=versions, ir_version=VERSION
        )

    def total(self, x: str, axis: int) -> str:
        """The sum over an axis."""
        return self("ReduceSum", x, self.constant(np.array([axis])), keepdims=0)

    def span(self, x: str, start: int, stop: int) -> str:
        """Places of the second axis."""
        ends = [self.constant(np.array([each])) for each in (start, stop, 1)]
        return self("Slice", x, *ends)

    def layer(self, x: str, given: Params) -> str:
        """x W + b."""
        product = self("MatMul", x, self.constant(given["weight"]))
        return self("Add", product, self.constant(given["bias"]))


def padded(table: Any) -> np.ndarray:
    """With a row of zeros after the last one, for padding.

    >>> padded(np.ones((2, 1), np.float32)).tolist()
    [[1.0], [1.0], [0.0]]
    """
    rows = np.asarray(table, np.float32)
    return np.concatenate([rows, np.zeros_like(rows[:1])])


def _shape(features: Features) -> list[int | str]:
    many = len(features.label.classes) if features.label.kind == "classes" else 0
    return ["N", many] if many else ["N"]


def _score(graph: Graph, features: Features, params: Params) -> str:
    """As :func:`fedslice.models.own.score` computes it."""
    ids = graph.input("features", "INT64", ["N", features.wide])
    numbers = len(features.measured)
    x = graph.input("numbers", "FLOAT", ["N", numbers]) if numbers else ""
    table = graph.constant(padded(params["weight"]), "weight")
    score = graph.total(graph("Gather", table, ids), 1)
    score = graph("Add", score, graph.constant(params["bias"], "bias"))
    if x:
        slope = graph.constant(params["slope"], "slope")
        score = graph("Add", score, graph("MatMul", x, slope))
    name = str(features.model["name"])
    if name == "fm":
        return graph("Add", score, _pairs(graph, params, ids, x))
    if name == "mf":
        return graph("Add", score, _personal(graph, params, ids))
    if name == "din":
        return graph("Add", score, _interest(graph, features, params, ids, x))
    return score


def _pairs(graph: Graph, params: Params, ids: str, x: str) -> str:
    """(t^2 - q) / 2, summed over factors."""
    rows = graph("Gather", graph.constant(padded(params["factor"]), "factor"), ids)
    total, squares = graph.total(rows, 1), graph.total(graph("Mul", rows, rows), 1)
    if x:
        factor = np.asarray(params["number_factor"])
        total = graph("Add", total, graph("MatMul", x, graph.constant(factor)))
        square = graph("MatMul", graph("Mul", x, x), graph.constant(factor**2))
        squares = graph("Add", squares, square)
    pairs = graph.total(graph("Sub", graph("Mul", total, total), squares), 1)
    return graph("Mul", pairs, graph.constant(np.float32(0.5)))


def _personal(graph: Graph, params: Params, ids: str) -> str:
    """What a client's own leaves add; ``item`` is what they are multiplied with."""
    size = np.shape(params["factor"])[1]
    user = graph.input("user", "FLOAT", ["N", size])
    bias = graph.input("user_bias", "FLOAT", ["N"])
    rows = graph("Gather", graph.constant(padded(params["factor"]), "factor"), ids)
    item = graph.total(rows, 1)
    graph.output("item", item, ["N", size])
    return graph("Add", bias, graph.total(graph("Mul", user, item), 1))


def _interest(graph: Graph, features: Features, params: Params, ids: str, x: str) -> str:
    """The tower over what each column says."""
    table = graph.constant(padded(params["embedding"]), "embedding")
    rows = graph("Gather", table, ids)
    attentions, columns = iter(params["attention"]), []
    for place, width, target in layout(features):
        some = graph.span(rows, place, place + width)
        if target < 0:
            columns.append(graph.total(some, 1))
        else:
            real = graph.span(ids, place, place + width)
            about = graph.span(rows, target, target + 1)
            columns.append(_attended(graph, next(attentions), about, some, real))
    deep = graph("Concat", *columns, *([x] if x else []), axis=1)
    *hidden, last = params["tower"]
    for layer in hidden:
        deep = graph("Relu", graph.layer(deep, layer))
    deep = graph.layer(deep, last)
    if features.label.kind == "classes":
        return deep
    return graph("Squeeze", deep, graph.constant(np.array([1])))


def _attended(graph: Graph, layers: Sequence[Params], target: str, history: str, ids: str) -> str:
    """The mean of a history [N, L, d] by its relevance to a target [N, 1, d]
    (:func:`fedslice.models.din.attend`)."""
    first, *rest = layers
    parts = np.split(np.asarray(first["weight"]), 4)
    by_target, by_entry, by_gap, by_product = parts
    x = graph("MatMul", history, graph.constant(by_entry - by_gap))
    product = graph("Mul", target, history)
    x = graph("Add", x, graph("MatMul", product, graph.constant(by_product)))
    about = graph.layer(target, {"weight": by_target + by_gap, "bias": first["bias"]})
    x = graph("Add", x, about)
    for layer in rest:
        x = graph.layer(graph("Sigmoid", x), layer)
    real = graph("GreaterOrEqual", graph("Unsqueeze", ids, graph.constant(np.array([2]))),
                 graph.constant(np.int64(0)))  # fmt: skip
    low = graph("Where", real, x, graph.constant(LOWEST))
    weight = graph("Softmax", low, axis=1)
    weight = graph("Where", real, weight, graph.constant(np.float32(0)))
    return graph.total(graph("Mul", weight, history), 1)


def _meaning(graph: Graph, features: Features, score: str) -> None:
    label = features.label
    if label.kind == "number":
        scaled = graph("Mul", score, graph.constant(np.float32(label.spread)))
        scaled = graph("Add", scaled, graph.constant(np.float32(label.mean)))
        graph.output("prediction", scaled, ["N"])
    elif label.kind == "classes":
        graph.output("probability", graph("Softmax", score, axis=1), _shape(features))
    else:
        graph.output("probability", graph("Sigmoid", score), ["N"])
