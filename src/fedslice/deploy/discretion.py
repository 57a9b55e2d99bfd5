"""What a node's owner lets it tell, and the secret behind all that it draws."""

from collections.abc import Mapping
from typing import NamedTuple

from fedslice.deploy.given import Given
from fedslice.deploy.vault import Vault
from fedslice.privacy.heat import Response, Summed


class Discretion(NamedTuple):
    """The node's ``vault``, what it has ``given`` before, how it tells which rows it holds for the
    ``heat`` (None: not at all), and whom it adds up with (``trusted``, keys by number; empty: those
    that the coordinator names)."""

    vault: Vault
    given: Given
    heat: Response | Summed | None = None
    trusted: Mapping[int, bytes] = {}
