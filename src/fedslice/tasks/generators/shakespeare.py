"""Speeches like those of Shakespeare's roles, from a small model of a language.

A word has a class and a rank in it.  After a word of one class comes a word of one of four classes,
and of that class one by Zipf's law.  A role has eight words of its own that it likes to use, and
speaks of the people of its play.  Roles differ in the length of their lines and in how these end.
Words are spelled from syllables, longer the rarer they are.

Matched at scale 1, with LEAF's figures: 1,129 roles, 4,226,158 characters, and 6,212, the standard
deviation over roles (within 5 %).  The quantiles of a role's characters are those of the plays, and
so are the mean lengths of lines (40 characters) and speeches (3.5 lines).  As there, some
characters are known to few roles: digits and some capitals.  Not matched: how frequent each letter
is, and what it is all about.
"""

import numpy as np

from fedslice.errors import InputError
from fedslice.tasks.readers.shakespeare import Plays

_ROLES, _CHARACTERS = 1129, 4_226_158
_KNOTS = ((0, 82), (0.1, 170), (0.25, 383), (0.5, 1223), (0.75, 4355), (0.9, 10_973),
          (0.95, 14_947), (0.99, 29_028), (1, 61_699))  # fmt: skip
_PLAYS, _CAST = 37, 12
_CLASSES, _WORDS, _ZIPF = 12, 200, 1.1  # words of each class, and how their frequency falls
_MOVES = (0.55, 0.25, 0.15, 0.05)
_OWN, _HABIT, _NAMES, _NUMBERS = 8, 0.1, 0.03, 0.0002  # words of one's own; shares of the words
# words in a line, in the mean and at most; lines in a speech
_LINE, _LONGEST, _SPEECH = (7.8, 14, 3.5)
_SPAN = 1 << 15  # lines spelled at once
_ENDS = (",", ".", ";", ":", "!", "?", "")
_ONSETS = ("t", "s", "h", "w", "m", "b", "n", "th", "f", "l", "c", "d", "st", "g", "p", "r",
           "k", "sh", "v", "ch", "j", "qu", "z", "y", "x")  # fmt: skip
_VOWELS = ("e", "a", "o", "i", "u", "ea", "ou")
_CODAS = ("", "n", "r", "s", "t", "l", "d", "th", "m", "ck", "st")


