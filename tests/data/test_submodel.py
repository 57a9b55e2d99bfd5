"""S(i), positions and slots against brute force with Python sets."""

import numpy as np
import pytest

from fedslice.data import submodel
from fedslice.data.submodel import index
from fedslice.errors import InputError


def check(columns: dict[str, np.ndarray], offsets: np.ndarray | list[int], rows: int) -> None:
    offsets = np.asarray(offsets)
    got = index(columns, offsets, rows)
    clients = len(offsets) - 1
    sets = [
        sorted(
            {
                int(i)
                for column in columns.values()
                for i in np.ravel(column[offsets[c] : offsets[c + 1]])
                if i >= 0
            }
        )
        for c in range(clients)
    ]
    ids = sorted(set().union(*sets)) if sets else []
    assert got.ids.tolist() == ids
    assert got.sizes.tolist() == [len(s) for s in sets]
    for c, own in enumerate(sets):
        assert got.ids[got.slots[got.offsets[c] : got.offsets[c + 1]]].tolist() == own
    owners = np.repeat(np.arange(clients), np.diff(offsets))
    for name, column in columns.items():
        assert got.positions[name].shape == column.shape
        slots = got.global_slots(name, owners)
        for e, owner in enumerate(owners):
            values = np.ravel(column[e]).tolist()
            expected = [sets[owner].index(v) if v >= 0 else -1 for v in values]
            assert np.ravel(got.positions[name][e]).tolist() == expected
            assert np.ravel(slots[e]).tolist() == [ids.index(v) if v >= 0 else -1 for v in values]
    counts = np.diff(offsets)
    heat = got.heat(counts)
    assert heat[:, 0].tolist() == [sum(row in s for s in sets) for row in ids]
    assert heat[:, 1].tolist() == [
        sum(int(n) for n, s in zip(counts, sets, strict=True) if row in s) for row in ids
    ]


def random_columns(rows: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 6, 15)
    offsets = np.append(0, np.cumsum(counts))
    n = int(offsets[-1])
    pool = rng.integers(0, rows, 12)  # few distinct ids, so that clients share rows
    history = rng.choice(pool, (n, 2, 3))
    history[rng.random(history.shape) < 0.3] = -1
    return {"item": rng.choice(pool, n), "history": history}, offsets


@pytest.mark.parametrize("rows", [13, 10**4, 10**9, 10**12])
@pytest.mark.parametrize("chunk", [1, 40, 1 << 22])
def test_against_sets(rows: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submodel, "CHUNK", chunk)
    columns, offsets = random_columns(rows, seed=rows % 97)
    check(columns, offsets, rows)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_any_integers(dtype: type) -> None:
    """Narrow types must not overflow when clients are told apart by multiples of the number of
    rows."""
    column = np.array([100, 3, 100, 7, 119], dtype)
    check({"item": column}, np.array([0, 2, 4, 5]), 120)


def test_padding_of_any_negative_number_and_nothing_but_padding() -> None:
    check({"h": np.array([[-1, -(2**40)], [-7, -1], [-1, -1]])}, np.array([0, 1, 1, 3]), 5)


def test_padding_of_any_negative_number_at_one_client() -> None:
    """One client alone is found by marks, where -3 would be the third row from the end."""
    check({"h": np.array([[-1, 4], [-3, 0], [-2, -2]]), "i": np.array([0, -4, 4])}, [0, 3], 5)
    check({"h": np.array([-2, -3])}, [0, 2], 5)


def test_clients_times_rows_beyond_32_bits() -> None:
    """Three clients of 10^9 rows each are told apart by numbers up to 3 10^9: more than 31 bits,
    though not more than 32."""
    rows = 10**9
    check({"h": np.array([rows - 1, 5, rows - 1, 5, 0, rows - 2])}, [0, 2, 4, 6], rows)


def test_first_and_last_row() -> None:
    check({"h": np.array([0, 4, 4, 0])}, np.array([0, 1, 2, 4]), 5)


def test_no_clients_at_all() -> None:
    got = index({"h": np.zeros(0, np.int64)}, np.zeros(1, np.int64), 5)
    assert len(got.ids) == len(got.slots) == 0
    assert got.offsets.tolist() == [0]


@pytest.mark.every
def test_a_million_examples() -> None:
    """MovieLens-1M's size: 1,000,209 examples of 6,040 clients, 5 ids each."""
    rng = np.random.default_rng(0)
    clients, examples, rows = 6040, 1_000_209, 37_069
    owners = np.sort(rng.integers(0, clients, examples))
    offsets = np.searchsorted(owners, np.arange(clients + 1))
    ids = (rng.random((examples, 5)) ** 3 * rows).astype(np.int32)
    got = index({"ids": ids}, offsets, rows)
    assert np.array_equal(got.ids[got.global_slots("ids", owners)], ids)
    for client in rng.integers(0, clients, 20):
        held = got.ids[got.slots[got.offsets[client] : got.offsets[client + 1]]]
        assert np.array_equal(held, np.unique(ids[offsets[client] : offsets[client + 1]]))
    assert got.heat(np.diff(offsets))[:, 0].sum() == len(got.slots)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (
            np.array([0, 1, 7]),
            r"'item' has id 7 \(first too large in example 2\).*table has 5 rows",
        ),
        (np.array([0, 5, 1]), r"'item' has id 5 \(first too large in example 1\)"),
        (np.array([0.0, 1.0, 2.0]), r"'item' indexes a table and must hold integers, got float64"),
        (np.array([True, False, True]), r"must hold integers, got bool"),
    ],
)
def test_bad_ids_are_refused_with_advice(column: np.ndarray, words: str) -> None:
    with pytest.raises(InputError, match=words):
        index({"item": column}, np.array([0, 3]), 5)


@pytest.mark.parametrize("rows", [2**58, 2**59, 2**62, 2**63 - 1])
def test_tables_of_any_number_of_rows(rows: int) -> None:
    """Clients are told apart by multiples of the number of rows: thirty-two of 2^59 are more than
    63 bits."""
    last = np.array([rows - 1, 0, rows - 2, 5] * 10)
    check(
        {"item": last, "history": np.stack([last, np.where(last == 5, -1, 5)], 1)},
        np.arange(41),
        rows,
    )


def test_rounds_over_all_rows_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots are then the rows themselves."""
    monkeypatch.setattr(submodel, "WHOLE", 6)
    found = index({"h": np.array([5, 2, 2])}, np.array([0, 2, 3]), 6)
    assert found.whole(6).ids.tolist() == list(range(6))
    assert found.whole(6).slots.tolist() == [2, 5, 2]
    with pytest.raises(InputError, match="7 rows is too large for rounds over all of its rows"):
        found.whole(7)


@pytest.mark.parametrize(("rows", "kind"), [(1 << 15, np.int16), ((1 << 15) + 1, np.int32)])
def test_positions_are_as_wide_as_the_largest_client_needs(rows: int, kind: type) -> None:
    """Two clients: one holds all of the rows, and a padded example; the other three of them."""
    few = np.array([5, 2, rows - 1])
    item = np.concatenate([np.arange(rows)[::-1], [-1], few])
    space = index({"item": item}, np.array([0, rows + 1, rows + 4]), rows)
    position = space.positions["item"]
    assert position.dtype == kind
    np.testing.assert_array_equal(position[:rows], np.arange(rows)[::-1])
    assert position[rows:].tolist() == [-1, 1, 0, 2]
    owners = np.repeat([0, 1], [rows + 1, 3])
    np.testing.assert_array_equal(space.global_slots("item", owners), item)
