"""Tasks: one file for each workload, which is all that it needs.

Every module of this package that has a ``WORKLOAD``, or ``WORKLOADS``, is one; ``fs.tasks.NAME`` is
the module.
"""

import pkgutil
from importlib import import_module

from fedslice.tasks.base import Target as Target
from fedslice.tasks.base import Task as Task
from fedslice.tasks.base import Workload as Workload

_MODULES = [
    import_module(f"{__name__}.{found.name}")
    for found in pkgutil.iter_modules(__path__)
    if not found.ispkg
]


def workloads() -> list[Workload]:
    """The workloads of all modules, in the order of the modules' names.

    >>> [workload.name for workload in workloads()][:3]
    ['amazon-din', 'cifar10-resnet', 'gld-mobilenet']
    """
    found: list[Workload] = []
    for module in _MODULES:
        if hasattr(module, "WORKLOAD"):
            found.append(module.WORKLOAD)
        found += getattr(module, "WORKLOADS", ())
    return found
