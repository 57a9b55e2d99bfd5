"""A round of which the coordinator sees every message: of nodes that name their rows, or that
send all rows with noise of their own.

    invite  ->  (looks, found)  ->  answers, checked  ->  conclude
"""

from collections.abc import Mapping

import jax
import numpy as np

from fedslice.deploy import letter as letters
from fedslice.deploy.checks import Asked, Checked, check
from fedslice.deploy.cohort import Cohort, Tally
from fedslice.deploy.office import Ended, Office, Stack
from fedslice.deploy.post import Post
from fedslice.deploy.program import Program
from fedslice.deploy.schema import Registered, Schema
from fedslice.errors import InputError, RoundError
from fedslice.types import PyTree


class Named:
    """The rounds of a program whose messages are seen; below ``least`` that pass there is none."""

    def __init__(
        self, program: Program, schema: Schema, office: Office, post: Post, least: int
    ) -> None:
        self.program, self.schema, self.office = program, schema, office
        self.post, self.least = post, least

    def train(
        self, round: int, cohort: Cohort, tally: Tally
    ) -> tuple[tuple[str, ...], Ended | None]:
        """From invitations to the state after the round, and who counted.

        After a survey everybody's answer depends on who looked.  So if one of those does not
        answer, what was found is worked out again without it, and the others are asked again: the
        round is that of the nodes that counted, and of nobody else.
        """
        survey = self.program.algorithm.survey is not None
        kind = letters.LOOK if survey else letters.ANSWER
        bodies = self._invitations(round, cohort.times)
        invited = self._exchange(letters.INVITE, kind, round, bodies, tally)
        checked = self._needed(invited, cohort, tally)
        looked, first = checked, dict(tally.nonces)
        while len(checked) >= self.least:
            found: PyTree = ()
            if survey:
                looks = self._stack(looked, cohort, True)
                found = self.office.find(looks)
                news = self._news(round, looks, looked, first, found)
                checked = self._exchange(letters.FOUND, letters.ANSWER, round, news, tally)
                if len(checked) < len(looked):
                    looked = {name: looked[name] for name in checked}
                    continue
            stack = self._stack(checked, cohort, False)
            ended = self.office.finish(stack, found, round)
            if ended is not None:
                nonces = {name: tally.nonces[name] for name in checked}
                return tuple(checked), ended._replace(nonces=nonces)
            if not checked:
                raise RoundError(f"round {round + 1} is not finite without any answer")
            largest = _largest(checked)
            tally.excluded[largest] = "numbers so large that the sum is not finite"
            checked = {name: one for name, one in checked.items() if name != largest}
            looked = {name: looked[name] for name in checked}
        return tuple(checked), None

    def _stack(self, checked: Mapping[str, Checked], cohort: Cohort, survey: bool) -> Stack:
        times = [cohort.times[name] for name in checked]
        return self.office.stack(list(checked.values()), times, survey)

    def _invitations(self, round: int, names: Mapping[str, int]) -> dict[str, bytes]:
        return {name: self.office.invitation(round, self._node(name).rows) for name in names}

    def _node(self, name: str) -> Registered:
        return known(self.schema.nodes[name], self.office)

    def _news(
        self,
        round: int,
        looks: Stack,
        looked: Mapping[str, Checked],
        first: dict[str, bytes],
        found: PyTree,
    ) -> dict[str, bytes]:
        """What was found, for each node, with the nonce of the invitation that it belongs to."""
        rows = {name: self.schema.nodes[name].rows for name in looked}
        return {
            name: first[name] + self.office.found_for(found, looks, round, rows[name])
            for name in looked
        }

    def _needed(
        self, checked: dict[str, Checked], cohort: Cohort, tally: Tally
    ) -> dict[str, Checked]:
        """As many as are wanted, the first to answer, in the order of their numbers."""
        chosen = set(list(checked)[: cohort.wanted])
        tally.spare += [name for name in checked if name not in chosen]
        return {name: checked[name] for name in cohort.times if name in chosen}

    def _exchange(
        self, kind: int, wanted: int, round: int, bodies: Mapping[str, bytes], tally: Tally
    ) -> dict[str, Checked]:
        """Letters out, replies in; those that pass, in the order in which they came."""
        replies = self.post.send(kind, round, bodies, tally)
        passed, room = {}, self.office.rows_room()
        for name, reply in replies.items():
            asked = Asked(wanted, round, tally.nonces[name])
            try:
                passed[name] = check(reply, asked, self._node(name), self.program, room)
            except InputError as error:
                tally.excluded[name] = str(error)
        return passed if kind == letters.INVITE else {n: passed[n] for n in bodies if n in passed}


def known(node: Registered, office: Office) -> Registered:
    """What is known of a node; one that hides its rows is offered, and sends, all of them."""
    return node._replace(rows=office.ids) if office.hides else node


def _largest(checked: Mapping[str, Checked]) -> str:
    """The node with the largest number in its message."""

    def size(name: str) -> float:
        message = checked[name].message
        leaves = jax.tree.leaves((message.update, message.extra))
        return max((float(np.abs(leaf).max(initial=0)) for leaf in leaves), default=0.0)

    return max(checked, key=size)
