"""Client parts: what a device does with its data."""

from fedslice.client.gradient import gradient as gradient
from fedslice.client.sgd import sgd as sgd
