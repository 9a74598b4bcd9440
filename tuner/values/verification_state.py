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

    def of(self, role: str) -> RoundEvaluation:
        """Return an arm's evaluation."""
        return next(start for start in self.starts if start.role == role)

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
    finalists: tuple[Configuration, ...] = ()
    """Shortlist, recommendation first; one leaves no choice."""
    finals: tuple[RoundEvaluation, ...] = ()
    standings: tuple[ShortlistEntry, ...] | None = None
    """Best first; None while open."""
    guess: Configuration | None = None
    """The prediction's choice, unless best or default."""
    presumed_sd: float = UNKNOWN_PAIR_SD
    front: tuple[ParetoPoint, ...] = ()
    open_loop: OpenLoopCheck | None = None
    """None if pending, or without time."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Arms of each verification round."""
        return ("default", "best") if self.guess is None else ("default", "best", "guess")

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "stopped": self.stopped,
            "best": None if self.best is None else dict(self.best),
            "pairs": self.pairs,
            "starts": [start.as_json() for start in self.starts],
            "finalists": [dict(one) for one in self.finalists],
            "finals": [start.as_json() for start in self.finals],
            "standings": None
            if self.standings is None
            else [one.as_json() for one in self.standings],
            "guess": None if self.guess is None else dict(self.guess),
            "presumed_sd": self.presumed_sd,
            "front": [point.as_json() for point in self.front],
            "open_loop": None if self.open_loop is None else self.open_loop.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> VerificationState:
        """Inverse of `as_json`."""
        standings, guess = data.get("standings"), data.get("guess")
        open_loop = data.get("open_loop")
        return cls(
            stopped=data["stopped"],
            best=None if data["best"] is None else Configuration(data["best"]),
            pairs=data["pairs"],
            starts=tuple(map(RoundEvaluation.from_json, data["starts"])),
            finalists=tuple(map(Configuration, data.get("finalists", ()))),
            finals=tuple(map(RoundEvaluation.from_json, data.get("finals", ()))),
            standings=None
            if standings is None
            else tuple(map(ShortlistEntry.from_json, standings)),
            guess=None if guess is None else Configuration(guess),
            presumed_sd=float(data.get("presumed_sd", UNKNOWN_PAIR_SD)),
            front=tuple(map(ParetoPoint.from_json, data.get("front", ()))),
            open_loop=None if open_loop is None else OpenLoopCheck.from_json(open_loop),
        )
