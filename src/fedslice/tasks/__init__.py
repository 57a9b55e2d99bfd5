"""Tasks: one file for each workload."""

from fedslice.tasks import quadratic as quadratic
from fedslice.tasks.base import Target as Target
from fedslice.tasks.base import Task as Task
