"""Sentences like those of the federated Stack Overflow data, from a small model of a language.

A word has a rank and a class (rank modulo 16); the most common ones are everybody's, each other
belongs to one of 32 topics.  A sentence has one topic, mostly its user's favourite.  After word w
comes

    a jargon word, one of four that few users share       with probability 0.04
    its own follower f(w)                                 with probability 0.3, after jargon 0.6
    a word of the class that follows w's, by Zipf's law   otherwise

so that what follows a rare word can be learned from those who use it alone: its row carries a
signal of its own.
"""

from typing import NamedTuple

import numpy as np

from fedslice.tasks.readers.sentences import HASHES, Corpus, Data
from fedslice.tasks.readers.stackoverflow import LENGTH, SENTENCES, VOCABULARY

TRAIN, HELD_OUT = 342_477, 38_758
# Sentences of a user: from 100, Pareto with this exponent, to 90,000: in the mean those of the
# held-out users, 425.
_FEWEST, _MOST, _TAIL = 100, 90_000, 1.228
# users still active after 2018, whose sentences from then on are not for training
_LATE, _LATENESS = (0.577, 7.5)
_CLASSES, _TOPICS, _SHARED, _WORDS = 16, 32, 512, 160_000
_ZIPF, _FAVOURITE, _FOLLOW = 1.2, 0.8, 0.3
_JARGON, _OWN, _JARGON_FOLLOW = 0.04, 4, 0.6
_MOVES = (0.5, 0.25, 0.15, 0.1)  # probabilities of the four classes that may follow a class
_FIRST, _CUT = 1_217_548_800, 1_514_764_800  # August 2008, January 2018
_BLOCK = 1 << 17


class _Language(NamedTuple):
    zipf: np.ndarray  # [ranks in a class] cumulative
    moves: np.ndarray  # [4, classes] permutations: together, all classes are equally frequent
    follower: np.ndarray  # [words and jargon]


def generate(
    seed: int = 0,
    scale: float = 1.0,
    sentences: int = SENTENCES,
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
) -> Data:
    """Training and held-out users; ``scale`` multiplies their numbers.

    It matches the published numbers of users, the mean number of sentences of both kinds (within 5%
    at scale 0.01; smaller ones lack the longest users), the least number, 100, that a user had
    written by 2019, and the largest; the words follow Zipf's law beyond the first 16.  Nothing was
    found published about the length of sentences (here 14 words in the mean) and the share of
    unknown words (here 1 in 6 beyond 1,000 common words, 1 in 14 beyond 10,000).  Not matched:
    grammar.  Scale 1 needs 30 GB.

    >>> generate(scale=0.0001, vocabulary=1000).train.words.shape[1]
    20
    """
    users, held = max(2, round(TRAIN * scale)), max(1, round(HELD_OUT * scale))
    rng = np.random.default_rng(seed)
    language = _language(rng, users + held)
    train = _corpus(rng, language, users, True, sentences, length)
    test = _corpus(rng, language, held, False, sentences, length)
    counts = np.bincount(train.words[train.words >= 0], minlength=len(language.follower))
    common = np.argsort(-counts, kind="stable")[:vocabulary]
    common = common[counts[common] > 0]
    ids = (
        len(common) + (np.arange(len(counts), dtype=np.uint64) * 2_654_435_761 >> 12) % HASHES
    ).astype(np.int32)
    ids[common] = np.arange(len(common))
    train, test = (
        some._replace(words=np.where(some.words < 0, -1, ids[some.words])) for some in (train, test)
    )
    return Data(train, test, np.array([f"w{word}" for word in common]))


