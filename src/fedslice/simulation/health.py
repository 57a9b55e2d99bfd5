"""Whether a run is healthy: one that went to infinity is stopped, saying what to try.

It is judged by the loss of the cohort's first batches, which is the global model's: local steps may
overshoot where the average of their ends does not.
"""

import math
from collections.abc import Sequence

from fedslice.errors import DivergedError
from fedslice.simulation.report import Report

PATIENCE = 3  # rounds with a far too high loss before a run is stopped


class Health:
    """What counts of the rounds so far: the loss of the first model, and for how many rounds in a
    row it was far too ``high``.  ``noisy``: noise is added, which alone can make a run diverge."""

    def __init__(self, noisy: bool) -> None:
        self.noisy = noisy
        self.first_loss: float | None = None
        self.high = 0

    def judge(self, report: Report, values: Sequence[float], stop_above: float) -> None:
        """Look at the figures of one more round, in the order of ``REPORT``."""
        loss, start, failed, norm = values
        if self.first_loss is None and failed < report.clients:
            self.first_loss = start
        too_high = start > stop_above * max(abs(self.first_loss or 0.0), 1e-3)
        self.high = self.high + 1 if too_high else 0
        if report.clients and failed == report.clients:
            reason = f"none of the {report.clients} clients sent a finite update and loss"
        elif not math.isfinite(norm):
            reason = "the aggregated update is not finite"
        elif not math.isfinite(loss):
            reason = "the cohort's mean loss is not finite"
        elif self.high == PATIENCE:
            reason = (
                f"the training loss {start:.3g} is over {stop_above:g} times that of the first"
                " model"
            )
        else:
            return
        raise DivergedError(self._advice(report.round, reason))

    def _advice(self, round: int, reason: str) -> str:
        noisy = (
            " Noise alone can do this: try larger cohorts, a smaller clip or less noise."
            if self.noisy
            else ""
        )
        return (
            f"training diverged in round {round}: {reason}. Try a smaller client learning"
            " rate (or rate of reconstruction, where local leaves are rebuilt), fewer local steps,"
            " or a gradient clip (optax.clip_by_global_norm before the client's optimizer). With"
            " heat correction a row held by one client moves N/K times as far as its update, so it"
            f" may need a smaller rate than FedAvg.{noisy}"
            ' engine="debug" (--set engine=debug) names the first client that goes wrong.'
        )
