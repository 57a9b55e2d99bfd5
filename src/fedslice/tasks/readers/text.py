"""Words of many texts at once: splitting, counting, padding, hashing, and the cleaning of tweets.

All work is done on long joined strings by compiled regular expressions, and on arrays: no Python
runs for each text."""

import html
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedslice.errors import InputError

WORD = (  # a marker such as <url>, or letters and digits: it's, 4th
    r"<[a-z]+>|[^\W_]+(?:['’][^\W_]+)*+"
)
LONGEST = (
    64  # characters of a word that count: one endless word must not widen the whole vocabulary
)
_TOGETHER = 1 << 15  # texts handled at a time
_BETWEEN = (  # separators to choose from: white space, so that words end there
    "\n\x1e\x1f\x1d\x1c\v\f"
)
_RECORD = "\x1e"  # separates tweets: white space that no HTML entity stands for

_TAG = re.compile(r"</?[a-zA-Z][^<>\x1e]*+>")
_URL = re.compile(r"https?://\S+")
# bit.ly/x, but not 9.5/10
_SITE = re.compile(r"(?<![\w.-])(?:www\.\S+|[\w-]++(?:\.[\w-]++)++(?<=[a-z]{2})/\S*)")
_NAME = re.compile(r"@(?<!\w@)\w+")  # not in an e-mail address; it begins with @ to be fast
_OTHER = re.compile(r"[\W\d_]+")  # than letters


class Words(NamedTuple):
    """The words of N texts one after the other: ``codes`` index ``vocabulary``, which is in
    alphabetical order."""

    codes: NDArray[np.int32]  # [total]
    lengths: NDArray[np.int32]  # [N] words of each text
    vocabulary: NDArray[np.str_]  # [V] by code point


def split_words(texts: Sequence[str], pattern: str = WORD) -> Words:
    """All matches of a regular expression in each text, as codes.

    A word's first 64 characters count.  The pattern may not look beyond the word: no ``^``, ``$``,
    nor groups that capture.

    >>> words = split_words(["to be or", "", "not to be"])
    >>> words.lengths.tolist(), words.vocabulary.tolist()
    ([3, 0, 3], ['be', 'not', 'or', 'to'])
    >>> words.vocabulary[words.codes].tolist()
    ['to', 'be', 'or', 'not', 'to', 'be']
    """
    try:
        rule = re.compile(f"(?:{pattern})")
    except re.error as error:
        raise InputError(f"the pattern {pattern!r} cannot be used ({error})") from error
    if rule.groups:
        raise InputError(
            f"the pattern {pattern!r} has groups that capture: write (?:...) for (...)"
        )
    index: defaultdict[str, int] = defaultdict(count().__next__)
    codes, lengths = [], []
    for start in range(0, len(texts), _TOGETHER):
        some, sizes = _split(texts[start : start + _TOGETHER], rule, index)
        codes.append(some)
        lengths.append(sizes)
    if "" in index:
        raise InputError(f"the pattern {pattern!r} matches where there is no word: write + for *")
    joined = np.concatenate(codes) if codes else np.zeros(0, np.int32)
    return _sorted(joined, np.concatenate(lengths) if lengths else joined, list(index))


