"""Own data from every format are the same data, and what is missing is missing in all of them."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedslice.data.learning import gather
from fedslice.data.preparing import by_client, prepare
from fedslice.data.purposes import Purposes
from fedslice.data.reading import Query, open_source
from fedslice.errors import InputError, MissingDataError

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
dataset = pytest.importorskip("pyarrow.dataset")

ROWS: list[dict[str, Any]] = [
    {
        "user": "a",
        "item": 3,
        "tags": ["x", "y"],
        "price": 1.5,
        "when": "2026-01-05 10:00:00",
        "y": 0,
    },
    {
        "user": "b",
        "item": None,
        "tags": ["y"],
        "price": None,
        "when": "2026-01-06 11:30:00",
        "y": 1,
    },
    {"user": "a", "item": 7, "tags": None, "price": 2.5, "when": None, "y": 1},
]
PURPOSES = Purposes(
    "user",
    "y",
    ["item", "tags", "when:hour", "when:weekday"],
    {"price": "standard"},
    lists=["tags"],
)


def typed() -> Any:
    from datetime import datetime

    rows = [{**row, "when": row["when"] and datetime.fromisoformat(row["when"])} for row in ROWS]
    return pyarrow.Table.from_pylist(rows)


def written(separator: str) -> str:
    def cell(value: Any) -> str:
        if isinstance(value, list):
            return " | ".join(value)
        text = "" if value is None else str(value)
        return text.replace(".", ",") if separator == ";" and isinstance(value, float) else text

    lines = [separator.join(ROWS[0]), *(separator.join(map(cell, row.values())) for row in ROWS)]
    return "\n".join(lines) + "\n"


def make(kind: str, folder: Path) -> Any:
    separators = {"csv": ",", "semicolons": ";", "tsv": "\t", "csv.gz": ","}
    if kind in separators:
        text = written(separators[kind]).encode()
        name = "data.csv" if kind == "semicolons" else f"data.{kind}"
        file = folder / name
        file.write_bytes(gzip.compress(text) if kind == "csv.gz" else text)
        return file
    if kind in ("jsonl", "jsonl.gz"):
        text = "\n".join(
            json.dumps({key: value for key, value in row.items() if value is not None})
            for row in ROWS
        ).encode()
        file = folder / f"data.{kind}"
        file.write_bytes(gzip.compress(text) if kind == "jsonl.gz" else text)
        return file
    if kind == "parquet":
        parquet.write_table(typed(), folder / "data.parquet")
        return folder / "data.parquet"
    if kind == "folder":
        for number in range(3):
            parquet.write_table(typed()[number : number + 1], folder / f"part-{number}.parquet")
        return folder
    if kind == "query":
        pytest.importorskip("duckdb")
        parquet.write_table(typed(), folder / "data.parquet")
        return Query(f"select * from '{folder / 'data.parquet'}'")
    frame = typed().to_pandas()
    if kind == "polars":
        return pytest.importorskip("polars").from_arrow(typed())
    return frame if kind == "pandas" else typed()


KINDS = (
    "csv", "semicolons", "tsv", "csv.gz", "jsonl", "jsonl.gz", "parquet", "folder", "query",
    "pandas", "polars", "pyarrow",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_the_same_data(kind: str, tmp_path: Path) -> None:
    found = prepare(make(kind, tmp_path), PURPOSES, test=0.0)
    item, tags, hour, weekday, price = found.features.columns
    assert (item.values, tags.values) == (("3", "7"), ("x", "y"))
    assert (price.mean, price.spread) == (2.0, 0.5)
    assert found.train.clients.tolist() == ["a", "b"]
    # rows of a: the first and the third; 2026-01-05 was a Monday
    ids = [[0, 2, 3, hour.start + 10, weekday.start], [1, -1, -1, -1, -1]]
    ids += [[-1, 3, -1, hour.start + 11, weekday.start + 1]]
    assert found.train.columns["features"].tolist() == ids
    assert found.train.columns["numbers"].tolist() == [[-1.0], [1.0], [0.0]]
    assert found.train.columns["label"].tolist() == [0.0, 1.0, 1.0]


def test_purposes_told_by_the_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {
        "user": [f"u{n % 9}" for n in range(300)],
        "item": [f"i{n % 7}" for n in range(300)],
        "age": rng.integers(18, 60, 300).tolist(),
        "price": np.round(rng.random(300), 3).tolist(),
        "when": [f"2026-02-{1 + n % 28:02d} 08:00:00" for n in range(300)],
        "order": list(range(10**6, 10**6 + 300)),
        "y": [n % 2 for n in range(300)],
    }
    text = [
        ",".join(columns),
        *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    (tmp_path / "a.csv").write_text("\n".join(text))
    for data in (tmp_path / "a.csv", pyarrow.table(columns)):
        _, purposes, notes = gather(open_source(data), Purposes("user", "y"))
        moments = ["when:hour", "when:weekday"] if data != columns else []
        if isinstance(data, Path):
            assert list(purposes.features or ()) == ["item", "age", *moments]
            assert purposes.time == "when"
        assert dict(purposes.numbers) == {"price": "buckets"}  # type: ignore[call-overload]
        assert [note.split()[1] for note in notes] == ["order"]


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match="no file"):
        open_source(tmp_path / "none.csv")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no Parquet file in it"):
        open_source(tmp_path / "empty")
    (tmp_path / "bad.jsonl").write_text('{"user": 1}\n{"user": \n')
    with pytest.raises(InputError, match=r"bad\.jsonl cannot be read"):
        gather(open_source(tmp_path / "bad.jsonl"), Purposes("user", None, ["user"]))
    (tmp_path / "a.csv").write_text("user,item,y\na,x,1\nb,y,much\n")
    with pytest.raises(InputError, match=r"'much' in row 2, which is not a number"):
        gather(open_source(tmp_path / "a.csv"), Purposes("user", "y", ["item"], label_as="number"))
    with pytest.raises(InputError, match="no column 'price'; it has user, item, y"):
        gather(open_source(tmp_path / "a.csv"), Purposes("user", "y", ["item"], ["price"]))
    (tmp_path / "b.csv").write_text("user,item,when\na,x,5 May\n")
    with pytest.raises(InputError, match="not a moment"):
        gather(open_source(tmp_path / "b.csv"), Purposes("user", None, ["item"], time="when"))
    (tmp_path / "c.csv").write_text("user,item\na,x\n,y\n")
    raw, _, _ = gather(open_source(tmp_path / "c.csv"), Purposes("user", None, ["item"]))
    with pytest.raises(InputError, match="first in row 2"):
        by_client(raw, "user")
    with pytest.raises(InputError, match="two purposes"):
        Purposes("user", "item", ["item"])


def test_a_query_that_fails_is_named(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    with pytest.raises(InputError, match="cannot be answered"):
        open_source(Query("select nothing from nowhere"))
    with pytest.raises(MissingDataError, match="no database"):
        open_source(Query("select 1", str(tmp_path / "none.duckdb")))
