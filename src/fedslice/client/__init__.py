"""Client parts: what a device does with its data."""

from fedslice.client.adapt import finetune as finetune
from fedslice.client.adapt import reconstruction as reconstruction
from fedslice.client.cluster import cluster as cluster
from fedslice.client.composite import dual as dual
from fedslice.client.composite import mirror as mirror
from fedslice.client.dane import dane as dane
from fedslice.client.ditto import ditto as ditto
from fedslice.client.dynamic import dynamic as dynamic
from fedslice.client.gradient import gradient as gradient
from fedslice.client.interpolate import interpolate as interpolate
from fedslice.client.keep import keep as keep
from fedslice.client.meta import maml as maml
from fedslice.client.mime import mime as mime
from fedslice.client.posterior import posterior as posterior
from fedslice.client.reconstruct import reconstruct as reconstruct
from fedslice.client.scaffold import scaffold as scaffold
from fedslice.client.sgd import sgd as sgd
from fedslice.client.transforms import by_round as by_round
from fedslice.client.transforms import proximal as proximal
from fedslice.client.transforms import shift as shift
