"""A task of the user's own file."""

import argparse

from fedslice.cli.printing import say
from fedslice.data.loading import from_file
from fedslice.errors import InputError
from fedslice.tasks import logistic
from fedslice.tasks.base import Task


def own_task(options: argparse.Namespace) -> Task:
    """The task ``lr``."""
    missing = [
        f"--{name}"
        for name in ("data", "client", "label", "features")
        if getattr(options, name) is None
    ]
    if options.task != "lr" or missing:
        raise InputError(
            "your own data go with the task lr: fedslice run lr --data clicks.parquet --client"
            " user --label clicked --features item,category (missing here:"
            f" {', '.join(missing) or 'the task name lr'})"
        )
    if options.option:
        raise InputError(f"--option {options.option[0]}: the task lr has no options")
    fields = _names(options.features)
    text = _names(options.text)
    people = from_file(
        options.data, client=options.client, label=options.label, features=fields, text=text
    )
    for line in logistic.values(people, fields):
        say(line)
    return logistic.from_population(people, fields, options.label)


def unlabelled(options: argparse.Namespace) -> Task:
    """Heat needs no label and no split."""
    if options.client is None or options.features is None:
        raise InputError(
            "the heat of a file needs its columns: fedslice heat FILE --client user --features"
            " item,category"
        )
    if options.option:
        raise InputError(f"--option {options.option[0]}: the task lr has no options")
    fields = _names(options.features)
    people = from_file(
        options.data, client=options.client, features=fields, text=_names(options.text)
    )
    return logistic.whole(people, fields)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
