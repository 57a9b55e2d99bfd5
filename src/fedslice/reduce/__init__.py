"""Reductions: how the messages of a cohort become one."""

from fedslice.reduce.coordinate import median as median
from fedslice.reduce.coordinate import trimmed as trimmed
from fedslice.reduce.geometric import geometric as geometric
from fedslice.reduce.krum import krum as krum
from fedslice.reduce.krum import worst as worst
from fedslice.reduce.total import total as total
