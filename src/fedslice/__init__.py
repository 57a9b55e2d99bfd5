"""fedslice: federated optimisation where every client trains only its slice of the model."""

from fedslice import client as client
from fedslice import metrics as metrics
from fedslice import parts as parts
from fedslice import prox as prox
from fedslice import recipes as recipes
from fedslice import reduce as reduce
from fedslice import sampling as sampling
from fedslice import server as server
from fedslice import stage as stage
from fedslice import tasks as tasks
from fedslice import types as types
from fedslice.algorithm import algorithm as algorithm
from fedslice.evaluate import Evaluator as Evaluator
from fedslice.evaluate import evaluate as evaluate
from fedslice.heat import Heat as Heat
from fedslice.kept import kept as kept
from fedslice.model import Model as Model
from fedslice.model import Table as Table
from fedslice.model import lookup as lookup
from fedslice.personal import Personal as Personal
from fedslice.personal import adapted as adapted
from fedslice.population import Population as Population
from fedslice.simulate import simulate as simulate
