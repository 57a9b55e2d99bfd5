"""Taobao: two public data sets in their exact formats, and a generator with the published
statistics."""

import gzip
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedslice.errors import InputError, MissingDataError
from fedslice.tasks import taobao_din
from fedslice.tasks.generators import taobao as taobao_synthetic
from fedslice.tasks.generators.taobao import generate
from fedslice.tasks.readers import history
from fedslice.tasks.taobao_din import CLICK_DAYS, DISPLAY_DAYS, LONGEST, load, synthetic

KIND = {item: 900 + item % 3 for item in range(1000)}  # an item's category


def behaviour(users=6, seed=0):
    """Lines of UserBehavior.csv: clicks on 30 items in all nine days, other actions, and times out
    of range."""
    rng = np.random.default_rng(seed)
    lines = []
    for user in range(1, users + 1):
        for time in (
            np.sort(rng.integers(CLICK_DAYS[0], CLICK_DAYS[2], size=20)) // 50_000 * 50_000
        ):  # some coincide
            lines.append((user, int(rng.integers(30)), "pv", max(int(time), CLICK_DAYS[0])))
        lines += [(user, 50, kind, CLICK_DAYS[0] + 7) for kind in ("buy", "cart", "fav")]
        lines += [
            (user, 60, "pv", CLICK_DAYS[0] - 1),
            (user, 60, "pv", CLICK_DAYS[2]),
            (user, 60, "pv", -1_000),
        ]
    return lines


def as_csv(lines):
    return "".join(
        f"{user},{item},{KIND[item]},{kind},{time}\n" for user, item, kind, time in lines
    ).encode()


def examples(task):
    """(user, item, category, clicked, history as (item, category) pairs, whether for testing), by
    names."""
    found = []
    for late, people in ((False, task.train), (True, task.test)):
        columns, names = people.columns, people.names
        for place in range(people.examples):
            past = columns["history"][place], columns["history_category"][place]
            assert np.array_equal(past[0] < 0, past[1] < 0)
            real = past[0] >= 0
            items, kinds = names["item"][past[0][real]], names["category"][past[1][real]]
            user, item, kind = (
                int(names[n][columns[n][place]]) for n in ("user", "item", "category")
            )
            assert user == people.clients[people.owners[place]]
            pairs = list(zip(items.tolist(), kinds.tolist(), strict=True))
            found.append((user, item, kind, bool(columns["label"][place]), pairs, late))
    return found


def check_clicks(task, lines):
    clicks = [
        line for line in lines if line[2] == "pv" and CLICK_DAYS[0] <= line[3] < CLICK_DAYS[2]
    ]
    found = examples(task)
    positive = sorted((user, item, late) for user, item, _, clicked, _, late in found if clicked)
    assert positive == sorted((user, item, time >= CLICK_DAYS[1]) for user, item, _, time in clicks)
    own = {(user, item) for user, item, _, _ in clicks}
    assert not any((user, item) in own for user, item, _, clicked, _, _ in found if not clicked)
    shares = [
        sum(one[3] for one in found if one[5] == late) / sum(one[5] == late for one in found)
        for late in (0, 1)
    ]
    assert shares == [0.5, 0.5]
    assert all(kind == KIND[item] for _, item, kind, _, _, _ in found)
    for user, item, _, clicked, past, late in found:
        assert all(kind == KIND[other] and (user, other) in own for other, kind in past)
        times = [
            line[3]
            for line in clicks
            if line[:2] == (user, item) and (line[3] >= CLICK_DAYS[1]) == late
        ]
        if clicked and len(times) == 1:
            before = [other for who, other, _, when in clicks if who == user and when < times[0]]
            assert len(past) == min(LONGEST, len(before))
            if len(before) <= LONGEST:
                assert sorted(other for other, _ in past) == sorted(before)


@pytest.mark.parametrize("form", ["plain", "gz", "zip", "windows"])
def test_clicks_in_every_wrapping(tmp_path, form):
    lines = behaviour()
    content = as_csv(lines)
    if form == "zip":
        with zipfile.ZipFile(
            tmp_path / "UserBehavior.csv.zip", "w", zipfile.ZIP_DEFLATED
        ) as archive:
            archive.writestr("UserBehavior.csv", content)
    elif form == "gz":
        (tmp_path / "UserBehavior.csv.gz").write_bytes(gzip.compress(content))
    else:
        windows = b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n")
        (tmp_path / "UserBehavior.csv").write_bytes(windows if form == "windows" else content)
    task = load(tmp_path / "UserBehavior.csv.zip" if form == "zip" else tmp_path)
    check_clicks(task, lines)
    assert len(task.train) == 6


def write(folder, content, name="UserBehavior.csv"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)
    return folder


