"""Frames and files: ids, names, shared ids, lists, missing values, and errors that help."""

import gzip
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from pyarrow import parquet

from fedslice.data.loading import from_file, from_frame
from fedslice.errors import InputError, MissingDataError

ROWS: dict[str, list[Any]] = {
    "user": ["b", "a", "b", "c"],
    "item": ["x", "y", "z", "x"],
    "history": [["z"], [], ["x", "y"], None],
    "stars": [5, 3, 4, 1],
    "clicked": [True, False, True, False],
}


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pyarrow.table])
def test_all_kinds_of_frames_give_the_same(make: Any) -> None:
    people = from_frame(
        make(ROWS), client="user", label="clicked", features=[("item", "history"), "stars"]
    )
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
    assert people.columns["item"].tolist() == [0, -1, 1]


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "parquet"])
def test_files(ending: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"user": ["é", "b"], "item": ["a, quoted", "x"], "label": [0, 1]})
    file = tmp_path / f"data.{ending}"
    if ending == "parquet":
        parquet.write_table(pyarrow.Table.from_pandas(frame), file)
    else:
        text = (
            frame.to_csv(index=False, sep="\t" if ending == "tsv" else ",")
            .replace("\n", "\r\n")
            .encode()
        )
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
    (tmp_path / "long.csv").write_text('a,b\n1,2\n"' + "x" * 3_000_000)
    with pytest.raises(
        InputError,
        match=r"long.csv cannot be read.*A line of it is too long: look for a quote",
    ):
        from_file(tmp_path / "long.csv", client="a", features=["b"])
    for name, sign in (("other.csv", ";"), ("other.tsv", ",")):
        (tmp_path / name).write_text(sign.join("ab") + "\n" + sign.join("12") + "\n")
        people = from_file(tmp_path / name, client="a", features=["b"])  # the header tells
        assert people.names["b"].tolist() == [2]
    (tmp_path / "one.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"one.csv: the data has no column 'c'; it has a, b"):
        from_file(tmp_path / "one.csv", client="a", features=["c"])
    with pytest.raises(InputError, match="'b' has infinite values, which name nothing"):
        from_frame(pandas.DataFrame({"a": [1, 2], "b": [1.0, np.inf]}), client="a", features=["b"])
    with pytest.raises(InputError, match="pandas, polars or pyarrow"):
        from_frame({"a": [1]}, client="a", features=["a"])


def test_gaps_inside_lists_are_padding_and_fixed_lists_are_lists() -> None:
    gaps = pyarrow.table({"user": [1, 1], "item": [["x", None, "y"], ["y"]]})
    people = from_frame(gaps, client="user", features=["item"])
    assert people.columns["item"].tolist() == [[0, -1, 1], [1, -1, -1]]
    fixed = pyarrow.table(
        {"user": [1], "item": pyarrow.array([[3, 5]], pyarrow.list_(pyarrow.int64(), 2))}
    )
    assert from_frame(fixed, client="user", features=["item"]).columns["item"].tolist() == [[0, 1]]


def test_moments_in_time_are_seconds_and_keep_them() -> None:
    stamps = [1385000000.0, 1385000040.0]
    frame = pandas.DataFrame(
        {
            "user": [1, 1],
            "item": ["x", "y"],
            "at": stamps,
            "when": pandas.to_datetime(stamps, unit="s"),
        }
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


# -- ids as they are written -----------------------------------------------------------------------


def csv_of(folder: Path, content: str, **how: Any) -> Any:
    (folder / "data.csv").write_text(content)
    return from_file(folder / "data.csv", client="user", features=["item"], **how)


def test_ids_beyond_63_bits_stay_apart(tmp_path: Path) -> None:
    """As floats, fifty clients from 2^63 on would be one."""
    clients = [str(2**63 + n) for n in range(50)]
    items = [str(2**64 + n) for n in range(50)]
    rows = "".join(f"{user},{item}\n" for user, item in zip(clients, items, strict=True))
    people = csv_of(tmp_path, "user,item\n" + rows)
    assert people.clients.tolist() == clients
    assert people.names["item"].tolist() == items
    wide = pyarrow.table(
        {
            "user": pyarrow.array([2**64 - 1, 2**64 - 2], pyarrow.uint64()),
            "item": pyarrow.array([Decimal(2**70), Decimal(2**70 + 1)]),
        }
    )
    people = from_frame(wide, client="user", features=["item"])
    assert people.clients.tolist() == [2**64 - 2, 2**64 - 1]
    assert people.names["item"].tolist() == [str(2**70), str(2**70 + 1)]


def test_leading_zeros_tell_ids_apart_and_plain_numbers_are_numbers(tmp_path: Path) -> None:
    people = csv_of(tmp_path, "user,item\n1,10\n001,9\n1,9\n")
    assert people.clients.tolist() == ["001", "1"]
    assert people.counts.tolist() == [1, 2]
    assert people.names["item"].tolist() == [9, 10]
    both = csv_of(tmp_path, "user,item\n1,1\n1,1.0\n")  # two ways to write it are two names
    assert both.names["item"].tolist() == ["1", "1.0"]


@pytest.mark.parametrize("kind", ["csv", "parquet", "pandas", "polars"])
def test_missing_means_the_same_everywhere_and_keeps_the_shape(kind: str, tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "user": [1, 1, 2, 2],
        "item": ["x", None, "", "y"],
        "n": [3, None, 5, 3],
    }
    if kind == "csv":
        (tmp_path / "d.csv").write_text('user,item,n\n1,x,3\n1,,\n2,"",5\n2,y,3\n')
        frame: Any = None
    else:
        frame = {"pandas": pandas.DataFrame, "polars": polars.DataFrame, "parquet": pyarrow.table}[
            kind
        ](rows)
    if kind == "parquet":
        parquet.write_table(frame, tmp_path / "d.parquet")
        frame = None
    how: dict[str, Any] = {"client": "user", "features": ["item", "n"]}
    people = from_file(tmp_path / f"d.{kind}", **how) if frame is None else from_frame(frame, **how)
    assert people.columns["item"].tolist() == [0, -1, -1, 1]
    assert people.columns["n"].tolist() == [0, -1, 1, 0]  # in pandas a column of floats with a NaN
    assert people.names["n"].tolist() == [3, 5]


def test_an_empty_client_is_refused_by_its_row_and_na_is_missing_among_numbers_only(
    tmp_path: Path,
) -> None:
    with pytest.raises(InputError, match="'user', the client, has missing values, first in row 2"):
        csv_of(tmp_path, "user,item\na,x\n,y\n")
    assert csv_of(tmp_path, "user,item\na,NA\na,7\n").columns["item"].tolist() == [-1, 0]
    assert csv_of(tmp_path, "user,item\na,NA\na,x\n").names["item"].tolist() == ["NA", "x"]


STAMPS = ["2020-01-01 10:00:00", "2020-01-01 10:00:01"]


@pytest.mark.parametrize("values", [[0.5, 1.25], STAMPS], ids=["fractions", "moments"])
def test_what_is_no_category_is_refused_unless_it_is_called_text(
    values: list[Any], tmp_path: Path
) -> None:
    """A time stamp as a feature would have a row for every second."""
    text = "user,item\n" + "".join(f"a,{value}\n" for value in values)
    moments = pandas.to_datetime(values) if values is STAMPS else values
    frame = pandas.DataFrame({"user": "a", "item": moments})
    for make in (
        lambda **how: csv_of(tmp_path, text, **how),
        lambda **how: from_frame(frame, client="user", features=["item"], **how),
    ):
        with pytest.raises(InputError, match=r"'item'.*2 values would be a category.*--text item"):
            make()
        assert len(make(text=["item"]).names["item"]) == 2
    assert csv_of(tmp_path, text, text=["item"]).names["item"].tolist() == [
        str(value) for value in values
    ]


def test_ids_that_floats_have_merged_already_are_refused() -> None:
    frame = pandas.DataFrame({"user": 1, "item": [2.0**53 + 2, 1.0]})
    with pytest.raises(InputError, match="not exact beyond 9,007,199,254,740,992"):
        from_frame(frame, client="user", features=["item"])


def test_columns_that_share_ids_share_them_by_text_where_kinds_differ() -> None:
    frame = pyarrow.table({"user": [1, 1], "item": [1, 2], "history": [["01", "1"], []]})
    people = from_frame(frame, client="user", features=[("item", "history")])
    assert people.names["item"].tolist() == ["01", "1", "2"]
    assert people.columns["item"].tolist() == [1, 2]
    assert people.columns["history"].tolist() == [[0, 1], [-1, -1]]


# -- one vocabulary for two files ------------------------------------------------------------------


def test_names_of_the_training_data_give_the_ids_and_unknown_values_are_padding(
    tmp_path: Path,
) -> None:
    train = csv_of(tmp_path, "user,item\na,7\na,30\n")
    assert csv_of(tmp_path, "user,item\nb,30\nb,8\n", names=train.names).columns[
        "item"
    ].tolist() == [1, -1]
    frame = pyarrow.table({"user": [1, 1, 1], "item": ["30", "x", "7"]})
    text = from_frame(frame, client="user", features=["item"], names=train.names)
    assert text.columns["item"].tolist() == [1, -1, 0]
    assert text.names["item"] is train.names["item"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            {"item": np.array(["q"])},
            "none of the values of 'item', such as 'x', is among the names given, such as 'q'",
        ),
        ({"itme": np.array(["x"])}, "names= speaks of 'itme'"),
        ({"item": np.array(["x", "x"])}, "twice"),
    ],
)
def test_names_that_do_not_fit(names: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(InputError, match=words):
        from_frame(
            pyarrow.table({"user": [1], "item": ["x"]}),
            client="user",
            features=["item"],
            names=names,
        )


# -- bad shapes ------------------------------------------------------------------------------------


def test_a_column_named_twice_matters_only_if_it_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="two columns named 'item'"):
        csv_of(tmp_path, "user,item,item\na,x,y\n")
    assert csv_of(tmp_path, "user,item,x,x\na,x,1,2\n").examples == 1