def _split(
    texts: Sequence[str], rule: "re.Pattern[str]", index: defaultdict[str, int]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    plain = "".join(texts)
    separator = next((mark for mark in _BETWEEN if mark not in plain), None)
    if separator is not None:
        found = re.findall(f"{separator}|{rule.pattern}", separator.join([*texts, ""]))
        codes = np.fromiter(map(index.__getitem__, found), np.int32, len(found))
        ends = np.flatnonzero(codes == index[separator])
        if len(ends) == len(texts):  # no word has swallowed a separator
            lengths = np.diff(ends, prepend=-1) - 1
            return np.delete(codes, ends), lengths.astype(np.int32)
    each = [rule.findall(text) for text in texts]
    codes = np.array([index[word] for words in each for word in words], np.int32)
    return codes, np.array([len(words) for words in each], np.int32)


def _sorted(codes: NDArray[np.int32], lengths: NDArray[np.int32], words: list[str]) -> Words:
    """Alphabetical, shortened, and without what does not occur (the separators)."""
    used = np.bincount(codes, minlength=len(words)) > 0
    short = [word[:LONGEST].rstrip("\0") for word in words]  # NumPy drops trailing zeros
    names = sorted({word for word, is_used in zip(short, used.tolist(), strict=True) if is_used})
    place = dict(zip(names, range(len(names)), strict=True))
    moved = np.array([place.get(word, -1) for word in short], np.int32)
    return Words(moved[codes], lengths, np.array(names, np.str_))


def most_common(
    words: Words, size: int, keep: NDArray[np.bool_] | None = None
) -> NDArray[np.int32]:
    """Codes of the ``size`` most frequent words (fewer if there are fewer), ties in alphabetical
    order.

    ``keep`` says which texts count, for example those to train on.

    >>> words = split_words(["b a b", "c c c", "a d"])
    >>> words.vocabulary[most_common(words, 2)].tolist()
    ['c', 'a']
    >>> common = most_common(words, 2, keep=np.array([True, False, True]))
    >>> ids = np.full(len(words.vocabulary), -1)  # of the words that are not common
    >>> ids[common] = np.arange(len(common))
    >>> ids[words.codes].tolist()
    [1, 0, 1, -1, -1, -1, 0, -1]
    """
    codes = words.codes
    if keep is not None:
        chosen = np.asarray(keep)
        if chosen.dtype != bool or chosen.shape != words.lengths.shape:
            raise InputError(
                f"keep must have one truth value for each of the {len(words.lengths)} texts"
            )
        codes = codes[np.repeat(chosen, words.lengths)]
    counts = np.bincount(codes, minlength=len(words.vocabulary))
    order = np.argsort(-counts, kind="stable")[: max(size, 0)]
    return order[counts[order] > 0].astype(np.int32)


def pad(
    codes: NDArray[Any], lengths: NDArray[Any], longest: int, last: bool = False
) -> NDArray[np.int32]:
    """One row of ``longest`` codes for each text: the first (or ``last``) ones, then -1.

    >>> pad(np.arange(4), np.array([3, 0, 1]), longest=2).tolist()
    [[0, 1], [-1, -1], [3, -1]]
    >>> pad(np.arange(4), np.array([3, 0, 1]), longest=2, last=True).tolist()
    [[1, 2], [-1, -1], [3, -1]]
    """
    sizes = np.asarray(lengths, np.int64)
    if sizes.sum() != len(codes) or longest < 0 or (sizes < 0).any():
        raise InputError(
            f"lengths add up to {sizes.sum()}, but there are {len(codes)} codes (longest={longest})"
        )
    starts = np.cumsum(sizes) - sizes
    kept = np.minimum(sizes, longest)
    if last:
        starts += sizes - kept
    rows = np.full((len(sizes), longest), -1, np.int32)
    step = np.arange(longest)
    for start in range(0, len(sizes), _TOGETHER):  # by blocks, to bound memory
        block = slice(start, start + _TOGETHER)
        there = step < kept[block, None]
        rows[block][there] = codes[(starts[block, None] + step)[there]]
    return rows


def bucket(words: NDArray[np.str_] | Sequence[str], buckets: int) -> NDArray[np.int32]:
    """A number below ``buckets`` for each word, the same on every machine and in every version.

    FNV-1a over the code points, then the finishing steps of SplitMix64.

    >>> bucket(["apple", "pear", "apple"], 1000).tolist()
    [361, 86, 361]
    """
    if not 0 < buckets < 1 << 31:
        raise InputError(f"buckets must be from 1 to 2^31 - 1, got {buckets}")
    names = np.ascontiguousarray(words, np.str_)
    names = names.astype(names.dtype.newbyteorder("="))
    points = (
        names.view(np.uint32).reshape(*names.shape, -1)
        if names.size
        else np.zeros((0, 0), np.uint32)
    )
    state = np.full(len(names), 0xCBF29CE484222325, np.uint64)
    for column in range(points.shape[-1]):
        point = points[:, column].astype(np.uint64)
        # 0 is after the end
        state = np.where(point > 0, (state ^ point) * np.uint64(0x100000001B3), state)
    state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return ((state ^ state >> np.uint64(31)) % np.uint64(buckets)).astype(np.int32)


def tweet(texts: Sequence[str]) -> list[str]:
    """Clean tweets: no HTML, ``<user>`` for @names, ``<url>`` for addresses, otherwise lowercase
    letters and spaces.

    Apostrophes are dropped, so that a word stays one: "don't" becomes "dont".

    >>> tweet(["@bob I don't &lt;3 it: http://t.co/x1 &amp; 2 more", ""])
    ['<user> i dont it <url> more', '']
    """
    cleaned: list[str] = []
    for start in range(0, len(texts), _TOGETHER):
        cleaned.extend(_clean(texts[start : start + _TOGETHER]))
    return cleaned


def _clean(texts: Sequence[str]) -> Iterator[str]:
    joined = _RECORD.join(texts)
    if joined.count(_RECORD) != len(texts) - 1:
        joined = _RECORD.join(text.replace(_RECORD, " ") for text in texts)
    joined = html.unescape(_TAG.sub(" ", joined)).lower()
    # From here on capitals are free to stand for what is not a word.
    joined = _NAME.sub(" N ", _SITE.sub(" U ", _URL.sub(" U ", joined))).replace(_RECORD, " R ")
    joined = _OTHER.sub(" ", joined.replace("'", "").replace("’", ""))
    return map(str.strip, joined.replace("N", "<user>").replace("U", "<url>").split("R"))
