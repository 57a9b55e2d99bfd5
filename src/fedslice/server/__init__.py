"""Server parts: what becomes of the aggregate."""

from fedslice.server.cluster import cluster as cluster
from fedslice.server.composite import dual as dual
from fedslice.server.composite import mirror as mirror
from fedslice.server.dynamic import dynamic as dynamic
from fedslice.server.lazy_noise import lazy_noise as lazy_noise
from fedslice.server.mime import dane as dane
from fedslice.server.mime import mime as mime
from fedslice.server.optimize import optimize as optimize
from fedslice.server.scaffold import approximate as approximate
from fedslice.server.scaffold import scaffold as scaffold
