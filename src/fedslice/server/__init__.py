"""Server parts: what becomes of the aggregate."""

from fedslice.server.clusters import cluster as cluster
from fedslice.server.composite import dual as dual
from fedslice.server.composite import mirror as mirror
from fedslice.server.lagrangian import dynamic as dynamic
from fedslice.server.optimizers import optimize as optimize
from fedslice.server.random_walks import lazy_noise as lazy_noise
from fedslice.server.surveys import dane as dane
from fedslice.server.surveys import mime as mime
from fedslice.server.variates import approximate as approximate
from fedslice.server.variates import scaffold as scaffold