@pytest.mark.parametrize(
    "frame",
    [
        pandas.DataFrame({"user": ["a", 1], "item": [1, 2]}),
        pandas.DataFrame({"user": [1, 2**65], "item": [1, 2]}),
        pyarrow.table({"user": [1], "item": [{"a": 1}]}),
        pyarrow.table({"user": [1], "item": [[[1]]]}),
        pyarrow.table({"user": [b"\xff"], "item": [1]}),
    ],
    ids=["mixed", "huge", "struct", "nested", "bytes"],
)
def test_columns_that_cannot_be_ids(frame: Any) -> None:
    with pytest.raises(InputError, match="column"):
        from_frame(frame, client="user", features=["item"])


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (
            [[1] * 300_000, *[[1]] * 2_000],
            "'item' has a list of length 300,000, and each of 2,001 .*shorten",
        ),
        (
            ["x" * 100_000, *map(str, range(2_000))],
            "'item' has a value of length 100,000, and each of 2,001 .*shorten",
        ),
    ],
    ids=["list", "name"],
)
def test_one_long_value_may_not_fill_the_memory(
    items: list[Any], words: str, tmp_path: Path
) -> None:
    """Every example and every name takes the room of the longest: 2.4 GB and 0.8 GB here, of a file
    of a few kB."""
    file = tmp_path / "long.parquet"
    parquet.write_table(pyarrow.table({"user": np.arange(2_001) % 5, "item": items}), file)
    with pytest.raises(InputError, match=words):
        from_file(file, client="user", features=["item"])
