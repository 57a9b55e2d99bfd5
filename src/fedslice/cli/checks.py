"""What can be refused before any data are read: names, numbers and settings."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedslice.cli import grid, own
from fedslice.cli.catalogue import find_method, settings_for, settings_of_all
from fedslice.cli.optimizers import schedule
from fedslice.cli.settings import Settings
from fedslice.cli.sources import answers, private_stages, sampler
from fedslice.cli.text import built
from fedslice.cli.trackers import check_tracker
from fedslice.cli.wanted import devices_of
from fedslice.cli.workloads import outline
from fedslice.errors import InputError, nearest
from fedslice.stage.averaging import WEIGHTS

ENGINES = ("auto", "vmap", "scan", "map", "debug")


def check_run(options: argparse.Namespace, algorithm: str) -> None:
    """The options of ``run``."""
    _check_numbers(options)
    for kind in options.track:
        check_tracker(kind)
    try_out(settings_for(outline(options.task), algorithm, options.set))


def check_comparison(options: argparse.Namespace) -> None:
    """The options of ``compare``."""
    _check_numbers(options)
    found, _ = settings_of_all(outline(options.task), options.algorithms, options.set)
    for settings in found.values():
        try_out(settings)


def check_study(options: argparse.Namespace, axes: Sequence[grid.Axis]) -> None:
    """The options of ``study``."""
    _check_numbers(options)
    for cell in grid.cells(outline(options.task), options.algorithms, options.set, axes):
        try_out(cell.settings)


def _check_numbers(options: argparse.Namespace) -> None:
    if options.rounds < 1 or options.eval_every < 1:
        raise InputError("--rounds and --eval-every must be at least 1")
    if own.wanted(options):
        own.check(options)
    elif isinstance(options.validation, Path):
        raise InputError(
            f"--validation {options.validation}: a file is for your own data; give a share, such as"
            " 0.1"
        )
    if not isinstance(options.validation, Path) and not 0 <= options.validation < 1:
        raise InputError(
            f"--validation {options.validation:g}: give a share from 0 to 1, such as 0.1"
        )
    if options.patience < 0 or (options.patience and not options.validation):
        raise InputError(
            f"--patience {options.patience} waits for a better validation loss: give a whole"
            " number, and hold out a validation set, --validation 0.1"
        )
    devices_of(options)


def try_out(settings: Settings) -> None:
    """Build from the settings all that needs no data; what cannot be built is refused.

    >>> try_out(Settings({"reduce": "medain"}))
    Traceback (most recent call last):
    fedslice.errors.InputError: reduce='medain' is not known; did you mean 'median'?
    """
    values = settings.values
    for needed, build in BUILT.items():
        if all(key in values for key in needed):
            build(settings)
    if values.get("noise"):
        private_stages(settings, None)
    if "engine" in values and not (values["engine"] in ENGINES or values["engine"].isdigit()):
        found = nearest(values["engine"], [*ENGINES, "a number of clients"])
        raise InputError(f"engine={values['engine']!r} is not known; {found}")
    if values.get("weights", "examples") not in WEIGHTS:
        found = nearest(values["weights"], WEIGHTS)
        raise InputError(f"weights={values['weights']!r} is not known; {found}")


def _heat(settings: Settings) -> Any:
    kinds: dict[str, Callable[..., Any]] = {
        "exact": lambda: None,
        "public": lambda: None,
        "response": lambda epsilon="1": float(epsilon),
        "sum": lambda noise, rows: (float(noise), int(rows)),
    }
    return built("heat_privacy", settings.heat_privacy, kinds)


def _sampler(settings: Settings) -> Any:
    named = settings.values.get("available", "always").startswith("trace:")
    return None if named else sampler(settings)  # a trace names the clients of the data


# settings that something is built of, and what builds it
BUILT: dict[tuple[str, ...], Callable[[Settings], Any]] = {
    ("client", "client_rate", "gradient_clip"): lambda s: s.client_optimizer,
    ("client_schedule",): lambda s: schedule(s.client_schedule),
    ("server", "server_rate", "server_schedule"): lambda s: s.server_optimizer,
    ("clip", "compress", "feedback"): lambda s: s.before_mean,
    ("reduce",): lambda s: s.reduction,
    ("sampler", "cohort"): _sampler,
    ("secure",): lambda s: answers(s),
    ("heat_privacy",): _heat,
}


def check_algorithms(names: Sequence[str]) -> None:
    """Each is there, and named once."""
    for name in names:
        find_method(name)
    if len(set(names)) < len(names):
        raise InputError("an algorithm is named twice")
