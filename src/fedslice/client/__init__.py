"""Client parts: what a device does with its data."""

from fedslice.client.gradient import gradient as gradient
from fedslice.client.local import proximal as proximal
from fedslice.client.local import shift as shift
from fedslice.client.sgd import sgd as sgd
