"""Tweets like those of Sent140, from a small model of moods and words.

A user's mood makes a tweet happy or sad, and that makes its words.  Word w, of rank r, has the
frequency

    f_w sigmoid(s_w) in happy tweets, f_w sigmoid(-s_w) in sad ones
    s_w ~ N(0, (0.2 + 0.15 log10 r)^2), or 0

so that a naive Bayes classifier with the weights s_w is right about 4 times in 5.  A rare word is
charged more than a common one, and what to make of it only its few users know.  After a negation
comes a word of the other kind.

Matched at scale 1, with the figures of the FedSubAvg papers: users, tweets, tweets of a user (more
than 40), heat dispersion 1,451 (for 22 users share no common word with the others, as robots and
writers of other languages do), and sparsity 13.15 %, the mean share of clients that hold a
parameter.  With the dense parameters that means about 37,000 words.  The ten busiest users have as
many tweets as in the data, 549 to 236.  Word frequencies follow Zipf's law, steeper beyond rank
5,000; half of the words are one user's.  Chosen, as nothing is published: 57 % happy tweets, 13
words in a tweet, one word in five repeated by its user.  Not matched: grammar, topics, friends.

With the paper's settings FedSubAvg reaches the training loss 0.38 in about 200 rounds (seed 0; the
paper: 260).
"""

from typing import NamedTuple

import numpy as np

from fedslice.errors import InputError

LONGEST = 25  # words of a tweet
TWEETS = 40  # a client has more
WORDS = 200_000  # of the language, by rank; a vocabulary has those that occur

_USERS, _TWEETS = 1473, 79_050
_KNOTS = (
    (0, 41),
    (0.3, 44),
    (0.5, 46),
    (0.75, 50.5),
    (0.9, 58),
    (0.95, 69),
    (0.985, 205),
    (0.994, 236),
    (1, 549),
)
_STRANGERS, _COMMON = 22, 1000  # users that do not use so many of the most common words
_ZIPF, _SHIFT, _KNEE, _TAIL = 1.05, 2.7, 5000, 1.83
_LENGTH, _SHAPE = 12.8, 4.0  # mean and shape of the gamma distribution of a tweet's words
_REPEAT = 0.2
_HAPPY, _MOOD = 0.3, 0.7  # log odds of a happy tweet: mean and standard deviation over users
_NEUTRAL, _CHARGE, _BY_RANK = 0.3, 0.2, 0.15
_NEGATIONS = (12, 30, 45)  # ranks


class Tweets(NamedTuple):
    """n tweets, sorted by user and with a user's sad ones first; their words, by rank, one after
    the other."""

    owner: np.ndarray  # int32 [n]
    happy: np.ndarray  # bool [n]
    codes: np.ndarray  # int64 [total]
    lengths: np.ndarray  # int64 [n]


def generate(seed: int = 0, scale: float = 1.0) -> Tweets:
    """Tweets of 1,473 x ``scale`` users; the vocabulary grows with the text, by itself.

    >>> tweets = generate(seed=0, scale=0.02)
    >>> len(tweets.owner), tweets.lengths.shape
    (1581, (1581,))
    """
    users = round(_USERS * scale)
    if users < 10:
        raise InputError(f"scale={scale} leaves {users} users: use a scale of at least 0.01")
    rng = np.random.default_rng(seed)
    counts = rng.permutation(_counts(users, round(_TWEETS * scale)))
    owner = np.repeat(np.arange(users, dtype=np.int32), counts)
    odds = rng.normal(_HAPPY, _MOOD, users)[owner]
    happy = rng.random(len(owner)) < 1 / (1 + np.exp(-odds))
    happy = happy[np.lexsort((happy, owner))]
    lengths = np.clip(np.rint(rng.gamma(_SHAPE, _LENGTH / _SHAPE, len(owner))), 1, LONGEST).astype(
        np.int64
    )
    tweet = np.repeat(np.arange(len(owner)), lengths)
    strange = (rng.permutation(users) < round(_STRANGERS * scale))[owner[tweet]]
    language = _language(rng)
    words = _repeat(
        rng, _draw(rng, language, happy[tweet], strange), 2 * owner[tweet] + happy[tweet]
    )
    turned = 1 + np.flatnonzero(np.isin(words[:-1], _NEGATIONS) & (tweet[1:] == tweet[:-1]))
    words[turned] = _draw(rng, language, ~happy[tweet[turned]], strange[turned])
    return Tweets(owner, happy, words, lengths)


def _counts(users: int, total: int) -> np.ndarray:
    """Tweets of each user: a profile of more than 40 each, stretched to the total."""
    quantile, value = np.array(_KNOTS).T
    extra = np.exp(np.interp(np.linspace(0, 1, users), quantile, np.log(value))) - (TWEETS + 1)
    ends = np.cumsum(TWEETS + 1 + extra * (total - users * (TWEETS + 1)) / extra.sum())
    return np.diff(np.rint(ends), prepend=0).astype(np.int64)  # rounded so that they add up


def _language(rng: np.random.Generator) -> np.ndarray:
    """[2, words]: cumulative frequencies in sad and in happy tweets, f sigmoid(-s) and f
    sigmoid(s)."""
    rank = np.arange(1, WORDS + 1)
    frequency = (rank + _SHIFT) ** -_ZIPF
    frequency[_KNEE:] *= ((rank[_KNEE:] + _SHIFT) / (_KNEE + _SHIFT)) ** (_ZIPF - _TAIL)
    charge = (_CHARGE + _BY_RANK * np.log10(rank)) * rng.standard_normal(WORDS)
    charge[rng.random(WORDS) < _NEUTRAL] = 0
    charge[list(_NEGATIONS)] = 0
    both = np.cumsum(frequency / (1 + np.exp(np.outer([1, -1], charge))), axis=1)
    return np.asarray(both / both[:, -1:])


def _draw(
    rng: np.random.Generator, language: np.ndarray, happy: np.ndarray, strange: np.ndarray
) -> np.ndarray:
    """A word for each entry; strangers use none of the most common ones."""
    words = np.empty(len(happy), np.int64)
    for side in (0, 1):
        mine = happy == side
        least = np.where(strange[mine], language[side, _COMMON], 0)
        words[mine] = np.searchsorted(language[side], least + (1 - least) * rng.random(len(least)))
    return np.minimum(words, WORDS - 1)


def _repeat(rng: np.random.Generator, words: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Some words replaced by one that came before in the same group (sorted), any place being
    equally likely."""
    place = np.arange(len(words))
    first = np.searchsorted(group, group)
    before = first + ((place - first) * rng.random(len(words))).astype(np.int64)
    source = np.where(rng.random(len(words)) < _REPEAT, before, place)
    while (source[source] != source).any():  # a repeated word may be repeated again
        source = source[source]
    return words[source]
