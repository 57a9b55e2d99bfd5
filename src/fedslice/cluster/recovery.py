"""A round to which all members can go back when one of them is lost with what it held.

A run is a pure function of its parts and its seed, so whatever was lost is computed again from the
last *point*: rows of the shards, memories of the clients, dense leaves, in files of a temporary
folder of the driver; before the first one, from the beginning.  Rounds after it are replayed with
the padded sizes that they had, which are in the bits.
"""

import shutil
import tempfile
import time
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedslice.cluster.team import Member, Team
from fedslice.files.sealed import load, seal

EVERY = 60.0  # seconds of rounds between two points


class Point(NamedTuple):
    """What the driver has of a point: rounds done, its own state, and where the members' is."""

    done: int
    own: Any
    folder: Path | None


class Recovery:
    """Keeps the last point, and the padded sizes of the rounds since.  ``every``: seconds between
    two points."""

    def __init__(self, own: Any, every: float) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fedslice-"))
        weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.every, self.point = every, Point(0, own, None)
        self.sizes: dict[int, dict[str, int]] = {}
        self.since = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether it is time for another point."""
        return time.monotonic() - self.since >= self.every

    def keep(self, team: Team, own: Any) -> None:
        """Make a point of what all have now, one member at a time."""
        folder = self.folder / f"round-{team.done}"
        folder.mkdir(exist_ok=True)
        for kind, members in _kinds(team):
            method = "snapshot" if kind == "shard" else "memories"
            for number, member in enumerate(members):
                (leaves,) = team.crew.get(team.crew.call(member, method, team.done))
                named = {str(place): np.asarray(leaf) for place, leaf in enumerate(leaves)}
                seal(folder / f"{kind}-{number}", {}, named)
        before, self.point = self.point, Point(team.done, own, folder)
        self.sizes = {round: size for round, size in self.sizes.items() if round >= team.done}
        self.since = time.monotonic()
        if before.folder not in (None, folder):
            shutil.rmtree(before.folder, ignore_errors=True)

    def go_back(self, team: Team) -> Any:
        """Bring all members to the last point; what the driver had then."""
        for kind, members in _kinds(team):
            method = "restore" if kind == "shard" else "remember"
            team.one_by_one(members, method, lambda number: self._leaves(kind, number))
        team.done = self.point.done
        return self.point.own

    def _leaves(self, kind: str, number: int) -> list[np.ndarray] | None:
        if self.point.folder is None:
            return None
        _, found = load(self.point.folder / f"{kind}-{number}")
        return [found[str(place)] for place in range(len(found))]


def _kinds(team: Team) -> list[tuple[str, list[Member]]]:
    return [("shard", team.shards), ("worker", team.workers if team.remembers else [])]