def _language(rng: np.random.Generator, users: int) -> _Language:
    ranks = np.arange(_WORDS // _CLASSES)
    zipf = np.cumsum((ranks + 0.5) ** -_ZIPF)
    zipf /= zipf[-1]
    moves = np.stack([rng.permutation(_CLASSES) for _ in _MOVES])
    words = np.arange(_WORDS + _jargon(users))
    rank, topic = np.searchsorted(zipf, rng.random(len(words))), _topic(words)
    # everybody's words lead to everybody's words
    rank = np.where(topic < 0, rank % (_SHARED // _CLASSES), rank)
    return _Language(zipf, moves, _word(rank, rng.integers(_CLASSES, size=len(words)), topic))


def _jargon(users: int) -> int:
    """Words of the pool: three users share each in the mean."""
    return max(_OWN, users * _OWN // 3)


def _word(rank: np.ndarray, kind: np.ndarray, topic: np.ndarray) -> np.ndarray:
    """The word of a class with this rank in it; beyond the shared ones, the nearest word of the
    topic."""
    shared = _SHARED // _CLASSES
    topical = shared + (rank - shared) // _TOPICS * _TOPICS + topic
    rank = np.minimum(np.where(rank < shared, rank, topical), _WORDS // _CLASSES - 1)
    return (rank * _CLASSES + kind).astype(np.int32)


def _topic(word: np.ndarray) -> np.ndarray:
    """Of a word; -1 of shared words and jargon."""
    return np.where((word < _SHARED) | (word >= _WORDS), -1, (word - _SHARED) // _CLASSES % _TOPICS)


def _corpus(
    rng: np.random.Generator,
    language: _Language,
    users: int,
    train: bool,
    sentences: int,
    length: int,
) -> Corpus:
    place = (rng.permutation(users) + 0.5) / users
    total = _FEWEST * (1 - place * (1 - (_FEWEST / _MOST) ** _TAIL)) ** (-1 / _TAIL)
    if train:
        total *= 1 - (rng.random(users) < _LATE) * rng.random(users) ** _LATENESS
    counts = np.minimum(np.maximum(np.rint(total), 1), sentences).astype(np.int64)
    popularity = 1 / np.arange(1, _TOPICS + 1)
    topics = rng.choice(_TOPICS, (users, 2), p=popularity / popularity.sum())
    jargon = rng.integers(_WORDS, len(language.follower), size=(users, _OWN))
    owner = np.repeat(np.arange(users), counts)
    words = np.empty((len(owner), length), np.int32)
    for start in range(0, len(owner), _BLOCK):  # to bound memory
        mine = owner[start : start + _BLOCK]
        second = (rng.random(len(mine)) > _FAVOURITE).astype(np.int64)
        words[start : start + _BLOCK] = _write(
            rng, language, topics[mine, second], jargon[mine], length
        )
    names = np.array([f"{'user' if train else 'held'}{number}" for number in range(users)])
    return Corpus(names, counts, _times(rng, counts, owner), words)


def _write(
    rng: np.random.Generator,
    language: _Language,
    topic: np.ndarray,
    jargon: np.ndarray,
    length: int,
) -> np.ndarray:
    """One sentence for each topic, of 14 words in the mean before it is cut."""
    size = len(topic)
    words = np.empty((size, length), np.int32)
    kind = np.zeros(size, np.int64)
    for place in range(length):
        kind = language.moves[rng.choice(len(_MOVES), size, p=_MOVES), kind]
        word = _word(np.searchsorted(language.zipf, rng.random(size)), kind, topic)
        if place:
            before = words[:, place - 1]
            follows = rng.random(size) < np.where(before < _WORDS, _FOLLOW, _JARGON_FOLLOW)
            word = np.where(follows, language.follower[before], word)
        own = jargon[np.arange(size), (_OWN * rng.random(size) ** 2).astype(np.int64)]
        word = np.where(rng.random(size) < _JARGON, own, word)
        words[:, place], kind = word, word % _CLASSES
    spoken = np.maximum(1, np.rint(rng.lognormal(np.log(12), 0.55, size)))
    return np.where(np.arange(length) < spoken[:, None], words, np.int32(-1))


def _times(rng: np.random.Generator, counts: np.ndarray, owner: np.ndarray) -> np.ndarray:
    """Posts of four sentences, evenly from a user's first day to 2018."""
    first = rng.integers(_FIRST, _CUT - 86_400, len(counts))
    rank = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
    gap = (_CUT - first) // (counts // 4 + 1)
    return first[owner] + rank // 4 * gap[owner]
