"""Racing, which ends a trial once its configuration can no longer rival the best so far.

It sets limits on the running mean at each look (`Race`). Pure. After k blocks,
log(trial's mean / incumbent's mean) has the standard error

    sqrt(incumbent_sd^2 + evaluation_sd^2 + block_sd^2 / k)

Only the last term shrinks during a trial. Looks follow all blocks but the last, at level `ALPHA` /
looks, so at most `ALPHA` of the trials as good as the incumbent are given up (Bonferroni).

Only objectives decided by mean latency are raced: the mean and, at a fixed concurrency, throughput
and time per item (Little's law). Tails and metrics per evaluation need the whole trial.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from scipy.special import ndtri

from tuner.load_generator.plan import Race
from tuner.settings.measurement import OF_MEANS
from tuner.settings.study import StudySettings

ALPHA = 0.05
PARTS = 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Racing:
    """Racing rules for closed loops of fixed duration."""

    blocks: int
    block_s: float
    concurrency: int
    client_batch: int

    @classmethod
    def of(cls, settings: StudySettings) -> Self | None:
        """Return a study's rules, or None if it does not race."""
        measurement, target = settings.measurement, settings.target
        is_whole = measurement.limits or measurement.second is not None or target.is_open
        if measurement.racing == "off" or measurement.requests or is_whole:
            return None
        return cls(
            blocks=PARTS,
            block_s=measurement.measured_s / PARTS,
            concurrency=target.in_flight,
            client_batch=target.client_batch,
        )

    def race(
        self, objective: str, *, minimised: float, sd: float, noise_sd: float, error: float
    ) -> Race | None:
        """Return a trial's limits, or None if it cannot be raced.

        Only objectives in `OF_MEANS` are raced, in at least two blocks.

        Args:
            minimised: value of the incumbent in ms; for throughput, time between responses.
            sd: standard deviation of that value's logarithm.
            noise_sd: standard deviation of a whole evaluation's logarithm.
            error: the part of `noise_sd` that comes from the blocks.
        """
        if objective not in OF_MEANS:
            return None
        looks = self.blocks - 1
        if looks < 1:
            return None
        factors = {
            "mean": 1,
            "throughput": self.concurrency,
            "time-per-item": self.concurrency * self.client_batch,
        }
        reach = float(ndtri(1 - ALPHA / looks))
        incumbent_ms, block_sd = factors[objective] * minimised, error * math.sqrt(self.blocks)
        known = sd**2 + math.sqrt(max(0.0, noise_sd**2 - error**2)) ** 2
        limits = (
            incumbent_ms * math.exp(reach * math.sqrt(known + block_sd**2 / look))
            for look in range(1, looks + 1)
        )
        return Race(look_s=self.block_s, limits_ms=tuple(limits))
