"""Frames and files: ids, names, shared ids, lists, missing values, and errors that help."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from pyarrow import parquet

from fedslice.errors import InputError, MissingDataError
from fedslice.frames import from_file, from_frame

ROWS: dict[str, list[Any]] = {
    "user": ["b", "a", "b", "c"],
    "item": ["x", "y", "z", "x"],
    "history": [["z"], [], ["x", "y"], None],
    "stars": [5, 3, 4, 1],
    "clicked": [True, False, True, False],
}


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_all_kinds_of_frames_give_the_same(make: Any) -> None:
    people = from_frame(make(ROWS), client="user", label="clicked", features=[("item", "history"), "stars"])
    assert people.clients.tolist() == ["a", "b", "c"]
    assert people.counts.tolist() == [1, 2, 1]
    # Sorted by client: a, b, b, c; ids in the order of the values x, y, z and 1, 3, 4, 5.
    assert people.columns["item"].tolist() == [1, 0, 2, 0]
    assert people.columns["history"].tolist() == [[-1, -1], [2, -1], [0, 1], [-1, -1]]
    assert people.columns["stars"].tolist() == [1, 3, 2, 0]
    assert people.columns["clicked"].tolist() == [0, 1, 1, 0]
    assert people.names["history"].tolist() == ["x", "y", "z"]
    assert people.names["stars"].tolist() == [1, 3, 4, 5]


def test_a_missing_feature_is_padding() -> None:
    frame = pandas.DataFrame({"user": [1, 1, 2], "item": ["x", None, "y"]})
    people = from_frame(frame, client="user", features=["item"])
    assert people.columns["item"].tolist() == [[0], [-1], [1]]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
def test_files(ending: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"user": ["é", "b"], "item": ["a, quoted", "x"], "label": [0, 1]})
    file = tmp_path / f"data.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pandas(frame), file)
    else:
        text = frame.to_csv(index=False, sep="\t" if ending == "tsv" else ",").replace("\n", "\r\n").encode()
        file.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    people = from_file(file, client="user", label="label", features=["item"])
    assert people.clients.tolist() == ["b", "é"]
    assert people.names["item"][people.columns["item"]].tolist() == ["x", "a, quoted"]
    assert people.columns["label"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"client": "who", "features": ["item"]}, "no column 'who'; it has user, item"),
        ({"client": "user", "features": []}, "names no column"),
        ({"client": "user", "features": ["stars"], "label": "item"}, "'item' must hold numbers"),
    ],
)
def test_errors_name_the_column(how: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_frame(pyarrow.table(ROWS), **how)


def test_missing_clients_and_labels_are_refused() -> None:
    frame = pandas.DataFrame({"user": ["a", None], "item": ["x", "y"], "label": [1.0, np.nan]})
    with pytest.raises(InputError, match="missing values"):
        from_frame(frame, client="user", features=["item"])
    with pytest.raises(InputError, match="missing values"):
        from_frame(frame.assign(user="a"), client="user", label="label", features=["item"])


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="there is no file"):
        from_file(tmp_path / "none.csv", client="u", features=["x"])
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(InputError, match="cannot be read"):
        from_file(tmp_path / "bad.parquet", client="u", features=["x"])
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n3\n")
    with pytest.raises(InputError, match="cannot be read"):
        from_file(tmp_path / "bad.csv", client="a", features=["b"])
    with pytest.raises(InputError, match="pandas, polars or pyarrow"):
        from_frame({"a": [1]}, client="a", features=["a"])


def test_gaps_inside_lists_are_padding_and_fixed_lists_are_lists() -> None:
    gaps = pyarrow.table({"user": [1, 1], "item": [["x", None, "y"], ["y"]]})
    people = from_frame(gaps, client="user", features=["item"])
    assert people.columns["item"].tolist() == [[0, -1, 1], [1, -1, -1]]
    fixed = pyarrow.table({"user": [1], "item": pyarrow.array([[3, 5]], pyarrow.list_(pyarrow.int64(), 2))})
    assert from_frame(fixed, client="user", features=["item"]).columns["item"].tolist() == [[0, 1]]


def test_moments_in_time_are_seconds_and_keep_them() -> None:
    stamps = [1385000000.0, 1385000040.0]
    frame = pandas.DataFrame(
        {"user": [1, 1], "item": ["x", "y"], "at": stamps, "when": pandas.to_datetime(stamps, unit="s")}
    )
    people = from_frame(frame, client="user", features=["item"], columns=["at", "when"])
    for name in ("at", "when"):
        train, test = people.split(time=name, at=1385000020)
        assert (train.examples, test.examples) == (1, 1)


def test_one_column_for_two_purposes_and_no_rows_are_refused() -> None:
    with pytest.raises(InputError, match="two purposes"):
        from_frame(pyarrow.table(ROWS), client="user", label="stars", features=["stars"])
    with pytest.raises(InputError, match="no rows"):
        from_frame(pandas.DataFrame({"user": [], "item": []}), client="user", features=["item"])


def test_text_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_bytes("user,item\na,café\n".encode("latin-1"))
    with pytest.raises(InputError, match="UTF-8"):
        from_file(tmp_path / "old.csv", client="user", features=["item"])
