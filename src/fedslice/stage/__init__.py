"""Stages: what is done to a message between a client and the server."""

from fedslice.stage.mean import mean as mean
