"""State of a study after its search: shortlist, Pareto front, and verification rounds."""

from __future__ import annotations

import dataclasses
import math

from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.plain import Plain
from tuner.values.round_evaluation import RoundEvaluation

UNKNOWN_PAIR_SD = 0.1
"""Assumed sd of two evaluations' log ratio."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShortlistEntry(Plain):
    """Shortlisted configuration after re-evaluation."""

    configuration: Configuration
    ratio: float
    """Ratio of its objective to that of the chosen one."""
    interval: Interval
    """Interval, simultaneous over the shortlist."""
    is_tied: bool
    """Whether it may equally be the best."""

    @property
    def is_compared(self) -> bool:
        """Whether it was re-evaluated."""
        return self.interval.low is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint(Plain):
    """Configuration that no other beats in both objectives."""

    configuration: Configuration
    values: tuple[float, ...]
    """Values of both objectives, from all evaluations."""
    sds: tuple[float, ...]
    """Sds of the values' logs."""
    trial: int | None
    is_chosen: bool
    """Whether it is verified and exported."""

    def interval(self, place: int) -> Interval:
        """Return the 95 % interval of an objective."""
        reach = math.exp(1.96 * self.sds[place])
        return Interval(low=self.values[place] / reach, high=self.values[place] * reach)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopCheck(Plain):
    """Default and best of a closed-loop study, once each in an open loop."""

    rate_per_s: float
    """Rate of Poisson arrivals, the same for both."""
    share: float
    """Share of the best's closed-loop throughput."""
    starts: tuple[RoundEvaluation, ...]

    def of(self, arm: str) -> RoundEvaluation:
        """Return an arm's evaluation."""
        return next(start for start in self.starts if start.role == arm)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerificationState(Plain):
    """A study after its search: what to verify, and the rounds."""

    stopped: str
    best: Configuration | None
    pairs: int
    """Number of planned rounds."""
    starts: tuple[RoundEvaluation, ...] = ()
    """Evaluations of default, best and, if compared, prediction."""
    shortlist: tuple[Configuration, ...] = ()
    """Shortlist, recommendation first; a single one leaves no choice."""
    finals: tuple[RoundEvaluation, ...] = ()
    ranked_shortlist: tuple[ShortlistEntry, ...] | None = None
    """Ranking, best first; None while open."""
    prediction: Configuration | None = None
    """The prediction's choice, unless it is the best or the default."""
    presumed_sd: float = UNKNOWN_PAIR_SD
    pareto_front: tuple[ParetoPoint, ...] = ()
    open_loop: OpenLoopCheck | None = None
    """Open-loop check; None if pending, or if time ran out."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms of each verification round."""
        return ("default", "best") if self.prediction is None else ("default", "best", "prediction")
