"""Tasks: one file for each workload."""

from fedslice.tasks import amazon_din as amazon_din
from fedslice.tasks import cifar10_resnet as cifar10_resnet
from fedslice.tasks import gld_mobilenet as gld_mobilenet
from fedslice.tasks import logistic as logistic
from fedslice.tasks import movielens_lr as movielens_lr
from fedslice.tasks import movielens_mf as movielens_mf
from fedslice.tasks import quadratic as quadratic
from fedslice.tasks import sent140_lstm as sent140_lstm
from fedslice.tasks import shakespeare_lstm as shakespeare_lstm
from fedslice.tasks import stackoverflow_lstm as stackoverflow_lstm
from fedslice.tasks import stackoverflow_transformer as stackoverflow_transformer
from fedslice.tasks import synthetic_glm as synthetic_glm
from fedslice.tasks import taobao_din as taobao_din
from fedslice.tasks.base import Target as Target
from fedslice.tasks.base import Task as Task
from fedslice.tasks.base import Workload as Workload
