"""Amazon Electronics: the two public formats, and a generator with the published statistics."""

import gzip
import json
import zipfile

import numpy as np
import pytest

from fedslice.errors import InputError, MissingDataError
from fedslice.tasks import amazon_din
from fedslice.tasks.amazon_din import LAST, LONGEST, generate, load, synthetic

DAY = 86_400


def ratings():
    """Two users with 45 and 41 ratings, one with 40: user, item, stars, time; three a day, out of
    order."""
    rows = []
    for user, count in (("A2", 45), ("A1é", 41), ("A3", 40)):
        for number in range(count):
            stars = 5 if number % 4 else 1 + number // 4 % 4
            time = (LAST // DAY - 10 + number // 3) * DAY
            rows.append((user, f"B{(7 * number) % 50:03}", float(stars), time))
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows))]


def as_csv(rows):
    return "".join(f"{user},{item},{stars},{time}\n" for user, item, stars, time in rows).encode()


def as_json(rows):
    lines = []
    for user, item, stars, time in rows:
        text = {
            "reviewText": 'It\'s "ok" 😀\n, {so}',
            "helpful": [0, 1],
            "reviewerName": "é, Z.",
            "summary": "",
        }
        record = {
            "reviewerID": user,
            "asin": item,
            **text,
            "overall": stars,
            "unixReviewTime": time,
        }
        lines.append(json.dumps(record, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


def expected(rows):
    """User, item, label, sorted history and whether it is late, from the definition."""
    kept = [row for row in rows if row[0] != "A3"]
    examples = []
    for user, item, stars, time in kept:
        past = [
            (when, other)
            for who, other, liked, when in kept
            if who == user and liked == 5 and when < time
        ]
        past.sort(key=lambda event: event[0])
        days = [when for when, _ in past[-LONGEST:]]
        # of the oldest day any may be left out
        certain = {other for when, other in past if days and when > days[0]}
        examples.append((user, item, stars == 5, len(past[-LONGEST:]), certain, time > LAST))
    return examples


def check(task, rows):
    found = {}
    for late, people in ((False, task.train), (True, task.test)):
        names = people.names
        for place in range(people.examples):
            user, item = (names[field][people.columns[field][place]] for field in ("user", "item"))
            assert user == people.clients[people.owners[place]]
            history = people.columns["history"][place]
            past = names["history"][history[history >= 0]]
            found[user, item] = (
                people.columns["label"][place] == 1,
                len(past),
                set(past.tolist()),
                late,
            )
    wanted = expected(rows)
    assert len(found) == len(wanted) == task.train.examples + task.test.examples
    for user, item, label, length, certain, late in wanted:
        known_label, known_length, past, known_late = found[user, item]
        assert (known_label, known_length, known_late) == (label, length, late)
        assert certain <= past


@pytest.mark.parametrize("name", ["ratings_Electronics.csv", "reviews_Electronics_5.json"])
@pytest.mark.parametrize("form", ["plain", "gz", "zip", "windows"])
def test_both_formats_in_every_wrapping(tmp_path, name, form):
    rows = ratings()
    content = as_json(rows) if name.endswith("json") else as_csv(rows)
    if form == "zip":
        with zipfile.ZipFile(tmp_path / "amazon.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"amazon/{name}", content)
    elif form == "gz":
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    elif form == "windows":
        (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    else:
        (tmp_path / name).write_bytes(content)
    path = {"zip": tmp_path / "amazon.zip", "gz": tmp_path / f"{name}.gz"}.get(form, tmp_path)
    task = load(path)
    check(task, rows)
    assert len(task.train) == len(task.test) == 2
    assert task.model.tables["user"].rows == 2
    assert task.model.tables["item"].rows == len({row[1] for row in rows if row[0] != "A3"})


def test_the_second_start_reads_the_cache_and_new_data_do_not(tmp_path, monkeypatch):
    rows = ratings()
    path = tmp_path / "ratings_Electronics.csv"
    path.write_bytes(as_csv(rows))
    first = load(path)
    with monkeypatch.context() as patch:
        patch.setattr(amazon_din, "_read", None)
        second = load(path)
        for name, column in first.train.columns.items():
            assert np.array_equal(column, second.train.columns[name])
    more = [*rows, ("A3", "B999", 5.0, LAST + DAY)]
    path.write_bytes(as_csv(more))
    assert len(load(path).train) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-4], "cut off"),
        (lambda text: text[:-12], "Expected 4 columns"),
        (lambda text: text.replace(b",5.0,", b",6.0,", 1), "1 to 5"),
        (lambda text: text.replace(b",5.0,", b",,", 1), "without rating"),
        (
            lambda text: b"\n".join(line for line in text.split(b"\n") if b"A3" in line),
            "more than 40",
        ),
        (lambda text: b"", "empty"),
    ],
)
def test_damaged_ratings_are_refused(tmp_path, change, message):
    rows = sorted(ratings(), key=lambda row: row[0] == "A3")
    (tmp_path / "ratings_Electronics.csv").write_bytes(change(as_csv(rows).removesuffix(b"\n")))
    with pytest.raises(InputError, match=message):
        load(tmp_path)


