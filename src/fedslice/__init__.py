"""fedslice: federated optimisation where every client trains only its slice of the model."""

import gc

_collecting = gc.isenabled()
gc.disable()  # hundreds of modules come in: a sixth of the time would go into looking for garbage

from fedslice import client as client
from fedslice import cluster as cluster
from fedslice import metrics as metrics
from fedslice import privacy as privacy
from fedslice import prox as prox
from fedslice import recipes as recipes
from fedslice import reduce as reduce
from fedslice import server as server
from fedslice import stage as stage
from fedslice import tasks as tasks
from fedslice import types as types
from fedslice.compose import algorithm as algorithm
from fedslice.data import halves as halves
from fedslice.data import sampling as sampling
from fedslice.data.population import Population as Population
from fedslice.estimator import Federated as Federated
from fedslice.evaluation.gain import Personal as Personal
from fedslice.evaluation.gain import adapted as adapted
from fedslice.evaluation.kept_models import kept as kept
from fedslice.evaluation.scores import Evaluator as Evaluator
from fedslice.evaluation.scores import evaluate as evaluate
from fedslice.frameworks import equinox as equinox
from fedslice.frameworks import flax as flax
from fedslice.frameworks import torch as torch
from fedslice.heat import Heat as Heat
from fedslice.model import Model as Model
from fedslice.model import Table as Table
from fedslice.model import lookup as lookup
from fedslice.simulation.run import simulate as simulate
from fedslice.types import Work as Work

if _collecting:
    gc.enable()
