"""Amazon Electronics with DIN, of the FedSubAvg paper: will this user give this product five stars?

Clients are the users with more than 40 ratings; an example is a user, a product, and the latest
products the user gave five stars before (see :mod:`fedslice.tasks.readers.history`); ratings up to
21 November 2013 are for training, later ones for testing.  Target: test AUC 0.6.  Data: McAuley et
al., "Image-based Recommendations on Styles and Substitutes", 2015, or what the paper's authors made
of them (:mod:`fedslice.tasks.readers.amazon_users`), which is read with all its users.

The authors' code differs from their text, and from this task, in ways that matter to a comparison:

- Their loss is the mean over both outputs of the softmax, half the cross-entropy: their client
  rates of 0.05 and 0.1 are 0.025 and 0.05 for the cross-entropy, which is the loss here.
- Ten steps of four examples go through a client's file from its beginning: they use the first 40
  examples and no other.  ``first=40`` does that here; by default batches are drawn from all.
- Dice standardises each unit over the examples of a batch, when it trains and when it tests; here
  it is over the units of each example (:mod:`fedslice.models.din` says why).
- Their reader of examples puts product 0 in place of each product of a history: their model sees
  how long the history is, not what is in it.  Here it sees the latest 20 products.
- They keep users of 40 ratings and more; the paper, and this task, those of more than 40.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError, MissingDataError
from fedslice.models.din import din
from fedslice.tasks.base import Target, Task, Workload
from fedslice.tasks.readers import amazon_users
from fedslice.tasks.readers.amazon_users import Examples
from fedslice.tasks.readers.cache import cached
from fedslice.tasks.readers.files import File, locate
from fedslice.tasks.readers.history import csv_tables, earlier, encode, json_tables

LONGEST = 20  # products in a history
RATINGS = 40  # a client has more
LAST = 1_385_000_000  # the last second of the training data
_FIRST = 800_000_000  # May 1995
SETTINGS = {"cohort": 100, "steps": 10, "batch": 4, "weights": "examples", "gradient_clip": 5.0}
RATES = {"": 0.1, "central": 0.05, "fedsubavg": 0.05}
ALONE = {"fedadam": {"server_rate": 0.001, "server_b1": 0.9, "server_b2": 0.999}}
TARGET = Target("auc", 0.6, below=False)
PUBLISHED = {
    "rounds to target, CentralSGD": "20",
    "rounds to target, FedAvg": "200+",
    "rounds to target, FedProx": "200+",
    "rounds to target, Scaffold": "200+",
    "rounds to target, FedAdam": "16",
    "rounds to target, FedSubAvg": "53",
    "rounds to target, FedSubAvg, 60 clients a round": "57",
    "rounds to target, FedSubAvg, 20 clients a round": "95",
    "best AUC in 200 rounds": (
        "CentralSGD 0.654, FedSubAvg 0.641, FedAdam 0.633, FedAvg 0.523, FedProx 0.519"
    ),
}
OBSERVED = {  # on the authors' 1,859 files of users, the last fifth of each for testing
    "measured on": "the authors' 1,859 files, the last fifth of each user for testing",
    "rounds to target, CentralSGD": "70 (best AUC 0.671)",
    "rounds to target, FedAvg": "90 (0.626)",
    "rounds to target, FedAdam with server rate 0.01": "35",
    "rounds to target, FedSubAvg": "10 (0.692)",
    "share of five stars, hottest item": "0.555, 232 clients",
}
NEEDS = (
    "Download reviews_Electronics_5.json.gz, the paper's data, or ratings_Electronics.csv, which"
    " has more users, from http://jmcauley.ucsd.edu/data/amazon/ and give the file or its folder;"
    " or give the folder user_data/users of"
    " https://github.com/sjtu-yc/federated-submodel-averaging, the authors' own files; or use"
    " --synthetic"
)

# Figures of the data, where not in the paper from the weights that its authors published with their
# code.
_USERS, _RATINGS, _TRAIN, _ITEMS, _HOTTEST = 1870, 123_147, 99_710, 29_500, 232
_USER_KNOTS = (
    (0, 41),
    (0.25, 45.5),
    (0.5, 53),
    (0.75, 70),
    (0.9, 101),
    (0.97, 152),
    (0.99, 215),
    (1, 431),
)
_FIVE_STARS = 0.6
_KINDS, _FAVOURITES = 40, 5  # kinds of products; of them, those a user buys
# Standard deviations, in logits, of the parts of a rating.
_BY_USER, _BY_ITEM, _BY_TASTE = 0.85, 0.75, 0.5


class Ratings(NamedTuple):
    """T ratings in columns, sorted by user and then time, of N users and M products."""

    user: np.ndarray  # int32 [T]
    item: np.ndarray  # int32 [T]
    five: np.ndarray  # bool [T]
    time: np.ndarray  # int64 [T], seconds since 1970; Amazon rounds to days
    user_names: np.ndarray  # [N]
    item_names: np.ndarray  # [M]


def synthetic(seed: int = 0, scale: float = 1.0) -> Task:
    """The task on generated data of the published size; ``scale`` multiplies users and products.

    Matched at scale 1: users, ratings, training ratings, ratings a user (more than 40, and their
    spread), products and the heat of the hottest, the share of five stars; days with several
    ratings.  Whether a user gives five stars depends on the user, on the product (a rare one as
    much as a common one) and on the user's taste for that kind of product.  With the paper's
    settings FedSubAvg reaches the target in 25 to 30 rounds (seeds 0 to 2; paper: 53), and FedAvg
    is at AUC 0.57 to 0.58 after 200 (0.52).  Not matched: when products came out; CentralSGD, which
    takes more than 100 rounds here and 20 in the paper.

    >>> synthetic(scale=0.05).name
    'amazon-din'
    """
    return _task(_examples(generate(seed, scale)), f"generated data, seed {seed}, scale {scale:g}")


def load(path: str | Path, *, first: int = 0) -> Task:
    """The task on the real data: the reviews or the ratings file, a folder or a zip with one of
    them, or the folder of the authors' files, one a user.

    With ``first`` clients train on so many of their earliest examples only, as the authors' do with
    40.
    """
    if first < 0:
        raise InputError(f"first={first}: give a number of examples, or 0 for all")
    try:
        found = locate(
            Path(path), "?reviews_Electronics_5.json", "?ratings_Electronics.csv", needs=NEEDS
        )
    except MissingDataError:
        files = amazon_users.find(Path(path), NEEDS)
        arrays = cached(
            files, "amazon users 1", lambda: amazon_users.read(files, LONGEST)._asdict()
        )
        return _task(Examples(**arrays), f"the authors' files in {files[0].path.parent}", first)
    name, file = next(iter(found.items()))
    arrays = cached([file], "amazon-din 1", lambda: _read(file, name)._asdict())
    return _task(_examples(Ratings(**arrays)), str(file), first)


def _examples(data: Ratings) -> Examples:
    history = earlier(data.user, data.time, data.item, data.five, LONGEST)
    return Examples(
        data.user, data.item, history, data.five, data.time > LAST, data.user_names, data.item_names
    )


def _task(data: Examples, source: str, first: int = 0) -> Task:
    names = {"user": data.user_names, "item": data.item_names, "history": data.item_names}
    columns = {
        "user": data.user,
        "item": data.item,
        "history": data.history,
        "label": data.five.astype(np.float32),
    }
    people = Population.from_arrays(data.user, names, **columns)
    people = Population(people.columns, people.offsets, data.user_names, names)
    model = din(len(data.user_names), len(data.item_names))
    train, test = people.select(~data.late), people.select(data.late)
    if first:
        place = np.arange(train.examples) - train.offsets[train.owners]
        train = train.select(place < first)
    return Task(
        "amazon-din",
        model,
        train,
        test,
        SETTINGS,
        RATES,
        TARGET,
        PUBLISHED,
        source,
        algorithms=ALONE,
        in_order=True,
        observed=OBSERVED,
    )


# -- the real data ---------------------------------------------------------------------------------


def _read(file: File, name: str) -> Ratings:
    """The ratings of the users who have enough of them."""
    if name.endswith("json"):
        kinds = {
            "reviewerID": "string",
            "asin": "string",
            "overall": "float64",
            "unixReviewTime": "int64",
        }
        parts = list(json_tables(file, kinds))
    else:
        kinds = {"user": "string", "item": "string", "rating": "float64", "time": "int64"}
        parts = list(csv_tables(file, kinds, header=False))
    user, user_names = encode(parts, 0)
    item, item_names = encode(parts, 1)
    stars, time = (
        np.concatenate([part.column(place).to_numpy() for part in parts]) for place in (2, 3)
    )
    if not np.isin(stars, (1, 2, 3, 4, 5)).all():
        raise InputError(f"{file} has ratings other than 1 to 5 stars: give the file as published")
    if time.min() < _FIRST:
        raise InputError(
            f"{file} has the time {time.min()}, before there was Amazon: if it is cut off, download"
            " it again"
        )
    kept = np.flatnonzero((np.bincount(user) > RATINGS)[user])
    if not len(kept):
        raise InputError(
            f"no user in {file} has more than {RATINGS} ratings, as the task's clients do. {NEEDS}"
        )
    kept = kept[np.lexsort((time[kept], user[kept]))]
    users, user = np.unique(user[kept], return_inverse=True)
    items, item = np.unique(item[kept], return_inverse=True)
    columns = user.astype(np.int32), item.astype(np.int32), stars[kept] == 5, time[kept]
    return Ratings(*columns, user_names[users], item_names[items])


# -- generated data --------------------------------------------------------------------------------


def generate(seed: int = 0, scale: float = 1.0) -> Ratings:
    """Ratings as :func:`synthetic` describes them.

    >>> data = generate(seed=0, scale=0.05)
    >>> len(data.user_names), len(data.user)
    (94, 6157)
    """
    users, total, items = (round(count * scale) for count in (_USERS, _RATINGS, _ITEMS))
    if users < 20:
        raise InputError(f"scale={scale} leaves {users} users: use a scale of at least 0.02")
    rng = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), rng.permutation(_counts(users, total)))
    hottest = min(_HOTTEST * _RATINGS / _TRAIN * scale**0.5, users / 2)
    copies = np.repeat(np.arange(items), rng.permutation(_degrees(items, total, hottest)))
    kind = rng.integers(_KINDS, size=items)
    wanted = rng.integers(_KINDS, size=(users, _FAVOURITES))[
        user, rng.integers(_FAVOURITES, size=total)
    ]
    item = _meet(rng, user, wanted, copies, kind)
    time = _times(rng, user, users)
    order = np.lexsort((time, user))
    user, item, time = user[order], item[order], time[order]
    score = (
        _BY_USER * rng.standard_normal(users)[user] + _BY_ITEM * rng.standard_normal(items)[item]
    )
    score += _BY_TASTE * rng.standard_normal((users, _KINDS))[user, kind[item]] + rng.logistic(
        size=total
    )
    five = score > np.quantile(score, 1 - _FIVE_STARS)
    names = (
        np.char.add("user ", np.arange(users).astype(str)),
        np.char.add("item ", np.arange(items).astype(str)),
    )
    return Ratings(user.astype(np.int32), item.astype(np.int32), five, time, *names)


def _counts(users: int, total: int) -> np.ndarray:
    """Ratings of each user: a profile of more than 40 each, stretched to the total."""
    quantile, value = np.array(_USER_KNOTS).T
    extra = np.exp(np.interp(np.linspace(0, 1, users), quantile, np.log(value))) - (RATINGS + 1)
    ends = np.cumsum(RATINGS + 1 + extra * (total - users * (RATINGS + 1)) / extra.sum())
    return np.diff(np.rint(ends), prepend=0).astype(np.int64)  # rounded so that they add up


def _degrees(items: int, total: int, hottest: float) -> np.ndarray:
    """Ratings of each product, hottest first: a shifted power law, at least one each, whose
    exponent fits the total."""
    rank = 1 + np.arange(items) / 30
    low, high = 0.0, 10.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if np.maximum(1, hottest * rank**-middle).sum() > total
            else (low, middle)
        )
    ends = np.cumsum(np.maximum(1, hottest * rank**-high))
    return np.diff(np.rint(ends * total / ends[-1]), prepend=0).astype(np.int64)


def _meet(
    rng: np.random.Generator,
    user: np.ndarray,
    wanted: np.ndarray,
    copies: np.ndarray,
    kind: np.ndarray,
) -> np.ndarray:
    """A product for each rating: those of a kind go to users who want it, as far as numbers allow;
    no user twice."""
    total, items = len(user), len(kind)
    item = np.empty(total, np.int64)
    shuffled = rng.permutation(copies)
    item[np.lexsort((rng.random(total), wanted))] = shuffled[
        np.argsort(kind[shuffled], kind="stable")
    ]
    for _ in range(30):
        order = np.argsort(user * items + item, kind="stable")
        pairs = (user * items + item)[order]
        again = order[1:][pairs[1:] == pairs[:-1]]
        if not len(again):
            break
        swap = np.union1d(again, rng.integers(total, size=len(again)))
        item[swap] = item[rng.permutation(swap)]
    return item


def _times(rng: np.random.Generator, user: np.ndarray, users: int) -> np.ndarray:
    """Whole days, so that some coincide: each user is active for a while; as many ratings are late
    as in the data."""
    begin, length = rng.uniform(0, 2200, users), rng.uniform(100, 2200, users)
    day = np.floor(begin[user] + length[user] * rng.random(len(user))).astype(np.int64)
    last = int(np.quantile(day, _TRAIN / _RATINGS))
    return 86_400 * (day - last + LAST // 86_400)


WORKLOAD = Workload(
    "amazon-din",
    "Amazon Electronics, five stars or not, with the deep interest network (FedSubAvg paper)",
    synthetic,
    load,
    NEEDS,
    ("reviews_Electronics_5.json", "ratings_Electronics.csv", amazon_users.PATTERN),
    statistics={
        "clients": "1,870",
        "samples": "123,147",
        "samples per client": "66",
        "heat dispersion": "232",
        "in the authors' code": (
            "the loss is half the cross-entropy; a client trains on its first 40 examples (--option"
            " first=40); Dice standardises over the batch, here over a layer's units; histories"
            " have lengths only"
        ),
    },
    settings=SETTINGS,
    learning_rates=RATES,
    target=TARGET,
    published=PUBLISHED,
    algorithms=ALONE,
    observed=OBSERVED,
)