def test_a_sample_of_users_does_not_depend_on_their_order_or_on_blocks(tmp_path, monkeypatch):
    lines = behaviour(users=40)
    whole = load(write(tmp_path / "a", as_csv(lines)), clients=10)
    assert len(whole.train) == 10
    check_clicks(whole, [line for line in lines if line[0] in whole.train.clients])
    monkeypatch.setattr(history, "BLOCK", 500)
    other = load(write(tmp_path / "b", as_csv(lines[::-1])), clients=10)
    assert other.train.clients.tolist() == whole.train.clients.tolist()
    assert len(load(tmp_path / "a", clients=1000).train) == 40


def test_a_user_with_one_click_and_one_who_clicked_everything(tmp_path):
    start = CLICK_DAYS[0]
    lines = [(1, 5, "pv", start)] + [(2, item, "pv", start + item) for item in range(10)]
    found = examples(load(write(tmp_path, as_csv(lines))))
    assert [one[1:] for one in found if one[0] == 1 and one[3]] == [(5, KIND[5], True, [], False)]
    assert sum(one[0] == 1 for one in found) == 2
    # there is no item left that user 2 never clicked
    assert not any(one[0] == 2 and not one[3] for one in found)


def displays():
    rng = np.random.default_rng(1)
    times = rng.integers(DISPLAY_DAYS[0], DISPLAY_DAYS[2], size=200) // 40_000 * 40_000
    times = np.maximum(times, DISPLAY_DAYS[0])
    return list(
        zip(
            rng.integers(8, size=200),
            times,
            rng.integers(100, 140, size=200),
            rng.random(200) < 0.3,
            strict=True,
        )
    )


def write_displays(folder, rows, ads=range(100, 150)):
    sample = "user,time_stamp,adgroup_id,pid,nonclk,clk\n"
    sample += "".join(
        f"{user},{time},{ad},430548_1007,{1 - clk},{int(clk)}\n" for user, time, ad, clk in rows
    )
    feature = "adgroup_id,cate_id,campaign_id,customer,brand,price\n"
    feature += "".join(f"{ad},{KIND[ad]},{ad + 1},{ad + 2},NULL,{ad}.5\n" for ad in reversed(ads))
    write(folder, sample.encode(), "raw_sample.csv")
    write(folder, feature.replace("\n", "\r\n").encode(), "ad_feature.csv")
    return folder


def test_advertisements(tmp_path):
    rows = displays()
    found = examples(load(write_displays(tmp_path, rows)))
    wanted = [
        (user, ad, KIND[ad], bool(clk), time >= DISPLAY_DAYS[1]) for user, time, ad, clk in rows
    ]
    assert sorted((*one[:4], one[5]) for one in found) == sorted(wanted)
    single = [
        row for row in rows if sum(row[0] == other[0] and row[2] == other[2] for other in rows) == 1
    ]
    past = {(one[0], one[1]): one[4] for one in found}
    for user, time, ad, _ in single:
        before = sorted(
            (when, other) for who, when, other, clk in rows if who == user and clk and when < time
        )
        assert len(past[user, ad]) == min(LONGEST, len(before))
        if len(before) <= LONGEST:
            assert sorted(past[user, ad]) == sorted((other, KIND[other]) for _, other in before)


