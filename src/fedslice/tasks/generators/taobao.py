"""Impressions and clicks of the size of the Alibaba data of the FedSubAvg paper, from a latent
model.

    P(click) = sigmoid(intercept + user + category + item + taste of the user for the category)

Items show in the categories that a user is interested in; every item has a quality of its own, a
rare one as much as a common one.  All is made in blocks of users and written to its place, so that
little memory is used beside the result.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError
from fedslice.tasks.readers.history import earlier

# As published.
CLIENTS, TRAIN, TEST, ITEMS, CATEGORIES = 49_023, 15_854_357, 1_010_284, 143_534, 4_815

_CLICKED = 0.05  # share of clicks: "extremely uneven" is all the paper says
# impressions before the first example, by training examples: 14 days only make histories
_WARM = 14 / 15.7
_SPREAD = 0.7  # of the logarithm of a user's examples
_INTERESTS = 40  # categories of a user
_FLAT = 0.0352  # share of the ranks of categories with flat popularity: gives the hottest its heat
_BLOCK = 1 << 20  # impressions made at once
# Standard deviations, in logits, of the parts of a click.
_BY_USER, _BY_CATEGORY, _BY_ITEM, _BY_TASTE = 0.5, 0.1, 0.9, 0.5


class Events(NamedTuple):
    """Impressions of some users, user after user, each user's in order of time."""

    item: np.ndarray  # int32 [n]
    category: np.ndarray  # int32 [n]
    label: np.ndarray  # bool [n]: clicked
    # int32 [n, L]: numbers of the events of the latest clicks before, oldest first, then -1
    past: np.ndarray


class Clicks(NamedTuple):
    """T examples of N users in columns, user after user, each user's in order of time."""

    counts: np.ndarray  # int64 [N]
    item: np.ndarray  # int32 [T]
    category: np.ndarray  # int16 [T]; int32 where there are too many
    history: np.ndarray  # int32 [T, L]: the latest items clicked before, oldest first, then -1
    history_category: np.ndarray  # as category [T, L]
    label: np.ndarray  # bool [T]: clicked

    @classmethod
    def empty(cls, counts: np.ndarray, categories: int, longest: int) -> "Clicks":
        """Room for so many examples."""
        total, kind = int(counts.sum()), np.int16 if categories < 2**15 else np.int32
        item, history = np.empty(total, np.int32), np.empty((total, longest), np.int32)
        category, history_category = np.empty(total, kind), np.empty((total, longest), kind)
        return cls(counts, item, category, history, history_category, np.empty(total, bool))

    def write(self, start: int, events: Events, chosen: np.ndarray) -> None:
        """Put the chosen events from ``start`` on."""
        span, past = slice(start, start + len(chosen)), events.past[chosen]
        self.item[span], self.category[span], self.label[span] = (
            column[chosen] for column in events[:3]
        )
        self.history[span] = np.append(events.item, -1)[past]
        self.history_category[span] = np.append(events.category, -1)[past]


class Generated(NamedTuple):
    """Training and test examples of the same users, and how many items and categories there are."""

    train: Clicks
    test: Clicks
    items: int
    categories: int


class _Shop(NamedTuple):
    """Categories, each with a range of items."""

    popularity: np.ndarray  # of a category
    first: np.ndarray  # its first item
    size: np.ndarray  # its number of items
    appeal: np.ndarray  # of a category, in logits
    quality: np.ndarray  # of an item, in logits


