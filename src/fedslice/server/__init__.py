"""Server parts: what becomes of the aggregate."""

from fedslice.server.optimize import optimize as optimize
