"""What a node puts into secure sums: its rows, its update on the rows of the round, its noise.

Everything has the same length whatever the node's data are: one number a row of the table, of the
union, or of all rows.  What it may be asked for it decides by its own algorithm.
"""

import hashlib
from collections.abc import Mapping

import numpy as np

from fedslice.deploy.discretion import Discretion
from fedslice.deploy.letter import Letter
from fedslice.deploy.noisy import values_on
from fedslice.deploy.sitting import Acts, Sitting
from fedslice.deploy.training import Trainer
from fedslice.deploy.turns import (
    HEAT,
    LOSS,
    ROWS,
    SUM,
    Opening,
    fewest,
    loss_scale,
    pack_taken,
    parts_of,
    union_parts,
    unpack_ids,
)
from fedslice.errors import InputError
from fedslice.privacy.heat import Summed
from fedslice.privacy.secure.parts import Parts
from fedslice.privacy.secure.primitives import identity_of
from fedslice.stage.fixed import bounded, encode
from fedslice.types import Answers

Vector = tuple[Parts, Mapping[str, np.ndarray]]


class Contribution:
    """The part of one node in the sums that it is asked to."""

    def __init__(self, trainer: Trainer, own: Discretion) -> None:
        self.trainer, self.program, self.own = trainer, trainer.program, own
        self.answers = trainer.program.algorithm.answers or Answers()
        private = own.vault.identity
        self.public = identity_of(private)
        self.sitting = Sitting(trainer.folder, trainer.number, private, own.given)

    def turn(self, head: Letter, letter: bytes) -> Letter:
        """The reply to a letter of a turn."""

        def vector(opening: Opening, first: bytes, now: bytes) -> Vector:
            make = {ROWS: self._rows, SUM: self._update, HEAT: self._count}[opening.purpose]
            return make(opening, head, first, now)

        acts = Acts(lambda opening: self._allow(opening, head), self._take, vector, self._use)
        return self.sitting.answer(head, letter, acts)

    def leave(self, round: int) -> None:
        """Delete what it had for sums of rounds before this one."""
        self.sitting.leave(round)

    def _use(self, opening: Opening) -> tuple[str, bool]:
        """What is given in a sum, and whether for one try of a round alone: what has noise is
        accounted for once."""
        if opening.purpose == HEAT:
            return HEAT, True
        noisy = opening.purpose == SUM and self.program.algorithm.noise is not None
        return f"{opening.purpose} {opening.run} {self.program.fingerprint}", noisy

    # -- what it agrees to -------------------------------------------------------------------------

    def _allow(self, opening: Opening, head: Letter) -> None:
        """Refuse a sum that would tell more than the node's own settings do."""
        roster, trusted = opening.roster, self.own.trusted
        for number, key in roster.items() if trusted else ():
            if trusted.get(number) != key:
                raise InputError(
                    f"node {number}, with this key, is none of those that this node was told of"
                )
        if len(roster) < 3 or opening.least < fewest(len(roster)):
            raise InputError(
                f"a sum of {len(roster)} nodes that may be opened with {opening.least}: so few hide"
                " nobody"
            )
        if opening.round != head.round:
            raise InputError("a sum of another round than its letter")
        check = {ROWS: self._allow_rows, SUM: self._allow_sum, HEAT: self._allow_heat}
        if opening.purpose not in check:
            raise InputError("a secure sum of a kind that this node does not know")
        if opening.purpose != HEAT and head.program != self.program.fingerprint:
            raise InputError(
                f"the coordinator runs {head.program}, this node {self.program.fingerprint}: both"
                " need the same model, client settings and versions"
            )
        check[opening.purpose](opening)

    def _allow_rows(self, opening: Opening) -> None:
        if not self.program.summed or self.program.wire.travel != "union":
            raise InputError("this node's algorithm has no union of rows")
        if [plan.rows for plan in opening.plans] != list(self.program.wire.spaces.values()):
            raise InputError("a union of the rows of other tables")
        if not all(plan.sound for plan in opening.plans):
            raise InputError("a union by a plan that has no place for every row")

    def _allow_sum(self, opening: Opening) -> None:
        noise, most = self.program.algorithm.noise, self.program.algorithm.most
        if not self.program.summed:
            raise InputError("this node's algorithm has no secure sum")
        if most is not None and len(opening.roster) > most:
            raise InputError(f"{len(opening.roster)} nodes, and the sum has room for {most}")
        if noise is None or noise.kind != "skellam":
            return
        least, clients = int(noise.details["least"]), noise.clients or 0
        if opening.least < least or len(opening.roster) > clients:
            raise InputError(
                f"a sum of {len(opening.roster)} nodes that may be opened with {opening.least}:"
                f" their shares of noise are for {least} at least, of {clients:g} at most"
            )

    def _allow_heat(self, opening: Opening) -> None:
        how = self.own.heat
        if not isinstance(how, Summed) or (how.multiplier, how.most) != opening.how:
            raise InputError(
                "this node puts its rows into no such count: its owner must say so, Node(...,"
                ' heat=privacy.heat.Summed(multiplier, most, "skellam"))'
            )

    # -- what it gives -----------------------------------------------------------------------------

    def _union(self, first: bytes) -> dict[str, np.ndarray]:
        """The rows of the round: the union that came with the opening, or all."""
        spaces = self.program.wire.spaces
        if self.program.wire.travel == "union":
            return unpack_ids(first, spaces)
        return {name: np.arange(rows) for name, rows in spaces.items()}

    def _taken(self, opening: Opening, union: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if self.answers.everything:
            return dict(union)
        who = opening.run, opening.round, self.trainer.number
        return self.own.vault.answers(self.answers, self.trainer.rows, union, *who)

    def _take(self, opening: Opening, first: bytes) -> bytes:
        """Which rows of the union it takes, where it does not take all."""
        if opening.purpose != SUM or self.answers.everything:
            return b""
        union = self._union(first)
        return pack_taken(union, self._taken(opening, union))

    def _rows(self, opening: Opening, head: Letter, first: bytes, now: bytes) -> Vector:
        """Random numbers where it holds a row, zeros elsewhere."""
        vectors = [
            plan.vector(rows, self.sitting.random)["rows"]
            for plan, rows in zip(opening.plans, self.trainer.rows.values(), strict=True)
        ]
        return union_parts(opening.plans), {str(place): each for place, each in enumerate(vectors)}

    def _update(self, opening: Opening, head: Letter, first: bytes, now: bytes) -> Vector:
        """Its update on the rows of the round, with its share of the noise."""
        trainer, layout = self.trainer, self.program.wire.message
        union = self._union(first)
        taken = self._taken(opening, union)
        task = trainer.task(now, taken)
        if (task.round, task.seed) != (opening.round, opening.run):
            raise InputError("an invitation to another round than the sum's")
        message = trainer.trained(head, task)
        values = values_on(trainer, task, message, union, taken)
        key = self.own.vault.noise(
            task.seed, task.round, trainer.number, hashlib.sha256(now).digest()
        )
        values["update"] = self.program.shake(values["update"], key)
        tells = self.program.algorithm.noise is None
        parts = parts_of(layout, union, tells)
        flat = dict(enumerate(map(np.asarray, layout.tree.flatten_up_to(values))))
        vector = {
            part.name: np.ascontiguousarray(flat[int(part.name)]).reshape(part.shape)
            for part in parts.parts
            if part.name != LOSS
        }
        if tells:
            scale, widest = loss_scale(len(opening.roster))
            told = bounded(np.full(1, message.report.loss, np.float32), widest)
            vector[LOSS] = np.asarray(encode(told, np.zeros(1, np.float32), scale))
        return parts, vector

    def _count(self, opening: Opening, head: Letter, first: bytes, now: bytes) -> Vector:
        """Ones for some of its rows, and its share of the noise."""
        from fedslice.deploy.counting import counted

        assert isinstance(self.own.heat, Summed)
        spaces = self.program.wire.spaces
        return counted(self.own.heat, opening.least, self.trainer.rows, spaces, self.own.vault)
