"""The fast ways of handling text give what the slow and plain ways give, on awkward texts too."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from fedslice.errors import InputError
from fedslice.tasks.readers import text
from fedslice.tasks.readers.text import (
    LONGEST,
    WORD,
    Words,
    bucket,
    most_common,
    pad,
    split_words,
    tweet,
)

AWKWARD = [
    "",
    " ",
    "to be, or not to be",
    "don't can\u2019t 'quoted' rock'n'roll o'",
    "caf\u00e9 na\u00efve \u041f\u0440\u0438\u0432\u0435\u0442 \u4f60\u597d \U0001f600 \U0001f600x",
    "line\nline\r\nline\n",
    "\x1e\x1f\x1d\x1c\v\f\x00 nul\x00inside",
    "snake_case 4th 3.14 a1b2",
    "<user> <url> <b >x< y>",
    "\ud800 lone surrogate",
    "\u2028sep\u2029sep\x85sep",
    "z",
]
PATTERNS = [
    WORD,
    r"\w+",
    r"\S+",
    r"[^ ]+",
    r"(?s:.)",
    r".",
    r"\n",
    r"[a-z]+|\d",
    r"(?i:LINE)",
    r"\b\w",
]


def plain(texts: list[str], pattern: str) -> list[list[str]]:
    return [re.findall(pattern, each) for each in texts]


def words_of(words: Words) -> list[list[str]]:
    spelled = words.vocabulary[words.codes].tolist()
    ends = np.cumsum(words.lengths).tolist()
    return [spelled[start:end] for start, end in pairwise([0, *ends])]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("left_out", ["", "\n", "\n\x1e", "\n\r\x1e\x1f\x1d\x1c\v\f"])
def test_words_are_those_of_a_plain_loop(pattern: str, left_out: str) -> None:
    texts = [each.translate(dict.fromkeys(map(ord, left_out))) for each in AWKWARD]
    words = split_words(texts, pattern)
    expected = [[word.rstrip("\0") for word in each] for each in plain(texts, pattern)]
    assert words_of(words) == expected
    assert words.lengths.tolist() == [len(each) for each in expected]
    assert words.vocabulary.tolist() == sorted({word for each in expected for word in each})
    assert (words.codes.dtype, words.lengths.dtype, words.vocabulary.dtype.kind) == (
        np.int32,
        np.int32,
        "U",
    )


@pytest.mark.parametrize("together", [1, 2, 5])
def test_words_do_not_depend_on_how_many_texts_are_handled_together(
    monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    whole = split_words(AWKWARD), tweet(AWKWARD)
    monkeypatch.setattr(text, "_TOGETHER", together)
    parts = split_words(AWKWARD)
    assert all(map(np.array_equal, parts, whole[0]))
    assert tweet(AWKWARD) == whole[1]
    rows = pad(parts.codes, parts.lengths, 3)
    monkeypatch.undo()
    assert np.array_equal(rows, pad(parts.codes, parts.lengths, 3))


def test_random_texts() -> None:
    rng = np.random.default_rng(0)
    letters = np.array(list("ab c'\n\t<>\u00e9\U0001f600\x1e_1"))
    texts = [
        "".join(letters[rng.integers(0, len(letters), size)]) for size in rng.integers(0, 30, 500)
    ]
    assert words_of(split_words(texts)) == plain(texts, WORD)


@pytest.mark.parametrize("texts", [[], [""], ["", "", "!?"]])
def test_no_words_at_all(texts: list[str]) -> None:
    words = split_words(texts)
    assert words.lengths.tolist() == [0] * len(texts)
    assert len(words.codes) == len(words.vocabulary) == 0
    assert (words.codes.dtype, words.lengths.dtype, words.vocabulary.dtype.kind) == (
        np.int32,
        np.int32,
        "U",
    )
    assert most_common(words, 5).tolist() == []
    assert pad(words.codes, words.lengths, 2).tolist() == [[-1, -1]] * len(texts)
    assert bucket(words.vocabulary, 5).tolist() == []


def test_an_endless_word_is_cut() -> None:
    words = split_words(["a" * 100_000 + "b", "a" * LONGEST, "a" * (LONGEST - 1)])
    assert words.vocabulary.tolist() == ["a" * (LONGEST - 1), "a" * LONGEST]
    assert words.codes.tolist() == [1, 1, 0]


@pytest.mark.parametrize("pattern", ["(a)b", "(?i)a", "[a", "a*", r"\b"])
def test_patterns_that_cannot_be_used_are_refused(pattern: str) -> None:
    with pytest.raises(InputError, match="the pattern"):
        split_words(["ab ab"], pattern)


def test_the_most_common_are_those_of_a_counter() -> None:
    rng = np.random.default_rng(0)
    texts = [" ".join(map(str, rng.geometric(0.1, size))) for size in rng.integers(0, 9, 200)]
    keep = rng.random(200) < 0.5
    words = split_words(texts)
    for mask in (None, keep, np.zeros(200, bool)):
        used = (
            texts
            if mask is None
            else [each for each, kept in zip(texts, mask, strict=True) if kept]
        )
        counts = Counter(word for each in used for word in each.split())
        ranking = sorted(counts, key=lambda word: (-counts[word], word))
        for size in (0, 1, 7, 10_000):
            assert words.vocabulary[most_common(words, size, mask)].tolist() == ranking[:size]
    assert most_common(words, 3).dtype == np.int32


@pytest.mark.parametrize("keep", [np.array([True]), np.array([0, 1])])
def test_a_wrong_mask_is_refused(keep: np.ndarray) -> None:
    with pytest.raises(InputError, match="each of the 2 texts"):
        most_common(split_words(["a", "b"]), 1, keep)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("longest", [0, 1, 3, 40])
def test_padding_is_that_of_a_plain_loop(longest: int, last: bool) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 8, 100).astype(np.int32)
    codes = rng.integers(-1, 50, lengths.sum()).astype(np.int32)
    rows = pad(codes, lengths, longest, last)
    assert (rows.shape, rows.dtype) == ((100, longest), np.int32)
    for row, end, size in zip(rows.tolist(), np.cumsum(lengths), lengths, strict=True):
        mine = codes[end - size : end].tolist()
        mine = mine[max(0, size - longest) :] if last else mine[:longest]
        assert row == mine + [-1] * (longest - len(mine))


@pytest.mark.parametrize(("lengths", "longest"), [([2, 2], 3), ([4, -1], 3), ([1, 2], -1)])
def test_lengths_that_do_not_fit_are_refused(lengths: list[int], longest: int) -> None:
    with pytest.raises(InputError, match=r"lengths add up to \d+, .*longest=-?\d"):
        pad(np.arange(3), np.array(lengths), longest)


def plain_bucket(word: str, buckets: int) -> int:
    """FNV-1a and SplitMix64 as published, on unbounded integers."""
    state = 0xCBF29CE484222325
    for letter in word:
        state = (state ^ ord(letter)) * 0x100000001B3 % 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return (state ^ state >> 31) % buckets


def test_buckets_are_stable_and_follow_the_definition() -> None:
    words = ["", "a", "b", "ab", "caf\u00e9", "\U0001f600", "x" * 50]
    found = bucket(np.array(words), 1000)
    assert found.dtype == np.int32
    assert found.tolist() == [plain_bucket(word, 1000) for word in words]
    assert bucket(words[:3], 1000).tolist() == found[:3].tolist()  # narrower
    assert bucket(np.array(words).astype(">U60"), 1000).tolist() == found.tolist()
    assert bucket(np.array(words)[::-1], 1000).tolist() == found[::-1].tolist()
    assert bucket(words, 1).tolist() == [0] * 7


def test_buckets_are_filled_evenly() -> None:
    counts = np.bincount(bucket(np.arange(50_000).astype(np.str_), 500), minlength=500)
    # If even, each is Poisson with mean 100 and the statistic is chi squared with 499 degrees: 499
    # +- 32.
    assert 499 - 4 * 32 < ((counts - 100) ** 2 / 100).sum() < 499 + 4 * 32


@pytest.mark.parametrize("buckets", [0, -1, 1 << 31])
def test_a_wrong_number_of_buckets_is_refused(buckets: int) -> None:
    with pytest.raises(InputError, match="buckets"):
        bucket(["a"], buckets)


TWEETS = {
    "": "",
    " \t": "",
    "@switchfoot http://twitpic.com/2y1zl - Awww, that's a bummer.": (
        "<user> <url> awww thats a bummer"
    ),
    "RT @a_1: hi": "rt <user> hi",
    "@a@b .@c": "<user> b <user>",
    "mail me@example.org": "mail me example org",
    "@ home": "home",
    "see www.x.org/y?z=1&amp;q=2 HTTPS://Y.ORG bit.ly/Ab9, ok": "see <url> <url> <url> ok",
    "and/or 9.5/10 w/o ...yes/no e.g. this": "and or w o yes no e g this",
    "&quot;I &lt;3 U&quot; &amp; &#39;em &#9829; &amp": "i u em",
    "<b>bold</b><br/>new <a href='x'>link</a>": "bold new link",
    "a <3 b > c < d": "a b c d",
    "&lt;url&gt;": "url",
    "caf\u00e9 \u00c9T\u00c9 \u0416\u0416 \U0001f600\U0001f600": (
        "caf\u00e9 \u00e9t\u00e9 \u0436\u0436"
    ),
    "don't can\u2019t 'quote'": "dont cant quote",
    "line\nline\r\n\x1eline &#10;&NewLine;&#30;end": "line line line end",
    "U N R NUR": "u n r nur",
    "under_score 4ever l33t": "under score ever l t",
    "\u0130stanbul": "i stanbul",
    "#happy $$$": "happy",
    "user url": "user url",
}


@pytest.mark.parametrize("raw", TWEETS)
def test_a_tweet_is_cleaned(raw: str) -> None:
    assert tweet([raw]) == [TWEETS[raw]]


def test_tweets_are_cleaned_one_by_one() -> None:
    assert tweet(list(TWEETS)) == list(TWEETS.values())
    broken = ["<b", "c>", "&am", "p;", "http://", "x", "@", "y", "don", "'t", "bit.ly", "/x"]
    assert tweet(broken) == [tweet([each])[0] for each in broken]
    assert tweet([]) == []


def test_markers_of_a_clean_tweet_are_words_of_their_own() -> None:
    words = split_words(tweet(["@bob user http://t.co url"]))
    assert words_of(words) == [["<user>", "user", "<url>", "url"]]