def generate(seed: int, scale: float, longest: int) -> Generated:
    """Examples for a share ``scale`` of the users; with its cube root of items and categories, so
    that most stay cold.

    >>> data = generate(seed=0, scale=0.001, longest=10)
    >>> train, test = data.train, data.test
    >>> len(train.counts), len(train.item), len(test.item), data.items, data.categories
    (49, 15854, 1010, 14353, 482)
    """
    users, trained, tested = (round(count * scale) for count in (CLIENTS, TRAIN, TEST))
    items, categories = (round(count * scale ** (1 / 3)) for count in (ITEMS, CATEGORIES))
    if users < 10:
        raise InputError(f"scale={scale} leaves {users} users: use a scale of at least 0.0002")
    rng = np.random.default_rng(seed)
    activity = rng.lognormal(0, _SPREAD, users)
    train = Clicks.empty(_shares(0.1 + activity, trained), categories, longest)
    test = Clicks.empty(_shares(activity, tested), categories, longest)
    shop = _shop(rng, items, categories)
    interests = _interests(rng, shop, users)
    taste = np.float32(_BY_TASTE) * rng.standard_normal(interests.shape, np.float32)
    taste += (
        np.float32(_BY_USER) * rng.standard_normal((users, 1), np.float32)
        + shop.appeal[interests]
        + _intercept()
    )
    parts = np.stack([np.rint(_WARM * train.counts).astype(np.int64), train.counts, test.counts], 1)
    starts = np.cumsum(parts, 0) - parts
    for first, last in _blocks(parts.sum(1)):
        owner = np.repeat(np.arange(first, last), parts[first:last].sum(1))
        item, category, clicked = _impressions(rng, shop, interests, taste, owner)
        number = np.arange(len(owner))
        events = Events(item, category, clicked, earlier(owner, number, number, clicked, longest))
        phase = np.repeat(np.tile(np.arange(3), last - first), parts[first:last].reshape(-1))
        train.write(starts[first, 1], events, np.flatnonzero(phase == 1))
        test.write(starts[first, 2], events, np.flatnonzero(phase == 2))
    return Generated(train, test, items, categories)


def _shop(rng: np.random.Generator, items: int, categories: int) -> _Shop:
    """Popularity falls with the rank of a category; rare categories have more items for what is
    seen of them."""
    popularity = 1 / (np.arange(categories) + _FLAT * categories)
    popularity = rng.permutation(popularity / popularity.sum())
    size = 1 + _shares(popularity**0.4, items - categories)
    appeal = np.float32(_BY_CATEGORY) * rng.standard_normal(categories, np.float32)
    quality = np.float32(_BY_ITEM) * rng.standard_normal(items, np.float32)
    return _Shop(
        popularity,
        (np.cumsum(size) - size).astype(np.int32),
        size.astype(np.int32),
        appeal,
        quality,
    )


def _interests(rng: np.random.Generator, shop: _Shop, users: int) -> np.ndarray:
    """int32 [users, interests]: categories, some of them twice, the user's first interest first."""
    return np.searchsorted(np.cumsum(shop.popularity)[:-1], rng.random((users, _INTERESTS))).astype(
        np.int32
    )


def _impressions(
    rng: np.random.Generator,
    shop: _Shop,
    interests: np.ndarray,
    taste: np.ndarray,
    owner: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Item, category and click of each impression: first interests come up most, and first items of
    a category."""
    total = len(owner)
    often = np.cumsum(1 / (3 + np.arange(_INTERESTS)))
    slot = np.searchsorted(
        (often / often[-1]).astype(np.float32)[:-1], rng.random(total, np.float32)
    )
    place = owner * _INTERESTS + slot
    category = interests.reshape(-1)[place]
    size = shop.size[category]
    item = shop.first[category] + np.minimum(
        size * np.square(rng.random(total, np.float32)), size - 1
    ).astype(np.int32)
    logit = taste.reshape(-1)[place] + shop.quality[item]
    return item, category, rng.random(total, np.float32) * (1 + np.exp(-logit)) < 1


def _intercept() -> np.float32:
    """The logit that gives the wanted share of clicks: the mean of sigmoid(x + normal) over the
    normal's quantiles."""
    spread = np.linalg.norm([_BY_USER, _BY_CATEGORY, _BY_ITEM, _BY_TASTE])
    part = np.linspace(-5, 5, 201)
    mass = np.exp(-np.square(part) / 2)
    low, high = -20.0, 20.0
    for _ in range(50):
        middle = (low + high) / 2
        rate = np.sum(mass / (1 + np.exp(-middle - spread * part))) / mass.sum()
        low, high = (low, middle) if rate > _CLICKED else (middle, high)
    return np.float32(low)


def _blocks(sizes: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranges of users with about ``_BLOCK`` impressions each."""
    ends, first = np.cumsum(sizes), 0
    while first < len(sizes):
        last = max(first + 1, int(np.searchsorted(ends, ends[first] - sizes[first] + _BLOCK)))
        yield first, last
        first = last


def _shares(weight: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to the weights, which add up to the total."""
    ends = np.cumsum(weight)
    return np.diff(np.rint(ends * (total / ends[-1])), prepend=0).astype(np.int64)
