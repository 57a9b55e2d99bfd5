"""Reductions: how the messages of a cohort become one."""

from fedslice.reduce.coordinate import median as median
from fedslice.reduce.coordinate import trimmed as trimmed
from fedslice.reduce.geometric_median import geometric as geometric
from fedslice.reduce.selection import krum as krum
from fedslice.reduce.selection import worst as worst
from fedslice.reduce.sums import total as total