def test_advertisements_without_category_and_missing_files_are_refused(tmp_path):
    with pytest.raises(MissingDataError, match="UserBehavior"):
        load(tmp_path)
    with pytest.raises(InputError, match="not in"):
        load(write_displays(tmp_path / "few", displays(), ads=range(100, 120)))
    half = write_displays(tmp_path / "half", displays())
    (half / "ad_feature.csv").unlink()
    with pytest.raises(MissingDataError, match=r"ad_feature\.csv"):
        load(half)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "empty"),
        (b"1,2,3,pv,1511600000\n1,2,3,pv", "Expected 5 columns"),
        (b"1,2,,pv,1511600000\n", "without category"),
        (b"1,2,3,pv,yesterday\n", "yesterday"),
        (b"1,2,3,pv,1\n1,2,3,buy,1511600000\n", "no clicks"),
        # columns are converted side by side
        (b"user,item,category,type,time\n", "'(user|item|category|time)'"),
    ],
)
def test_damaged_clicks_are_refused(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        load(write(tmp_path, content))


def test_a_missing_column_is_named(tmp_path):
    folder = write_displays(tmp_path, displays())
    text = Path(folder / "raw_sample.csv").read_text().replace("clk\n", "click\n", 1)
    with pytest.raises(InputError, match="clk"):
        load(write(folder, text.encode(), "raw_sample.csv"))


def test_the_second_start_reads_the_cache(tmp_path, monkeypatch):
    first = load(write(tmp_path, as_csv(behaviour())))
    monkeypatch.setattr(taobao_din, "_clicks", None)
    second = load(tmp_path)
    assert all(
        np.array_equal(first.train.columns[name], second.train.columns[name])
        for name in first.train.columns
    )


SCALE = 0.01


@pytest.fixture(scope="module")
def generated():
    return synthetic(seed=0, scale=SCALE)


def test_the_generator_has_the_published_sizes(generated):
    train, test = generated.train, generated.test
    assert len(train) == len(test) == round(49_023 * SCALE)
    assert train.examples == round(15_854_357 * SCALE)
    assert test.examples == round(1_010_284 * SCALE)
    counts = train.counts + test.counts
    assert counts.mean() == pytest.approx(344, abs=1)
    assert np.std(np.log(counts)) == pytest.approx(0.65, abs=0.08)
    rows = {name: table.rows for name, table in generated.model.tables.items()}
    root = SCALE ** (1 / 3)
    assert rows == {"user": 490, "item": round(143_534 * root), "category": round(4_815 * root)}
    assert (train.columns["history"] >= 0).mean() > 0.9


def test_five_in_a_hundred_are_clicked():
    rates = [generate(seed, SCALE, longest=1).train.label.mean() for seed in range(6)]
    # a single one is 0.05 +- 0.0025, by the luck of hot items
    assert np.mean(rates) == pytest.approx(0.05, abs=0.003)


def test_the_generator_has_the_published_heat_at_full_size():
    """The hottest row is a category: how many users hold it follows from their interests, which are
    quick to draw."""
    rng = np.random.default_rng(0)
    shop = taobao_synthetic._shop(rng, 143_534, 4_815)
    hottest = taobao_synthetic._interests(rng, shop, 49_023) == np.argmax(shop.popularity)
    often = 1 / (3 + np.arange(40))
    activity = rng.lognormal(0, 0.7, 49_023)
    examples = 15_854_357 / 49_023 * (0.1 + activity) / np.mean(0.1 + activity)
    unseen = (1 - hottest @ (often / often.sum())) ** examples
    assert np.sum(1 - unseen) == pytest.approx(3_142, rel=0.03)


def test_the_heat_of_a_small_one(generated):
    heat = generated.train.heat(generated.model)
    users, items, categories = (heat.counts(name) for name in ("user", "item", "category"))
    assert users.max() == 1
    assert heat.dispersion == categories.max() > items.max()
    assert np.quantile(items, 0.1) <= 2  # cold ones are many
    assert items.max() > 20 * np.median(items)


def test_histories_are_earlier_clicks_with_their_categories():
    train = generate(seed=0, scale=0.0005, longest=300).train  # longer than any
    real = train.history >= 0
    length = real.sum(1)
    assert length.max() < 300
    for first, last in pairwise(np.append(0, np.cumsum(train.counts))):
        label, item = train.label[first:last], train.item[first:last]
        # one more after each click
        assert np.array_equal(length[first:last] - length[first], np.cumsum(label) - label)
        after = np.flatnonzero(label[:-1]) + 1
        newest = train.history[first + after, length[first + after] - 1]
        assert np.array_equal(newest, item[after - 1])
    # most have clicked before their first example
    assert length[np.cumsum(train.counts) - train.counts].mean() > 5
    shop = {}
    for item, category in (
        (train.item, train.category),
        (train.history[real], train.history_category[real]),
    ):
        for one, kind in np.unique(np.stack([item, category], 1), axis=0).tolist():
            assert shop.setdefault(one, kind) == kind


def test_generation_is_repeatable():
    one, two = generate(1, 0.002, LONGEST), generate(1, 0.002, LONGEST)
    for part, other in ((one.train, two.train), (one.test, two.test)):
        assert all(np.array_equal(a, b) for a, b in zip(part, other, strict=True))
    assert not np.array_equal(one.train.label, generate(2, 0.002, LONGEST).train.label)
    with pytest.raises(InputError, match="at least"):
        generate(0, 0.0001, LONGEST)


def test_taste_and_cold_items_carry_signal(generated):
    """What was clicked in training is clicked more in testing: by the same user in a category, and
    of the same item."""
    train, test = generated.train.columns, generated.test.columns
    wide = generated.model.tables["category"].rows
    keys = {
        "taste": [
            part["user"].astype(np.int64) * wide + part["category"] for part in (train, test)
        ],
        "item": [part["item"] for part in (train, test)],
    }
    cold = np.bincount(train["item"], minlength=generated.model.tables["item"].rows) <= 20
    for name, (before, after) in keys.items():
        shown = np.bincount(before, minlength=after.max() + 1)
        clicked = np.bincount(before, train["label"], minlength=after.max() + 1)
        rate = (clicked / np.maximum(shown, 1))[after]
        seen = (shown[after] >= 5) & (cold[test["item"]] if name == "item" else True)
        high = rate[seen] > 0.05
        label = test["label"][seen]
        error = np.sqrt(0.05 * (1 / high.sum() + 1 / (~high).sum()))
        assert label[high].mean() - label[~high].mean() > 3 * error, name
