"""What users write: ``key=value``, values of a kind, ``name:argument:argument``."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fedslice.errors import InputError, nearest

Built = TypeVar("Built")


def pair(flag: str, text: str, wanted: str) -> tuple[str, str]:
    """Key and value of one ``key=value`` after ``flag``; ``wanted`` is what else to write.

    >>> pair("--option", "split = time", "write name=value")
    ('split', 'time')
    """
    key, sign, value = (part.strip() for part in text.partition("="))
    if not sign:
        raise InputError(f"{flag} {text}: {wanted}")
    return key, value


def parse(key: str, text: str, kind: type) -> Any:
    """The value that a user wrote as text.

    >>> parse("local", "no", bool), parse("buckets", "500", int)
    (False, 500)
    """
    try:
        return _flag(text) if kind is bool else kind(text)
    except ValueError:
        wanted = {bool: "yes or no", int: "a whole number", float: "a number"}[kind]
        raise InputError(f"{key}={text!r}: this must be {wanted}") from None


def change_of(text: str) -> tuple[str, str, str]:
    """Algorithm (or nothing), key and value of one ``--set``.

    >>> change_of("fedprox:mu=1"), change_of("reduce=trimmed:0.1")
    (('fedprox', 'mu', '1'), ('', 'reduce', 'trimmed:0.1'))
    """
    key, value = pair("--set", text, "write key=value, or ALGORITHM:key=value")
    name, colon, own = key.rpartition(":")
    if colon and not name:
        raise InputError(
            f"--set {text}: name the algorithm before the colon, or leave the colon out"
        )
    return name, own, value


def built(what: str, text: str, kinds: Mapping[str, Callable[..., Built]]) -> Built:
    """``name:argument:argument`` through a table of builders.

    >>> built("reduce", "largest:0.5", {"largest": lambda share: float(share)})
    0.5
    """
    name, *arguments = text.split(":")
    if name not in kinds:
        raise InputError(f"{what}={text!r} is not known; {nearest(name, kinds)}")
    try:
        return kinds[name](*arguments)
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{what}={text!r}: its arguments do not fit ({error})") from None
    except TypeError:
        wanted = ":".join(map(str.upper, inspect.signature(kinds[name]).parameters)) or "nothing"
        raise InputError(f"{what}={text!r}: after {name} comes {wanted}") from None


def _flag(text: str) -> bool:
    if text.lower() in ("yes", "true", "1", "on"):
        return True
    if text.lower() in ("no", "false", "0", "off"):
        return False
    raise ValueError(text)


def minutes(seconds: float) -> str:
    """How long, as a person says it.

    >>> minutes(8), minutes(100), minutes(9000)
    ('8 s', '2 min', '2 h 30 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    whole = round(seconds / 60)
    return f"{whole} min" if whole < 90 else f"{whole // 60} h {whole % 60} min"
