"""Stages: what is done to a message between a client and the server."""

from fedslice.stage.averaging import mean as mean
from fedslice.stage.bounding import ball as ball
from fedslice.stage.clipping import clip as clip
from fedslice.stage.compression import compress as compress
from fedslice.stage.compression import largest as largest
from fedslice.stage.compression import low_rank as low_rank
from fedslice.stage.compression import quantise as quantise
from fedslice.stage.compression import random as random
from fedslice.stage.compression import sign as sign
from fedslice.stage.correlated import Bands as Bands
from fedslice.stage.correlated import correlated_noise as correlated_noise
from fedslice.stage.fairness import agnostic as agnostic
from fedslice.stage.fairness import qffl as qffl
from fedslice.stage.gaussian import local_noise as local_noise
from fedslice.stage.gaussian import noise as noise
from fedslice.stage.normalising import nova as nova
from fedslice.stage.secure_sums import secure as secure
from fedslice.stage.shared_noise import skellam as skellam
