"""Privacy: heat, rows, sums and noise.

What each mechanism protects against, and what it does not, is in docs/privacy.md.
"""

from fedslice.privacy import heat as heat
from fedslice.privacy.devices import distributed as distributed
from fedslice.privacy.devices import local as local
from fedslice.privacy.ftrl import matrix as matrix
from fedslice.privacy.large import lazy as lazy
from fedslice.privacy.ledger import spent as spent
from fedslice.privacy.trusted import central as central
from fedslice.stage.bounding import Adapt as Adapt
