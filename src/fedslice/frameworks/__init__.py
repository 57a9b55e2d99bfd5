"""Modules of PyTorch, Flax and Equinox as models: embeddings are found and become tables, the rest
is dense."""

from fedslice.frameworks import equinox as equinox
from fedslice.frameworks import flax as flax
from fedslice.frameworks import torch as torch
