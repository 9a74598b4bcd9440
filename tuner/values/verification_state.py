"""A study after its search: shortlist, Pareto front, and the rounds of the verification."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.round_evaluation import RoundEvaluation

UNKNOWN_PAIR_SD = 0.1
"""Assumed sd of two evaluations' log ratio."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShortlistEntry:
    """Shortlisted configuration after re-evaluation."""

    configuration: Configuration
    ratio: float
    """Objective over the chosen one's."""
    interval: Interval
    """Simultaneous over the shortlist."""
    is_tied: bool
    """Whether it may equally be the best."""

    @property
    def is_compared(self) -> bool:
        """Whether it was re-evaluated."""
        return self.interval.low is not None

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShortlistEntry:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "interval": Interval(**data["interval"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """Configuration that none beats in both objectives."""

    configuration: Configuration
    values: tuple[float, ...]
    """Of both objectives, from all evaluations."""
    sds: tuple[float, ...]
    """Sd of their logs."""
    trial: int | None
    is_chosen: bool
    """For verification and export."""

    def interval(self, place: int) -> Interval:
        """Return the 95 % interval of one objective."""
        reach = math.exp(1.96 * self.sds[place])
        return Interval(low=self.values[place] / reach, high=self.values[place] * reach)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParetoPoint:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "values": tuple(data["values"]),
                "sds": tuple(data["sds"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopCheck:
    """Default and best of a closed-loop study, once each in an open loop."""

    rate_per_s: float
    """Poisson arrivals, the same for both."""
    share: float
    """Of the best's closed-loop throughput."""
    starts: tuple[RoundEvaluation, ...]

    def of(self, arm: str) -> RoundEvaluation:
        """Return an arm's evaluation."""
        return next(start for start in self.starts if start.role == arm)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpenLoopCheck:
        """Inverse of `as_json`."""
        return cls(**{**data, "starts": tuple(map(RoundEvaluation.from_json, data["starts"]))})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerificationState:
    """Study after its search: what to verify, and rounds."""

    stopped: str
    best: Configuration | None
    pairs: int
    """Planned rounds."""
    starts: tuple[RoundEvaluation, ...] = ()
    """Of default, best, and a compared prediction."""
    shortlist: tuple[Configuration, ...] = ()
    """Shortlist, recommendation first; one leaves no choice."""
    finals: tuple[RoundEvaluation, ...] = ()
    ranked_shortlist: tuple[ShortlistEntry, ...] | None = None
    """Best first; None while open."""
    prediction: Configuration | None = None
    """The prediction's choice, unless best or default."""
    presumed_sd: float = UNKNOWN_PAIR_SD
    pareto_front: tuple[ParetoPoint, ...] = ()
    open_loop: OpenLoopCheck | None = None
    """None if pending, or without time."""

    @property
    def arms(self) -> tuple[str, ...]:
        """Arms of each verification round."""
        return ("default", "best") if self.prediction is None else ("default", "best", "prediction")

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "stopped": self.stopped,
            "best": None if self.best is None else dict(self.best),
            "pairs": self.pairs,
            "starts": [start.as_json() for start in self.starts],
            "shortlist": [dict(one) for one in self.shortlist],
            "finals": [start.as_json() for start in self.finals],
            "ranked_shortlist": None
            if self.ranked_shortlist is None
            else [one.as_json() for one in self.ranked_shortlist],
            "prediction": None if self.prediction is None else dict(self.prediction),
            "presumed_sd": self.presumed_sd,
            "pareto_front": [point.as_json() for point in self.pareto_front],
            "open_loop": None if self.open_loop is None else self.open_loop.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VerificationState:
        """Inverse of `as_json`."""
        ranked_shortlist, prediction = data.get("ranked_shortlist"), data.get("prediction")
        open_loop = data.get("open_loop")
        return cls(
            stopped=data["stopped"],
            best=None if data["best"] is None else Configuration(data["best"]),
            pairs=data["pairs"],
            starts=tuple(map(RoundEvaluation.from_json, data["starts"])),
            shortlist=tuple(map(Configuration, data.get("shortlist", ()))),
            finals=tuple(map(RoundEvaluation.from_json, data.get("finals", ()))),
            ranked_shortlist=None
            if ranked_shortlist is None
            else tuple(map(ShortlistEntry.from_json, ranked_shortlist)),
            prediction=None if prediction is None else Configuration(prediction),
            presumed_sd=float(data.get("presumed_sd", UNKNOWN_PAIR_SD)),
            pareto_front=tuple(map(ParetoPoint.from_json, data.get("pareto_front", ()))),
            open_loop=None if open_loop is None else OpenLoopCheck.from_json(open_loop),
        )