def test_a_truncated_archive_and_missing_files_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match="reviews_Electronics_5"):
        load(tmp_path)
    (tmp_path / "reviews_Electronics_5.json.gz").write_bytes(
        gzip.compress(as_json(ratings()))[:-500]
    )
    with pytest.raises(InputError, match="download it again"):
        load(tmp_path)


@pytest.fixture(scope="module")
def generated():
    return synthetic(seed=0)


def test_the_generator_has_the_published_sizes(generated):
    counts = generated.train.counts + generated.test.counts
    assert len(counts) == 1870
    assert counts.sum() == 123_147
    assert counts.min() == 41
    assert round(counts.mean()) == 66
    assert np.quantile(counts, 0.5) == pytest.approx(53, abs=2)
    assert counts.max() == pytest.approx(431, rel=0.05)
    # sum of the authors' weights
    assert generated.train.examples == pytest.approx(99_710, rel=0.01)
    assert generated.train.columns["label"].mean() == pytest.approx(0.6, abs=0.01)


def test_the_generator_has_the_published_heat(generated):
    heat = generated.train.heat(generated.model)
    assert heat.dispersion == pytest.approx(232, rel=0.05)
    users, items = heat.counts("user"), heat.counts("item")
    assert users.max() == 1
    assert items.max() == heat.dispersion
    assert len(items) == pytest.approx(28_000, rel=0.05)
    # The authors' weights, sum of all / sum of a product's users, of the first 900 products:
    # quantiles 0.1, 0.5, 0.9.
    weight = heat.coefficient("item", heat.ids["item"], "examples")
    assert np.quantile(weight, (0.1, 0.5, 0.9)) == pytest.approx((190, 900, 2_400), rel=0.25)


def test_histories_are_earlier_and_some_ratings_share_a_day(generated):
    data = generate(seed=0)
    same = (data.user[1:] == data.user[:-1]) & (data.time[1:] == data.time[:-1])
    assert 0.02 < same.mean() < 0.3
    pairs = data.user.astype(np.int64) * len(data.item_names) + data.item
    assert len(np.unique(pairs)) == len(pairs)
    history = generated.train.columns["history"]
    assert not (
        history == generated.train.columns["item"][:, None]
    ).any()  # nobody rates a product twice


def test_generation_is_repeatable_and_scales():
    one, two, other = generate(3, 0.1), generate(3, 0.1), generate(4, 0.1)
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    assert not np.array_equal(one.five, other.five)
    assert len(one.user_names) == 187
    assert len(one.user) == 12_315
    with pytest.raises(InputError, match=r"at least 0\.02"):
        generate(0, 0.001)


def test_users_and_cold_products_carry_signal():
    """Rates of five stars differ between users, and between products of few ratings, by more than
    chance."""
    data = generate(seed=0)
    for owner, smallest, largest in ((data.user, 41, 10**6), (data.item, 3, 6)):
        count = np.bincount(owner)
        chosen = (count >= smallest) & (count <= largest)
        rate = np.bincount(owner, data.five)[chosen] / count[chosen]
        chance = np.mean(0.24 / count[chosen])  # variance if all had the same rate, 0.6
        # five standard errors above it
        assert rate.var() > (1 + 5 * np.sqrt(2 / chosen.sum())) * chance


