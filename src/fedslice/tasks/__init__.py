"""Tasks: one file for each workload."""

from fedslice.tasks import logistic as logistic
from fedslice.tasks import movielens_lr as movielens_lr
from fedslice.tasks import quadratic as quadratic
from fedslice.tasks.base import Target as Target
from fedslice.tasks.base import Task as Task
