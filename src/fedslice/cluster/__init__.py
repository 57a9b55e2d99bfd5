"""Past one machine: the same rounds on the workers and shards of a cluster."""

from fedslice.cluster.crew import here as here
from fedslice.cluster.rays import ray as ray
from fedslice.cluster.run import simulate as simulate
