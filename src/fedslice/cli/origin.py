"""What a run was made of, as far as it is not in its settings: data and versions."""

import platform
from importlib.metadata import version

from fedslice.cli.folder import Line
from fedslice.simulation.run import Run
from fedslice.tasks.base import Task


def origin(task: Task, run: Run) -> Line:
    """What a run was made of, as far as it is not in its settings."""
    columns = {name: str(column.dtype) for name, column in sorted(task.train.columns.items())}
    names = ("fedslice", "jax", "jaxlib", "optax", "numpy")
    return {
        "data": {"source": task.source, "columns": columns, "hash": run.identity["population"]},
        "versions": {name: version(name) for name in names},
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
