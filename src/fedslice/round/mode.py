"""How a cohort is run: side by side, one after the other, in threads.

Clients run under ``vmap`` when they are tiny.  Small ones run one after the other (``lax.map``)
within the one program of a round (``"scan"``), so that the next rounds are planned meanwhile; large
ones, in as many threads as there are cores (``"map"``).  All was measured, see docs/design.md.
"""

import os

from fedslice.errors import InputError

LARGE_CLIENT = 16384  # numbers a client holds from which one after the other beats vectorising
LARGE_COHORT = 1 << 19  # the same for a whole cohort: side by side it no longer fits a cache
UNEVEN_COHORT = 1 << 18  # the same where side by side some would wait for those with more steps
LONG_ROUND = 1 << 20  # up to here one thread that nobody waits for beats several


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose(
    mode: str | int,
    threads: int | None,
    numbers: int,
    clients: int,
    whole: bool = False,
    uneven: bool = False,
) -> tuple[str | int, int]:
    """Mode and threads for a cohort of ``clients`` that hold ``numbers`` numbers each, unless the
    user said them; ``"scan"`` only where rounds are computed ``whole``, by one program.  How many
    steps a client does may be ``uneven``.

    >>> choose("auto", None, numbers=200, clients=50)
    ('vmap', 1)
    >>> choose("auto", None, numbers=6000, clients=50, whole=True, uneven=True)
    ('scan', 1)
    """
    if mode == "debug":
        return "debug", 1
    chosen = mode
    if mode == "auto":
        cohort = clients * numbers
        chosen = "map" if numbers >= LARGE_CLIENT or cohort >= LARGE_COHORT else "vmap"
        least = UNEVEN_COHORT if uneven else LARGE_COHORT
        if whole and threads is None and numbers < LARGE_CLIENT and least <= cohort < LONG_ROUND:
            chosen = "scan"
    elif chosen == "scan" and not whole:
        chosen = "map"
    cores = 1 if chosen in ("vmap", "scan") else min(_cores(), max(1, clients))
    return chosen, cores if threads is None else threads


def check_mode(mode: str | int, threads: int) -> None:
    """Refuse what is no way to run a cohort."""
    known = mode in ("vmap", "scan", "map", "debug") or (isinstance(mode, int) and mode > 0)
    if not known or threads < 1:
        raise InputError(
            f"engine={mode!r} with {threads} threads is not possible: use 'auto', 'vmap',"
            " 'scan', 'map', 'debug' or a number of clients to vectorise at a time"
        )
    if mode == "scan" and threads > 1:
        raise InputError(
            f"engine='scan' is one program on one thread: leave out threads={threads}, or use 'map'"
        )
