"""Where a population meets a model: ranges, padding that is read as a row, and names that do not
agree."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas
import pytest

import fedslice as fs
from fedslice import Model, Population, Table
from fedslice.client import finetune, reconstruction
from fedslice.data.compatibility import meet
from fedslice.data.loading import from_frame
from fedslice.errors import InputError
from fedslice.models.classifier_lstm import classifier_lstm
from fedslice.models.din import din
from fedslice.models.language_lstm import language_lstm
from fedslice.models.layers import classifier
from fedslice.models.transformer import transformer
from fedslice.tasks.logistic import logistic
from fedslice.types import Array, Batch, Params

SMALL = {"embedding": 2, "hidden": 2, "project": 2}


def zeros(shape: tuple[int, ...]) -> Callable[[Any], Params]:
    return lambda key: {"w": jnp.zeros(shape)}


def soft(classes: int = 3) -> Model:
    return classifier(zeros((1, classes)), lambda p, b: b["x"][:, None] @ p["w"], classes)


def start(model: Model, people: Population) -> Any:
    method = fs.recipes.fedavg(model, optax.sgd(0.1), fs.Work(steps=1, batch=2))
    return fs.simulate(method, people, sampler=fs.sampling.full())


# -- ranges ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong", [[0, 3], [0, -1], [0.0, 1.5], [0.0, 7.0]], ids=["high", "low", "fraction", "float"]
)
def test_a_label_outside_the_classes_is_refused_wherever_it_meets_the_model(
    wrong: list[float],
) -> None:
    """One-hot makes zeros of it: loss 0 without a word."""
    good = Population.from_arrays([0, 1], x=[1.0, 2.0], label=[0, 2])
    bad = Population.from_arrays([0, 1], x=[1.0, 2.0], label=wrong)
    run = start(soft(), good)
    places: list[Callable[[], Any]] = [
        lambda: start(soft(), bad),
        lambda: fs.evaluate(run, bad),
        lambda: fs.Evaluator(soft(), bad),
        lambda: fs.Personal(bad, finetune(soft(), optax.sgd(0.1), fs.Work(steps=1))),
        lambda: fs.adapted(run, bad, finetune(soft(), optax.sgd(0.1), fs.Work(steps=1))),
    ]
    for place in places:
        with pytest.raises(
            InputError,
            match=r"'label' has the value .* \(first in example 1\).*numbers from 0 to 2",
        ):
            place()


def test_whole_numbers_of_any_type_are_labels() -> None:
    for kind in (np.uint8, np.int64, np.float32, bool):
        meet(
            soft(),
            Population.from_arrays([0, 1], x=[1.0, 2.0], label=np.array([0, 1]).astype(kind)),
        )


@pytest.mark.parametrize(
    ("model", "columns"),
    [
        (logistic(5), {"features": [[0]], "label": [2.0]}),
        (classifier_lstm(5, 2, 2), {"tokens": [[0]], "label": [-1.0]}),
        (din(3, 5), {"user": [0], "item": [0], "history": [[0]], "label": [2.0]}),
        (language_lstm(5, 2, **SMALL), {"tokens": [[0]], "next": [[7]]}),
        (language_lstm(5, 1, buckets=4, local_buckets=True, **SMALL),
         {"tokens": [[-1]], "bucket": [[4]], "next": [[0]]}),
        (transformer(5, 2, layers=1, width=2, hidden=2, heads=1), {"tokens": [[0]], "next": [[7]]}),
    ],
    ids=["logistic", "classifier", "din", "next", "bucket", "transformer"],
)  # fmt: skip
def test_the_models_declare_theirs(model: Model, columns: dict[str, Any]) -> None:
    people = Population.from_arrays(
        [0], **{name: np.array(column) for name, column in columns.items()}
    )
    with pytest.raises(InputError, match=r"numbers from (0|-1) to"):
        meet(model, people)


def test_ranges_that_make_no_sense() -> None:
    for given in (0, range(3, 3), range(0, 9, 2), "ten"):
        with pytest.raises(InputError, match="give a number of classes"):
            Model(zeros((1,)), lambda p, b: b["x"], ranges={"label": given})  # type: ignore[dict-item]


def test_a_range_of_no_column_is_refused_in_training_only() -> None:
    people = Population.from_arrays([0, 1], x=[1.0, 2.0], label=[0, 7])
    typo = Model(zeros((1,)), lambda p, b: b["x"] * p["w"][0], ranges={"labl": 3})
    with pytest.raises(InputError, match=r"'labl', which is no column.*did you mean 'label'\?"):
        start(typo, people)
    right = Model(zeros((1,)), lambda p, b: b["x"] * p["w"][0], ranges={"label": 8})
    assert (
        fs.evaluate(start(right, people), Population.from_arrays([0], x=[1.0])).pooled["loss"] == 0
    )


# -- padding ---------------------------------------------------------------------------------------


def indexing(read: Callable[[Array, Array], Array], **more: Any) -> Model:
    def loss(params: Params, batch: Batch) -> Array:
        return (jnp.sum(read(params["w"], batch["item"]), -1) - batch["y"]) ** 2

    return Model(lambda key: {}, loss, {"w": Table(9, "item")}, **more)


PADDED = Population.from_arrays([0, 0, 1], item=[[3, -1], [5, 7], [7, 5]], y=[1.0, 1.0, 1.0])
FULL = Population.from_arrays([0, 0, 1], item=[[3, 2], [5, 7], [7, 5]], y=[1.0, 1.0, 1.0])


def plain(table: Array, ids: Array) -> Array:
    return table[ids]


def test_plain_indexing_of_padding_is_refused_before_it_trains_the_last_row() -> None:
    for place in (
        lambda: start(indexing(plain), PADDED),
        lambda: fs.evaluate(start(indexing(plain), FULL), PADDED),
    ):
        with pytest.raises(
            InputError, match=r"reads a row where 'item' is padding.*fedslice.lookup\(params\['w'\]"
        ):
            place()
    start(indexing(plain), FULL)


@pytest.mark.parametrize(
    "read",
    [
        fs.lookup,
        lambda table, ids: jnp.where(ids >= 0, table[ids], 0),
        lambda table, ids: jax.nn.one_hot(ids, len(table)) @ table,
        lambda table, ids: (
            fs.lookup(table, ids) + 0.1 * jnp.sum(table**2)
        ),  # reads all rows, padding or not
        lambda table, ids: fs.lookup(table, ids) * jax.nn.logsumexp(table),
    ],
    ids=["lookup", "mask", "one-hot", "whole table", "softmax"],
)
def test_models_that_pass_over_padding_are_accepted(read: Callable[[Array, Array], Array]) -> None:
    meet(indexing(read), PADDED)


def test_a_metric_is_tried_too_and_a_zero_start_hides_nothing() -> None:
    """The loss multiplies by a leaf that begins at zero, under which no row has any effect yet."""
    with pytest.raises(InputError, match="'item'"):
        meet(
            indexing(fs.lookup, metrics={"m": lambda p, b: jnp.sum(p["w"][b["item"]], -1)}), PADDED
        )
    scaled = Model(
        lambda key: {"scale": jnp.zeros(())},
        lambda p, b: p["scale"] * jnp.sum(p["w"][b["item"]], -1),
        {"w": Table(9, "item")},
    )
    with pytest.raises(InputError, match="'item'"):
        meet(scaled, PADDED)


@pytest.mark.parametrize(
    ("width", "figure"),
    [
        (64, lambda p, e: jax.nn.sigmoid(jnp.sum(e * p["user"], (1, 2)))),
        (64, lambda p, e: jnp.tanh(jnp.sum(e, (1, 2)))),
        (1, lambda p, e: jnp.sum(jnp.maximum(0, 1 - 5 * e), (1, 2))),
        (1, lambda p, e: jnp.sum(jax.nn.relu(-e), (1, 2))),
        (1, lambda p, e: jnp.sum(e, (1, 2)) ** 2 + 1e-3 * jnp.sum(p["w"] ** 2)),
    ],
    ids=["sigmoid", "tanh", "hinge", "relu", "regularised"],
)
def test_saturation_and_regularisers_hide_no_padding(
    width: int, figure: Callable[[Params, Array], Array]
) -> None:
    """Rows of about 1 saturate, those above 0 pass no relu(-x), and a norm of the whole table reads
    all rows anyway."""

    def model(read: Callable[[Array, Array], Array]) -> Model:
        def loss(p: Params, b: Batch) -> Array:
            return (figure(p, read(p["w"], b["item"])) - b["y"]) ** 2

        return Model(
            lambda key: {"user": jnp.zeros(width)}, loss, {"w": Table(9, "item", (width,))}
        )

    with pytest.raises(InputError, match="'item' is padding"):
        meet(model(plain), PADDED)
    meet(model(fs.lookup), PADDED)


def test_only_the_guilty_field_is_named() -> None:
    model = Model(
        lambda key: {},
        lambda p, b: jnp.sum(fs.lookup(p["w"], b["item"]), -1) + jnp.sum(p["v"][b["tag"]], -1),
        {"w": Table(9, "item"), "v": Table(4, "tag", (2,))},
    )
    tag = np.array([0, 1, -1])
    with pytest.raises(InputError, match=r"where 'tag' is padding.*params\['v'\]"):
        meet(model, Population.from_arrays([0, 0, 1], item=PADDED.columns["item"], tag=tag))


def test_it_is_tried_once() -> None:
    calls = []

    def read(table: Array, ids: Array) -> Array:
        calls.append(1)
        return fs.lookup(table, ids)

    model = indexing(read)
    meet(model, PADDED)
    seen = len(calls)
    meet(model, PADDED.subset(np.array([0])))
    assert len(calls) == seen > 0


# -- names -----------------------------------------------------------------------------------------


def frame(items: list[str], label: list[int]) -> pandas.DataFrame:
    return pandas.DataFrame({"user": range(len(items)), "item": items, "label": label})


def of_items(table: pandas.DataFrame, **more: Any) -> Population:
    return from_frame(table, client="user", label="label", features=["item"], **more)


def squares(rows: int) -> Model:
    def loss(params: Params, batch: Batch) -> Array:
        return (fs.lookup(params["w"], batch["item"]) - batch["label"]) ** 2

    return Model(lambda key: {}, loss, {"w": Table(rows, "item")})


def test_two_files_with_two_vocabularies_are_refused_and_one_vocabulary_is_right() -> None:
    """Two files, "a" is 0 in the first and "b" is 0 in the second: rows would be mixed up."""
    train = of_items(frame(["a", "b", "c"], [0, 1, 2]))
    later = frame(["b", "c", "new"], [1, 2, 5])
    method = fs.recipes.fedavg(
        squares(3), optax.sgd(0.5), fs.Work(steps=1, batch=1), weights="uniform"
    )
    run = fs.simulate(method, train, sampler=fs.sampling.full())
    run.train(60, progress=False)  # row m goes to the mean of its holders' labels: 0, 1, 2
    assert run.table("w", np.arange(3)) == pytest.approx([0, 1, 2], abs=1e-4)
    with pytest.raises(
        InputError, match=r"'item' stand for other values than in training.*names=train.names"
    ):
        fs.evaluate(run, of_items(later))
    test = of_items(later, names=train.names)
    assert test.columns["item"].tolist() == [1, 2, -1]
    assert fs.evaluate(run, test).clients["loss"] == pytest.approx([0, 0, 25], abs=1e-3)


def test_every_judge_compares_names() -> None:
    train = of_items(frame(["a", "b"], [0, 1]))
    other = of_items(frame(["x", "y"], [0, 1]))
    model = squares(2)
    run = start(model, train)
    keeping = fs.simulate(
        fs.recipes.ditto(model, optax.sgd(0.1), fs.Work(steps=1), pull=0.1),
        train,
        sampler=fs.sampling.full(),
    )
    judges: list[Callable[[], Any]] = [
        lambda: fs.Evaluator(run, other),
        lambda: fs.adapted(run, other, finetune(model, optax.sgd(0.1), fs.Work(steps=1))),
        lambda: fs.kept(keeping, other),
    ]
    for judge in judges:
        with pytest.raises(InputError, match="stand for other values"):
            judge()
    nameless = Population(other.columns, other.offsets, other.clients)
    assert fs.evaluate(run, nameless).pooled["loss"] == pytest.approx(0.5)


def test_a_reconstruction_of_local_buckets_passes_over_padding() -> None:
    """FedRecon's unknown words: -1 in tokens, their bucket elsewhere."""
    model = language_lstm(5, 1, buckets=4, local_buckets=True, **SMALL)
    people = Population.from_arrays([0, 0], tokens=[[1, -1, 2], [2, 3, -1]],
                                    bucket=[[-1, 3, -1], [-1, -1, -1]],
                                    next=[[0, 2, 3], [3, 1, -1]])  # fmt: skip
    fs.Personal(people, reconstruction(model, optax.sgd(0.1), fs.Work(steps=1)))
    assert model.tried == {"tokens"}


# -- rows asked for --------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [[-1], [9], [0.5]])
def test_rows_asked_for_are_checked(ids: list[float]) -> None:
    run = start(indexing(plain), FULL)
    for ask in (lambda: run.params({"w": np.array(ids)}), lambda: run.table("w", np.array(ids))):
        with pytest.raises(InputError, match="table 'w'"):
            ask()
    with pytest.raises(InputError, match="no index space 'v'"):
        run.params({"v": np.array([0])})
    with pytest.raises(InputError, match="no table 'v'"):
        run.table("v", np.array([0]))
