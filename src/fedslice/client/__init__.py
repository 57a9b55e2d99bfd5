"""Client parts: what a device does with its data."""

from fedslice.client.adapt import finetune as finetune
from fedslice.client.adapt import reconstruction as reconstruction
from fedslice.client.clusters import cluster as cluster
from fedslice.client.composite import dual as dual
from fedslice.client.composite import mirror as mirror
from fedslice.client.correction import dane as dane
from fedslice.client.descent import sgd as sgd
from fedslice.client.frozen_optimizer import mime as mime
from fedslice.client.gradients import gradient as gradient
from fedslice.client.interpolation import interpolate as interpolate
from fedslice.client.keeping import keep as keep
from fedslice.client.lagrangian import dynamic as dynamic
from fedslice.client.meta import maml as maml
from fedslice.client.own_model import ditto as ditto
from fedslice.client.posteriors import posterior as posterior
from fedslice.client.reconstructing import reconstruct as reconstruct
from fedslice.client.transforms import by_round as by_round
from fedslice.client.transforms import proximal as proximal
from fedslice.client.transforms import shift as shift
from fedslice.client.variates import scaffold as scaffold