def generate(seed: int = 0, scale: float = 1.0) -> list[str]:
    """What each of 1,129 x ``scale`` roles says, every speech between \\x02 and \\x03; shorter at
    scales below 1.

    >>> texts = generate(seed=0, scale=0.01)
    >>> len(texts), texts[0][0] == "\\x02"
    (11, True)
    """
    roles = round(_ROLES * scale)
    if roles < 10:
        raise InputError(f"scale={scale} leaves {roles} roles: use a scale of at least 0.01")
    rng = np.random.default_rng(seed)
    lengths = rng.permutation(_lengths(roles, _CHARACTERS * scale * min(1, scale**0.5)))
    role = np.repeat(np.arange(roles), lengths // 20 + 2)  # of each line: twice as many as needed
    words = _write(rng, role, roles)
    tails = _tails(rng, role, words)
    lexicon = _lexicon(rng)
    parts, characters = [], np.empty(len(role), np.int64)
    for start in range(0, len(role), _SPAN):
        span = slice(start, start + _SPAN)
        spelled = np.concatenate([lexicon[words[span]], tails[span]], axis=2)
        first = spelled[:, 0, 0]
        # a capital
        spelled[:, 0, 0] = np.where((first >= ord("a")) & (first <= ord("z")), first - 32, first)
        there = spelled != 0
        characters[span] = there.sum((1, 2))
        parts.append(spelled[there].tobytes())
    text = b"".join(parts).decode("ascii")
    ends = np.cumsum(np.bincount(role, characters, minlength=roles)).astype(np.int64)
    starts = np.append(0, ends[:-1])
    stops = np.minimum(ends, starts + lengths - 1)
    return [
        "\x02" + text[start:stop]
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
    ]


def plays(seed: int = 0, scale: float = 1.0) -> Plays:
    """The same as :func:`generate`, as what is read from files is.

    >>> plays(scale=0.01).roles[:2].tolist()
    ['role 0', 'role 1']
    """
    texts = generate(seed, scale)
    return Plays(
        np.char.add("role ", np.arange(len(texts)).astype(str)), np.arange(len(texts)), texts, None
    )


def _lengths(roles: int, total: float) -> np.ndarray:
    """Characters of each role: the profile of the plays, stretched to the total."""
    quantile, value = np.array(_KNOTS).T
    extra = np.exp(np.interp(np.linspace(0, 1, roles), quantile, np.log(value))) - value[0]
    return np.rint(value[0] + extra * max(0.0, total - roles * value[0]) / extra.sum()).astype(
        np.int64
    )


def _write(rng: np.random.Generator, role: np.ndarray, roles: int) -> np.ndarray:
    """int16 [lines, 14]: words by number, -1 after the end of the line."""
    zipf = np.cumsum(np.arange(1, _WORDS + 1) ** -_ZIPF)
    moves = np.stack([rng.permutation(_CLASSES) for _ in _MOVES])
    own = rng.integers(_CLASSES * _WORDS, size=(roles, _OWN))
    play = rng.integers(_PLAYS, size=roles)
    count = np.minimum(1 + rng.poisson(rng.uniform(0.75, 1.25, roles)[role] * _LINE - 1), _LONGEST)
    words = np.empty((len(role), _LONGEST), np.int16)
    kind = rng.integers(_CLASSES, size=len(role))
    for place in range(_LONGEST):
        kind = moves[rng.choice(len(_MOVES), len(role), p=_MOVES), kind]
        chance = rng.random(len(role))
        word = kind * _WORDS + np.searchsorted(zipf, zipf[-1] * rng.random(len(role)))
        word = np.where(chance < _HABIT, own[role, rng.integers(_OWN, size=len(role))], word)
        kind = word // _WORDS
        name = _CLASSES * _WORDS + play[role] * _CAST + rng.integers(_CAST, size=len(role))
        word = np.where(chance > 1 - _NAMES, name, word)
        number = (
            _CLASSES * _WORDS + _PLAYS * _CAST + (10 * rng.random(len(role)) ** 3).astype(np.int64)
        )
        words[:, place] = np.where(chance > 1 - _NUMBERS, number, word)
    return np.where(np.arange(_LONGEST) < count[:, None], words, np.int16(-1))


def _tails(rng: np.random.Generator, role: np.ndarray, words: np.ndarray) -> np.ndarray:
    """uint8 [lines, 14, 3]: what stands between words, at the end of a line, and at the end of a
    speech."""
    table = _bytes(
        ["", " ", ", ", *(end + "\n" for end in _ENDS), *(end + "\x03\x02" for end in _ENDS)], 3
    )
    kinds = np.where(rng.random(words.shape) < 0.06, np.int8(2), np.int8(1))
    habits = np.cumsum(rng.dirichlet(np.ones(len(_ENDS)), role[-1] + 1), axis=1)[role]
    end = np.minimum((habits < rng.random((len(role), 1))).sum(axis=1), len(_ENDS) - 1)
    last = (words >= 0).sum(axis=1) - 1
    kinds[np.arange(len(role)), last] = 3 + end + len(_ENDS) * (rng.random(len(role)) < 1 / _SPEECH)
    return table[np.where(words < 0, np.int8(0), kinds)]


def _lexicon(rng: np.random.Generator) -> np.ndarray:
    """uint8 [words, names, digits and the empty word, longest]: their spelling, filled up with
    zeros."""
    most = np.tile(np.minimum(1 + np.arange(_WORDS) // 30, 3), _CLASSES)
    words = [_spell(rng, syllables) for syllables in rng.integers(1, most + 1).tolist()]
    names = [_spell(rng, 2).capitalize() for _ in range(_PLAYS * _CAST)]
    return _bytes([*words, *names, *"1234567890", ""], 15)


def _spell(rng: np.random.Generator, syllables: int) -> str:
    """A word; what is later in a list is rarer."""
    parts = (_ONSETS, _VOWELS, _CODAS)
    return "".join(
        part[int(len(part) * rng.random() ** 2)] for _ in range(syllables) for part in parts
    )


def _bytes(words: list[str], width: int) -> np.ndarray:
    return np.array(words, f"S{width}").view(np.uint8).reshape(len(words), width)
