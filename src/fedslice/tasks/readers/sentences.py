"""Sentences of users as examples of next word prediction: common words have a rank, the others a
hash."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from fedslice.data.population import Population
from fedslice.errors import InputError
from fedslice.tasks.readers import text

HASHES = 1 << 20  # numbers that stand for unknown words until a task chooses its buckets


class Corpus(NamedTuple):
    """n sentences of N users, sorted by user and time.

    ``words`` are ranks of common words, or from the size of the vocabulary on the hash of another
    word; -1 is padding.
    """

    users: np.ndarray  # [N] text
    counts: np.ndarray  # [N] sentences
    time: np.ndarray  # [n] seconds since 1970, or the order of a user's sentences
    words: np.ndarray  # [n, 20] int32


class Data(NamedTuple):
    """Training and held-out users, and the common words, the most frequent first."""

    train: Corpus
    test: Corpus
    vocabulary: np.ndarray

    def arrays(self) -> dict[str, np.ndarray]:
        """By name, to be kept in a cache."""
        corpora = {"train": self.train, "test": self.test}
        flat = {
            f"{part} {name}": array
            for part, some in corpora.items()
            for name, array in some._asdict().items()
        }
        return {**flat, "vocabulary": self.vocabulary}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> "Data":
        """What :meth:`arrays` gave."""
        train, test = (
            Corpus(*(arrays[f"{part} {name}"] for name in Corpus._fields))
            for part in ("train", "test")
        )
        return cls(train, test, arrays["vocabulary"])


def encode(
    texts: Sequence[str], learned: int, pattern: str, vocabulary: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Each text's first ``length`` words as in :class:`Corpus`, and the most common words of the
    first ``learned``.

    >>> rows, common = encode(["b a b", "a c"], 1, "[a-z]", vocabulary=2, length=3)
    >>> common.tolist(), (rows >= 2).tolist()
    (['b', 'a'], [[False, False, False], [False, True, False]])
    """
    words = text.split_words(texts, pattern)
    common = text.most_common(words, vocabulary, np.arange(len(texts)) < learned)
    ids = len(common) + text.bucket(words.vocabulary, HASHES)
    ids[common] = np.arange(len(common))
    return text.pad(ids[words.codes], words.lengths, length), words.vocabulary[common]


def population(corpus: Corpus, vocabulary: np.ndarray, buckets: int = 0) -> Population:
    """Examples to predict the next word: ``tokens`` from the begin of the sentence on, and
    ``next``.

    With V common words, id V is the boundary: the begin in ``tokens``, the end in ``next``; V + 1
    is any other word.  With ``buckets`` another word is V + 1 plus its hash in ``next``; in
    ``tokens`` its place is empty (-1), and a field ``bucket`` has the hash instead.

    >>> words = np.array([[1, 7, -1, -1]], np.int32)  # a common word and another one
    >>> corpus = Corpus(np.array(["a"]), np.array([1]), np.array([0]), words)
    >>> people = population(corpus, np.array(["the", "of"]))
    >>> people.columns["tokens"].tolist(), people.columns["next"].tolist()
    ([[2, 1, 3, -1]], [[1, 3, 2, -1]])
    >>> people = population(corpus, np.array(["the", "of"]), buckets=3)
    >>> [people.columns[name].tolist() for name in ("tokens", "bucket", "next")]
    [[[2, 1, -1, -1]], [[-1, -1, 2, -1]], [[1, 5, 2, -1]]]
    """
    if buckets < 0:
        raise InputError(f"buckets={buckets} must not be negative: 0 is none, FedRecon has 500")
    size, words = len(vocabulary), corpus.words
    codes = np.where(words < size, words, size + 1 + (words - size) % max(buckets, 1)).astype(
        np.int32
    )
    tokens = np.concatenate([np.full((len(words), 1), size, np.int32), codes[:, :-1]], axis=1)
    ends = (words < 0) & (np.pad(words, ((0, 0), (1, 0)), constant_values=0)[:, :-1] >= 0)
    columns = {"next": np.where(ends, np.int32(size), codes)}
    if buckets:
        unknown = tokens > size
        columns["bucket"] = np.where(unknown, tokens - np.int32(size + 1), np.int32(-1))
        tokens = np.where(unknown, np.int32(-1), tokens)
    offsets = np.append(0, np.cumsum(corpus.counts))
    names = {
        "tokens": np.append(vocabulary, ["<sentence>"] if buckets else ["<sentence>", "<unknown>"])
    }
    return Population(
        {"tokens": tokens, **columns, "time": corpus.time}, offsets, corpus.users, names
    )
