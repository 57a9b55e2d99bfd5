"""Figures to where people watch their experiments: TensorBoard, MLflow, Weights & Biases.

All stay on this machine, beside the run folder: event files, an SQLite store, offline mode.  Each
is a package of its own, asked for by ``--track``; a step is a round, so that a run that goes on
adds to what is there.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from fedslice.cli.folder import Line
from fedslice.errors import InputError, nearest


class Tracker(NamedTuple):
    """``log(round, figures)`` and ``close()``."""

    log: Callable[[int, Mapping[str, float]], None]
    close: Callable[[], None]

    def emit(self, line: Line) -> None:
        """A line of a run's log; its last word is none."""
        if "done" not in line:
            self.log(line["round"], numbers(line))


def numbers(line: Line) -> dict[str, float]:
    """What can be drawn.

    >>> numbers({"round": 3, "train_loss": 0.5, "note": "a"})
    {'train_loss': 0.5}
    """
    return {
        key: float(value)
        for key, value in line.items()
        if key != "round" and isinstance(value, int | float)
    }


def check_tracker(kind: str) -> None:
    """Refuse a kind that there is not."""
    if kind not in KINDS:
        raise InputError(f"--track {kind}: {nearest(kind, KINDS)}")


def open_tracker(kind: str, folder: Path, name: str, settings: Mapping[str, Any]) -> Tracker:
    """The tracker of a run in ``folder``; ``name`` is what it is called there.

    >>> open_tracker("paper", Path("."), "run", {})
    Traceback (most recent call last):
    fedslice.errors.InputError: --track paper: there are tensorboard, mlflow, wandb
    """
    check_tracker(kind)
    package, make = KINDS[kind]
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        return make(folder, name, dict(settings))
    except ImportError as error:
        raise InputError(
            f"--track {kind} needs {package}: pip install {package}, or 'fedslice[track]' for all"
        ) from error


def _tensorboard(folder: Path, name: str, settings: dict[str, Any]) -> Tracker:
    from tensorboardX import SummaryWriter

    writer = SummaryWriter(str(folder.parent / "tensorboard" / name))
    writer.add_text("settings", "\n".join(f"{k}: {v}  " for k, v in settings.items()), 0)

    def log(number: int, figures: Mapping[str, float]) -> None:
        for key, value in figures.items():
            writer.add_scalar(key, value, number)
        writer.flush()

    return Tracker(log, writer.close)


def _mlflow(folder: Path, name: str, settings: dict[str, Any]) -> Tracker:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{(folder.parent / 'mlflow.db').resolve()}")
    known = client.get_experiment_by_name("fedslice")
    experiment = known.experiment_id if known else client.create_experiment("fedslice")
    run = client.create_run(experiment, run_name=name)
    for key, value in settings.items():
        client.log_param(run.info.run_id, key, value)

    def log(number: int, figures: Mapping[str, float]) -> None:
        for key, value in figures.items():
            client.log_metric(run.info.run_id, key.replace("@", "_at_"), value, step=number)

    return Tracker(log, lambda: client.set_terminated(run.info.run_id))


def _wandb(folder: Path, name: str, settings: dict[str, Any]) -> Tracker:
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    run = wandb.init(
        project="fedslice",
        name=name,
        dir=str(folder.parent),
        config=settings,
        mode="online" if os.environ.get("WANDB_MODE") == "online" else "offline",
    )

    def close() -> None:
        with suppress(Exception):  # what is written is written
            run.finish()

    return Tracker(lambda number, figures: run.log(dict(figures), step=number), close)


KINDS: dict[str, tuple[str, Callable[[Path, str, dict[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboardX", _tensorboard),
    "mlflow": ("mlflow-skinny sqlalchemy alembic", _mlflow),
    "wandb": ("wandb", _wandb),
}
