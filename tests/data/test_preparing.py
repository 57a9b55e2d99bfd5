"""Parts of own data: who is held out, what is learned from the rest alone, and from files of their
own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedslice.data.features import Column, Features, Label
from fedslice.data.population import Population
from fedslice.data.preparing import apply, prepare
from fedslice.data.purposes import Purposes, of
from fedslice.errors import InputError

pyarrow = pytest.importorskip("pyarrow")

MANY = 200
RNG = np.random.default_rng(0)
LOG = {
    "user": RNG.integers(0, 10, MANY),
    "item": np.array([f"i{n}" for n in RNG.integers(0, 30, MANY)]),
    "when": RNG.permutation(MANY) + 1_700_000_000,
    "y": RNG.integers(0, 2, MANY),
}
PURPOSES = Purposes("user", "y", ["item"], time="when")


def names(people: Population, features: Features) -> set[str]:
    ids = people.columns["features"]
    return set(features.names[ids[ids >= 0]].tolist())


@pytest.mark.parametrize("split", ["examples", "clients", "time", "latest"])
def test_splits(split: str) -> None:
    found = prepare(pyarrow.table(LOG), PURPOSES, split=split, test=0.2, validation=0.25)
    train, test, validation = found.train, found.test, found.validation
    assert test is not None
    assert validation is not None
    parts = [train, validation, test]
    assert sum(part.examples for part in parts) == MANY
    if split != "latest":  # which rounds down for each client
        assert test.examples == pytest.approx(0.2 * MANY, abs=12)
    stamps = [part.columns["time"] for part in parts]
    assert len(np.unique(np.concatenate(stamps))) == MANY
    if split == "time":
        assert stamps[0].max() < stamps[1].min() < stamps[1].max() < stamps[2].min()
    if split == "clients":
        owners = [set(part.clients.tolist()) for part in parts]
        assert [len(each) for each in owners] == [6, 2, 2]
        assert set.union(*owners) == set(range(10))
    else:
        assert all(np.array_equal(part.clients, train.clients) for part in parts)
    if split == "latest":
        for client in range(10):
            first, last = (
                s[p.owners == client] for s, p in zip(stamps[::2], parts[::2], strict=True)
            )
            assert len(last) == int(0.2 * (LOG["user"] == client).sum())
            assert first.max() < last.min()
    # the vocabulary is that of the training part
    assert names(train, found.features) == set(found.features.names.tolist())


def test_values_of_the_test_part_alone_are_padding() -> None:
    log = {"user": list("aabb"), "item": list("xyzz"), "when": [1, 2, 3, 9], "y": [0, 1, 0, 1]}
    log["item"][3] = "new"
    found = prepare(pyarrow.table(log), PURPOSES, split="time", test=0.25)
    assert found.features.columns[0].values == ("x", "y", "z")
    assert found.test is not None
    assert found.test.columns["features"].tolist() == [[-1]]


def test_on_disk_is_as_in_memory(tmp_path: Path) -> None:
    here = prepare(pyarrow.table(LOG), PURPOSES, split="time", validation=0.1)
    there = prepare(pyarrow.table(LOG), PURPOSES, split="time", validation=0.1, folder=tmp_path)
    assert here.features == there.features
    for one, two in ((here.train, there.train), (here.test, there.test)):
        assert one is not None
        assert two is not None
        assert two.home is not None
        assert all(np.allclose(one.columns[name], two.columns[name]) for name in one.columns)
        assert np.array_equal(one.offsets, two.offsets)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["test", "train", "validation"]


def test_parts_from_files_of_their_own(tmp_path: Path) -> None:
    later = {"user": [1, 77], "item": ["i3", "other"], "when": [5, 6], "y": [1, 0]}
    found = prepare(pyarrow.table(LOG), PURPOSES, test=pyarrow.table(later))
    assert found.train.examples == MANY
    assert found.test is not None
    assert found.test.clients.tolist() == [1, 77]
    row = found.features.columns[0].values.index("i3")
    assert found.test.columns["features"].tolist() == [[row], [-1]]
    assert found.notes == ["test: item: 1 values (50.0%) were not in the training data"]
    other = {"user": [1], "thing": ["i3"], "y": [1]}
    with pytest.raises(InputError, match="no column 'item'; it has user, thing, y"):
        prepare(pyarrow.table(LOG), PURPOSES, test=pyarrow.table(other))
    wrong = {"user": range(20), "item": [f"film {n}" for n in range(20)], "y": [0, 1] * 10}
    with pytest.raises(InputError, match="none of the 20 values of 'item'"):
        prepare(pyarrow.table(LOG), PURPOSES, test=pyarrow.table(wrong))


@pytest.mark.parametrize(
    ("labels", "given", "expected"),
    [
        ([0, 1, 1, 0], "auto", ("binary", ("0", "1"))),
        (["no", "yes", "yes", "no"], "auto", ("binary", ("no", "yes"))),
        ([True, False, True, True], "auto", ("binary", ("false", "true"))),
        ([1, 2, 2, 1], "auto", ("binary", ("1", "2"))),
        ([1, 2, 3, 1], "auto", ("number", ())),
        ([1, 10, 9, 1], "classes", ("classes", ("1", "9", "10"))),
        (["a", "b", "c", "a"], "auto", ("classes", ("a", "b", "c"))),
        ([0.5, 2.5, 1.0, 1.0], "auto", ("number", ())),
        ([0, 1, 1, 0], "number", ("number", ())),
    ],
)
def test_labels(labels: list[Any], given: str, expected: tuple[str, tuple[str, ...]]) -> None:
    table = pyarrow.table({"user": list("abab"), "item": list("xyxy"), "y": labels})
    found = prepare(table, Purposes("user", "y", ["item"], label_as=given), test=0.0)
    label = found.features.label
    assert (label.kind, label.classes) == expected
    column = found.train.columns["label"]
    order = [0, 2, 1, 3]  # by client
    if label.kind == "number":
        values = np.array(labels, float)
        assert (label.mean, label.spread) == pytest.approx((values.mean(), values.std()))
        assert label.mean + label.spread * column == pytest.approx(values[order], abs=1e-6)
    else:
        texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in labels]
        assert [label.classes[int(each)] for each in column] == [texts[place] for place in order]


def test_labels_that_cannot_be() -> None:
    def labelled(labels: list[Any], **how: Any) -> None:
        table = pyarrow.table({"user": list("abab"), "item": list("xyxy"), "y": labels})
        prepare(table, Purposes("user", "y", ["item"], **how), test=0.0)

    with pytest.raises(InputError, match="1 missing values, first in row 3"):
        labelled([0, 1, None, 1])
    with pytest.raises(InputError, match="everywhere: nothing to learn"):
        labelled(["a"] * 4)
    with pytest.raises(InputError, match="must have two values to be binary"):
        labelled([1, 2, 3, 4], label_as="binary")


def test_unknown_labels_of_other_data_are_refused() -> None:
    table = pyarrow.table({"user": list("abab"), "item": list("xyxy"), "y": ["no", "yes"] * 2})
    features = prepare(table, Purposes("user", "y", ["item"]), test=0.0).features
    other = pyarrow.table({"user": ["a"], "item": ["x"], "y": ["maybe"]})
    read, _ = apply(features, other)
    with pytest.raises(
        InputError, match="'maybe', which is not among those of the training: no, yes"
    ):
        features.labels(read.raw, np.arange(1))


def test_buckets_are_quantiles_and_lists_keep_their_last() -> None:
    price = [1.0, 2.0, 3.0, 4.0, None, 5.0, 6.0, 7.0]
    history = [["a"], ["a", "b"], [], ["b", "c", "d"], None, ["d"], ["a"], ["c"]]
    table = pyarrow.table(
        {
            "user": ["u"] * 8,
            "item": list("abcdabcd"),
            "history": history,
            "price": price,
            "y": [0, 1] * 4,
        }
    )
    purposes = Purposes("user", "y", ["item+history"], {"price": 4}, longest=2)
    found = prepare(table, purposes, test=0.0)
    item, history_column, price_column = found.features.columns
    assert price_column.edges == pytest.approx(
        tuple(np.quantile([1, 2, 3, 4, 5, 6, 7], [0.25, 0.5, 0.75]))
    )
    assert (history_column.shares, history_column.start, history_column.width) == ("item", 0, 2)
    ids = found.train.columns["features"]
    assert ids[3].tolist() == [3, 2, 3, price_column.start + 2]  # c, d: the last two
    assert ids[4].tolist() == [0, -1, -1, -1]
    assert found.features.rows == 8
    assert of(found.features).wishes[1].shares == "item"
    assert item.values == ("a", "b", "c", "d")


def test_features_survive_their_file(tmp_path: Path) -> None:
    columns = (
        Column("item", "category", ("é", "b=1"), text=True),
        Column("history", "category", shares="item", width=3, separator="|"),
        Column("price", "buckets", edges=(0.1, 1 / 3)),
        Column("when", "hour"),
        Column("when", "weekday"),
        Column("age", "standard", mean=1 / 7, spread=2.0),
    )
    label = Label("y", "classes", ("a", "b", "c"))
    features = Features("user", label, columns, "when", {"name": "lr"}).placed()
    features.write(tmp_path)
    assert Features.read(tmp_path) == features
    assert [column.start for column in features.columns] == [0, 0, 2, 5, 29, 0]
    assert [column.place for column in features.columns] == [0, 1, 4, 5, 6, 0]
    (tmp_path / "features.json").write_text('{"format": 1}')
    with pytest.raises(InputError, match="damaged"):
        Features.read(tmp_path)
