"""Reductions: how the messages of a cohort become one."""

from fedslice.reduce.total import total as total
