"""What has left a node for good, so that it is not given twice.

Two sums of the same numbers with other partners tell by their difference what one sum hides, and
noise that is drawn twice for one round is accounted for once.  So a node writes down for which
round, and try of it, its numbers have left, before they do; later it answers for later ones alone.
Runs and rounds are what a coordinator says they are: how often at all is up to the node's owner.
"""

import json
from pathlib import Path

from fedslice.errors import CheckpointError, InputError
from fedslice.files.writing import atomic_write

NAME, TIMES = "given.json", "times"


class Given:
    """The last round and try of each use, in the node's folder; ``most`` times at all (None: any
    number).

    >>> given = Given(getfixture("tmp_path"))
    >>> given.note("sum of run 5", 3, 0, "first session")
    >>> given.check("sum of run 5", 3, 0, "first session", once=True)
    >>> given.check("sum of run 5", 3, 1, "second session", once=False)
    >>> given.check("sum of run 5", 3, 1, "second session", once=True)
    Traceback (most recent call last):
    fedslice.errors.InputError: this node has given its numbers for round 4 of this run, and gives
    them once: it takes part from the next round on. A new run needs a new folder or another seed
    """

    def __init__(self, folder: Path, most: int | None = None) -> None:
        self.file, self.most = folder / NAME, most

    def check(
        self, use: str, round: int, attempt: int, tag: str, once: bool, counts: bool = True
    ) -> None:
        """Refuse what was given in an earlier session; ``once``: for a round one try only.  What
        ``counts`` is given ``most`` times at all."""
        kept = self._read()
        last = kept.get(use)
        if last is not None and last[2] == tag:
            return
        if counts and self.most is not None and kept.get(TIMES, (0,))[0] >= self.most:
            raise InputError(
                f"this node has given its numbers {self.most} times, which is all that its owner"
                " allows, Node(rounds=...)"
            )
        if last is None:
            return
        before = (round, attempt) <= (last[0], last[1]) or (once and round <= last[0])
        if before:
            raise InputError(
                f"this node has given its numbers for round {last[0] + 1} of this run, and gives"
                " them once: it takes part from the next round on. A new run needs a new folder or"
                " another seed"
            )

    def note(self, use: str, round: int, attempt: int, tag: str, counts: bool = True) -> None:
        """Write down that they leave now."""
        kept = self._read()
        if counts and kept.get(use, (0, 0, ""))[2] != tag:
            kept[TIMES] = (kept.get(TIMES, (0,))[0] + 1, 0, "")
        kept[use] = (round, attempt, tag)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.file, json.dumps(kept).encode(), private=True)

    def _read(self) -> dict[str, tuple[int, int, str]]:
        if not self.file.exists():
            return {}
        try:
            return json.loads(self.file.read_bytes())
        except ValueError as error:
            raise CheckpointError(
                f"{self.file} is damaged, and without it numbers could be given twice: restore it"
                " from a copy, or use a new folder"
            ) from error
