"""Histories against a plain loop, and tables of events in awkward files."""

import gzip
import sys

import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.tasks.readers import history
from fedslice.tasks.readers.files import File
from fedslice.tasks.readers.history import csv_tables, earlier, encode, json_tables

KINDS = {"user": "string", "item": "string", "rating": "float64", "time": "int64"}


def plain(owner, time, item, positive, longest):
    """What ``earlier`` promises, one event at a time."""
    found = []
    for event in range(len(owner)):
        past = [
            (time[other], other)
            for other in range(len(owner))
            if owner[other] == owner[event] and positive[other] and time[other] < time[event]
        ]
        items = [int(item[other]) for _, other in sorted(past)][-longest:]
        found.append(items + [-1] * (longest - len(items)))
    return found


@pytest.mark.parametrize("longest", [1, 3, 40])
@pytest.mark.parametrize("seed", range(4))
def test_histories_are_those_of_a_plain_loop(seed, longest):
    rng = np.random.default_rng(seed)
    # many at the same time, in no order
    owner, time = (rng.integers(5, size=60), rng.integers(12, size=60))
    item, positive = rng.integers(100, size=60), rng.random(60) < 0.5
    assert earlier(owner, time, item, positive, longest).tolist() == plain(
        owner, time, item, positive, longest
    )


def test_blocks_do_not_show(monkeypatch):
    rng = np.random.default_rng(0)
    events = rng.integers(5, size=50), rng.integers(9, size=50), np.arange(50), rng.random(50) < 0.5
    whole = earlier(*events, 4)
    monkeypatch.setattr(history, "ROWS", 7)
    assert np.array_equal(earlier(*events, 4), whole)


def test_events_of_the_same_time_do_not_see_each_other_in_either_order():
    one, two = np.array([5, 5]), np.array([True, True])
    for items in ([1, 2], [2, 1]):
        assert (earlier(np.array([0, 0]), one, np.array(items), two, 3) == -1).all()


def test_single_and_negative_and_no_events():
    nobody = np.zeros(0, int)
    assert earlier(nobody, nobody, nobody, nobody.astype(bool), 3).shape == (0, 3)
    assert earlier(np.array([3]), np.array([1]), np.array([9]), np.array([True]), 2).tolist() == [
        [-1, -1]
    ]
    disliked = earlier(np.zeros(3, int), np.arange(3), np.arange(3), np.zeros(3, bool), 2)
    assert disliked.dtype == np.int32
    assert (disliked == -1).all()


def read(tmp_path, content, header=False, kinds=KINDS):
    path = tmp_path / "events.csv"
    path.write_bytes(content)
    tables = list(csv_tables(File(path), kinds, header))
    return {
        name: [value for table in tables for value in table[name].to_pylist()] for name in kinds
    }


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_csv_with_byte_order_mark_crlf_quotes_blank_lines_and_no_line_end(
    tmp_path, monkeypatch, block
):
    monkeypatch.setattr(history, "BLOCK", block)
    content = b'\xef\xbb\xbfA1,"B,1",5.0,10\r\n\r\n\xc3\xa9\xf0\x9f\x98\x80,B2,1.0,20'
    assert read(tmp_path, content) == {
        "user": ["A1", "é😀"],
        "item": ["B,1", "B2"],
        "rating": [5.0, 1.0],
        "time": [10, 20],
    }


@pytest.mark.parametrize("block", [7, 1 << 20])
def test_columns_of_a_header_are_found_by_name(tmp_path, monkeypatch, block):
    monkeypatch.setattr(history, "BLOCK", block)
    content = b'\xef\xbb\xbftime,"user",brand,clk\r\n1,7,NULL,0\r\n2,8,3,1\r\n'
    found = read(
        tmp_path, content, header=True, kinds={"user": "int64", "clk": "int64", "time": "int64"}
    )
    assert found == {"user": [7, 8], "clk": [0, 1], "time": [1, 2]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"\r\n\n", "empty"),
        (b"A,B,5.0,1\nA,B,5.", "Expected 4 columns"),
        (b"A,B,five,1\n", "five"),
        (b"A,B,5.0,1.5\n", "1.5"),
        (b"A,,5.0,1\n", "1 rows without item"),
        (b"A,B,,1\n", "1 rows without rating"),
        (b"\xe9,B,5.0,1\n", "UTF8"),
    ],
)
def test_damaged_csv_is_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read(tmp_path, content)


def test_a_missing_column_is_named(tmp_path):
    with pytest.raises(InputError, match="rating"):
        read(tmp_path, b"user,item,time\n1,2,3\n", header=True)


@pytest.mark.parametrize("block", [20, 1 << 20])
def test_json_lines(tmp_path, monkeypatch, block):
    monkeypatch.setattr(history, "BLOCK", block)
    path = tmp_path / "events.json.gz"
    lines = '{"a": "x", "b": 1, "more": {"c": [1, 2]}}\r\n\r\n{"b": 2, "a": "\\u00e9\\" 😀\\n"}\n'
    path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + lines.encode()))
    tables = list(json_tables(File(path), {"a": "string", "b": "int64"}))
    assert [row for table in tables for row in table.to_pylist()] == [
        {"a": "x", "b": 1},
        {"a": 'é" 😀\n', "b": 2},
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b'{"a": "x", "b": 1}\n{"a": "y', "quotation mark"),
        (b'{"a": "x"}\n', "1 rows without b"),
        (b'{"a": 3, "b": 1}\n', "string"),
        (b"a,b\n", "JSON"),
    ],
)
def test_damaged_json_is_refused(tmp_path, content, message):
    path = tmp_path / "events.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(json_tables(File(path), {"a": "string", "b": "int64"}))


def test_a_truncated_archive_is_refused(tmp_path):
    path = tmp_path / "events.csv.gz"
    rng = np.random.default_rng(0)
    text = "".join(f"A{number},B,5.0,1\n" for number in rng.integers(10**9, size=5000))
    path.write_bytes(gzip.compress(text.encode())[:-2000])
    with pytest.raises(InputError, match="download it again"):
        list(csv_tables(File(path), KINDS, header=False))


def test_text_is_encoded_across_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "BLOCK", 12)
    path = tmp_path / "events.csv"
    path.write_text("b,x,5.0,1\na,x,5.0,1\nb,y,5.0,1\n")
    tables = list(csv_tables(File(path), KINDS, header=False))
    assert len(tables) > 1
    codes, names = encode(tables, 0)
    assert codes.tolist() == [0, 1, 0]
    assert names.tolist() == ["b", "a"]


def test_without_pyarrow_the_message_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow.csv", None)
    with pytest.raises(InputError, match=r"fedslice\[data\]"):
        read(tmp_path, b"A,B,5.0,1\n")
