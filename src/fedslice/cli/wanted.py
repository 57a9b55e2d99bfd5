"""What the options ask for: a task, its devices, seeds, a folder."""

import argparse
from contextlib import suppress
from itertools import count
from pathlib import Path

from fedslice.cli import own
from fedslice.cli.printing import say
from fedslice.cli.workloads import chosen_options, find_task, make_task, obtain
from fedslice.data.devices import Devices
from fedslice.errors import InputError
from fedslice.tasks.base import Task
from fedslice.tasks.readers.files import data_home


def task_of(options: argparse.Namespace) -> Task:
    """The task that the options ask for."""
    return own.make(options) if own.wanted(options) else named_task(options)


def validated(task: Task, options: argparse.Namespace) -> Task:
    """With the validation set that was asked for, if the task has none yet."""
    if task.validation is not None or not options.validation:
        return task
    return task.validated(options.validation)


def named_task(options: argparse.Namespace) -> Task:
    """A task by its name, with generated or real data."""
    workload = find_task(options.task)
    if options.synthetic or workload.load is None:
        scale = workload.scale if options.scale is None else options.scale
        if not 0 < scale <= 100:
            raise InputError(f"--scale {scale}: give a number above 0, up to 100")
        if scale != 1 and options.scale is None:
            say(
                f"generating {workload.name} at scale {scale:g} of the published size (--scale 1"
                " for all of it)"
            )
        return make_task(workload, None, scale, options.option)
    chosen_options(workload, True, options.option)  # refused before anything is downloaded
    if options.data_dir is None:
        say(f"looking for the data in {data_home()} (set FEDSLICE_DATA to change this)")
    return make_task(workload, options.data_dir or obtain(workload), 1.0, options.option)


def devices_of(options: argparse.Namespace) -> Devices | None:
    """The devices whose time is estimated, if the user has some of their own."""
    return None if options.devices is None else Devices.read(options.devices)


def seeds_of(text: str) -> list[int]:
    """The seeds that ``--seeds`` names: so many, or these."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"--seeds {text}: give a number of seeds, or seeds separated by commas"
        ) from None
    if len(numbers) == 1 and numbers[0] < 1:
        raise InputError("--seeds must be at least 1")
    if len(set(numbers)) < len(numbers):
        raise InputError(f"--seeds {text}: a seed is named twice, and would count as two runs")
    return list(range(numbers[0])) if len(numbers) == 1 else numbers


def free_folder(folder: Path, name: str) -> Path:
    """Make the first of name-1, name-2 ... that is not there yet, also if others do the same at
    this moment."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count(1):
        mine = folder / f"{name}-{number}"
        with suppress(FileExistsError):
            mine.mkdir()
            break
    return mine
