"""The command that repeats one run of many."""

import shlex
from argparse import Namespace
from collections.abc import Sequence

from fedslice.cli import own
from fedslice.cli.folder import Line

SOURCE = ("devices", "data_dir", "data", "scale")


def command(
    options: Namespace, algorithm: str, seed: int, rounds: int, every: int, changes: Sequence[str]
) -> Line:
    """What a run's folder says of it: the data as ``options`` name them, and what was changed.

    >>> given = Namespace(task="movielens-mf", synthetic=True, option=["split=time"])
    >>> command(given, "fedrecon", 3, 40, 10, ["joint=yes"])["command"]  # doctest: +ELLIPSIS
    'fedslice run movielens-mf --synthetic --option split=time --algorithm fedrecon --seed 3 ...'
    """
    words = ["fedslice", "run", options.task]
    if options.synthetic:
        words.append("--synthetic")
    for flag in SOURCE:
        if (value := getattr(options, flag, None)) not in (None, ""):
            words += [f"--{flag.replace('_', '-')}", str(value)]
    if getattr(options, "data", None):
        words += own.words(options)
    for option in options.option:
        words += ["--option", option]
    if validation := getattr(options, "validation", None):
        words += ["--validation", str(validation)]
    if patience := getattr(options, "patience", 0):
        words += ["--patience", str(patience)]
    words += ["--algorithm", algorithm, "--seed", str(seed)]
    words += ["--rounds", str(rounds), "--eval-every", str(every)]
    for text in changes:
        words += ["--set", text]
    return {"command": shlex.join(words)}
