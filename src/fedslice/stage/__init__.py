"""Stages: what is done to a message between a client and the server."""

from fedslice.stage.ball import ball as ball
from fedslice.stage.clip import clip as clip
from fedslice.stage.compress import compress as compress
from fedslice.stage.compress import largest as largest
from fedslice.stage.compress import low_rank as low_rank
from fedslice.stage.compress import quantise as quantise
from fedslice.stage.compress import random as random
from fedslice.stage.compress import sign as sign
from fedslice.stage.correlated import Bands as Bands
from fedslice.stage.correlated import correlated_noise as correlated_noise
from fedslice.stage.fairness import agnostic as agnostic
from fedslice.stage.fairness import qffl as qffl
from fedslice.stage.mean import mean as mean
from fedslice.stage.noise import local_noise as local_noise
from fedslice.stage.noise import noise as noise
from fedslice.stage.nova import nova as nova
from fedslice.stage.secure import secure as secure
from fedslice.stage.skellam import skellam as skellam