def of_authors(folder, counts=(6, 10, 1), test=()):
    """Files as the authors publish them: user n has counts[n - 1] examples of products 100, 101,
    ..., each liked but every third; ``test`` are lines of amazon_test."""
    users = folder / "user_data" / "users"
    users.mkdir(parents=True)
    for user, count in enumerate(counts, 1):
        lines, past = [], []
        for number in range(count):
            liked = number % 3 != 2
            lines.append(f"{int(liked)}\t{user}\t{100 + number}\t{','.join(past) or 0}\n")
            past += [str(100 + number)] if liked else []
        (users / f"user_{user}").write_text("".join(lines))
    if test:
        (folder / "central_data").mkdir()
        (folder / "central_data" / "amazon_test").write_text("".join(test))
    return users


def shown_examples(people):
    """(user, item, label, history) of each example, by name."""
    names, columns = people.names, people.columns
    return [
        (
            str(people.clients[people.owners[place]]),
            str(names["item"][columns["item"][place]]),
            int(columns["label"][place]),
            [str(names["history"][each]) for each in columns["history"][place] if each >= 0],
        )
        for place in range(people.examples)
    ]


@pytest.mark.parametrize("above", [0, 1, 2])
def test_the_authors_files_are_read_with_all_users(tmp_path, above):
    users = of_authors(tmp_path)
    task = load((users, users.parent, tmp_path)[above])
    assert task.train.clients.tolist() == ["1", "2", "3"]
    assert task.train.counts.tolist() == [5, 8, 1]  # the last fifth, rounded down, is for testing
    assert task.test.counts.tolist() == [1, 2, 0]
    assert shown_examples(task.train)[:5] == [
        ("1", "100", 1, []),
        ("1", "101", 1, ["100"]),
        ("1", "102", 0, ["100", "101"]),
        ("1", "103", 1, ["100", "101"]),
        ("1", "104", 1, ["100", "101", "103"]),
    ]
    assert shown_examples(task.test)[-1] == (
        "2",
        "109",
        1,
        ["100", "101", "103", "104", "106", "107"],
    )
    assert task.model.tables["item"].rows == 10


def test_the_authors_test_file_and_first_examples(tmp_path):
    users = of_authors(tmp_path, test=("1\t2\t900\t100,900\n", "0\t7\t100\t0\n"))
    task = load(users, first=4)
    assert task.train.clients.tolist() == ["1", "2", "3", "7"]
    assert task.train.counts.tolist() == [4, 4, 1, 0]
    assert [example[1] for example in shown_examples(task.train)[:4]] == [
        "100",
        "101",
        "102",
        "103",
    ]
    assert shown_examples(task.test) == [("2", "900", 1, ["100", "900"]), ("7", "100", 0, [])]
    assert load(users).train.counts.tolist() == [6, 10, 1, 0]
    with pytest.raises(InputError, match="first=-1"):
        load(users, first=-1)


def test_long_histories_keep_the_latest(tmp_path):
    users = of_authors(tmp_path, counts=(60,))
    past = [str(100 + number) for number in range(59) if number % 3 != 2][-LONGEST:]
    assert shown_examples(load(users).test)[-1][3] == past


@pytest.mark.parametrize(
    "line",
    [
        "1\t1\t5",
        "2\t1\t5\t0",
        "1\t1\tx\t0",
        "1\t1\t5\t3,,4",
        "1\t0\t5\t0",
        "1\t1\t5\t-3",
        f"1\t1\t{1 << 40}\t0",
    ],
)
def test_lines_that_are_not_the_authors_are_refused(tmp_path, line):
    users = of_authors(tmp_path)
    (users / "user_2").write_text(f"1\t2\t5\t0\n{line}\n")
    with pytest.raises(InputError, match=r"user_2 line 2: expected label 0 or 1.*got "):
        load(users)
