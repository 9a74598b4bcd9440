"""State of a study after its search: shortlist, Pareto front, and verification rounds."""

from __future__ import annotations

import dataclasses
import math

from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.plain import Plain
from tuner.values.round_evaluation import RoundEvaluation

UNKNOWN_PAIR_SD = 0.1
"""Assumed sd of the log ratio of two evaluations."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShortlistEntry(Plain):
    """Shortlisted configuration after its re-evaluation."""

    configuration: Configuration
    ratio: float
    """Ratio of its objective to that of the chosen configuration."""
    interval: Interval
    """Interval of the ratio, simultaneous over the shortlist."""
    is_tied: bool
    """Whether it may be as good as the best."""

    @property
    def is_compared(self) -> bool:
        """Whether it was re-evaluated."""
        return self.interval.low is not None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint(Plain):
    """Configuration that no other configuration beats in both objectives."""

    configuration: Configuration
    values: tuple[float, ...]
    """Values of both objectives, estimated from all evaluations."""
    sds: tuple[float, ...]
    """Standard deviations of the values' logarithms."""
    trial: int | None
    is_chosen: bool
    """Whether this point is verified and exported."""

    def interval(self, place: int) -> Interval:
        """Return the 95 % interval of the objective at index `place`."""
        reach = math.exp(1.96 * self.sds[place])
        return Interval(low=self.values[place] / reach, high=self.values[place] * reach)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopCheck(Plain):
    """Evaluations of default and best in an open loop, for a study with a closed loop."""

    rate_per_s: float
    """Rate of Poisson arrivals, the same for both."""
    share: float
    """Rate as a share of the best's closed-loop throughput."""
    evaluations: tuple[RoundEvaluation, ...]

    def of(self, arm: str) -> RoundEvaluation:
        """Return an arm's evaluation."""
        return next(evaluation for evaluation in self.evaluations if evaluation.role == arm)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerificationState(Plain):
    """State of a study after its search: what to verify, and the rounds so far."""

    stopped: str
    best: Configuration | None
    pairs: int
    evaluations: tuple[RoundEvaluation, ...] = ()
    """Evaluations of default, best and, if compared, the prediction's choice."""
    shortlist: tuple[Configuration, ...] = ()
    """Shortlist, best posterior mean first; a single entry leaves no choice."""
    selection_evaluations: tuple[RoundEvaluation, ...] = ()
    ranked_shortlist: tuple[ShortlistEntry, ...] | None = None
    """Shortlist as ranked, best first; None until it is ranked."""
    prediction: Configuration | None = None
    """The prediction's choice, unless it is the best or the default."""
    assumed_sd: float = UNKNOWN_PAIR_SD
    pareto_front: tuple[ParetoPoint, ...] = ()
    open_loop: OpenLoopCheck | None = None
    """Open-loop check; None if pending, or if time ran out."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms in each verification round."""
        return ("default", "best") if self.prediction is None else ("default", "best", "prediction")
