"""Ends a trial as soon as it is decided that its configuration is no rival of the best so far.

In: what is believed of the incumbent, and what launches and their blocks differ by. Out: for each look
at the running mean the limit above which the trial ends (`traffic.plan.Race`). Pure.

After k blocks the logarithm of a trial's mean over the incumbent's has the standard error

    sqrt(incumbent_sd^2 + launch_sd^2 + block_sd^2 / k)

in which only the last part shrinks while the trial goes on: what a launch differs by from other
launches of its configuration stays, and so does what is not known of the incumbent. With as many looks
as there are ends of blocks before the last one, each at `ALPHA` over their number, a configuration that
is as good as the incumbent is given up too early in at most `ALPHA` of all trials (Bonferroni; the looks
are few, so that a tighter sequence would gain little). What was measured until then is a trial like any
other: it has told what it is.

Only objectives that the mean round trip decides are raced: the mean itself, and at a fixed number of
requests in flight throughput and time per item (Little's law). Tails need their requests, and what is
counted per launch needs the whole of it.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from scipy.special import ndtri

from tuner.settings import OF_MEANS, StudySettings
from tuner.traffic.plan import Race

ALPHA = 0.05
PARTS = 4
"""Of a trial, after each of which but the last one it is looked at."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Racing:
    """How trials may be ended early: a closed loop for a set time."""

    blocks: int
    """Of a whole trial."""
    block_s: float
    concurrency: int
    client_batch: int

    @classmethod
    def of(cls, settings: StudySettings) -> Self | None:
        """As a study's settings say; None where its trials last their time."""
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
        """The limits of a trial; None where its objective is not one of `settings.OF_MEANS`.

        Args:
            objective: its name.
            minimised: believed value of the incumbent, in ms; of the throughput the time between answers.
            sd: how well that is known, on the log scale.
            noise_sd: of a whole launch, blocks included, on the log scale.
            error: the part of it that its blocks bring.
        """
        if objective not in OF_MEANS:
            return None
        factors = {
            "mean": 1,
            "throughput": self.concurrency,
            "time-per-item": self.concurrency * self.client_batch,
        }
        return race(
            incumbent_ms=factors[objective] * minimised,
            incumbent_sd=sd,
            launch_sd=math.sqrt(max(0.0, noise_sd**2 - error**2)),
            block_sd=error * math.sqrt(self.blocks),
            blocks=self.blocks,
            block_s=self.block_s,
        )


def race(
    *,
    incumbent_ms: float,
    incumbent_sd: float,
    launch_sd: float,
    block_sd: float,
    blocks: int,
    block_s: float,
) -> Race | None:
    """The limits of a trial; None where it is too short to be ended early.

    Args:
        incumbent_ms: believed mean round trip of the best so far.
        incumbent_sd: how well it is known, on the log scale.
        launch_sd: of launches of one configuration, on the log scale, without what blocks bring.
        block_sd: of blocks of one launch, on the log scale.
        blocks: of a whole trial.
        block_s: seconds of a block.
    """
    looks = blocks - 1
    if looks < 1:
        return None
    reach = float(ndtri(1 - ALPHA / looks))
    known = incumbent_sd**2 + launch_sd**2
    limits = (
        incumbent_ms * math.exp(reach * math.sqrt(known + block_sd**2 / look))
        for look in range(1, looks + 1)
    )
    return Race(look_s=block_s, limits_ms=tuple(limits))
