"""Samplers in a contest on recorded surfaces: what each recommended, when, and who is not worse than whom.

Pure data, as `tune compare --surface` keeps and shows it. Regrets are shares of the optimum (0.02 is 2 %);
seconds are those of the recorded launches, of the model's profile and of the sampler itself.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

Standing = Literal["better", "non-inferior", "not shown", "worse"]
"""Of the reference against a peer.

better: its mean regret is lower, the bound of the difference below 0; non-inferior: the bound is at
most the margin; worse: the opposite bound is above the margin; not shown: none of them.
"""
LEAST_UNITS = 5
"""With fewer nothing is shown: not even a test of signs, which takes no shape for granted, would show it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quartiles:
    """A column of figures over runs, one for each trial."""

    low: tuple[float, ...]
    median: tuple[float, ...]
    high: tuple[float, ...]
    mean: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Within:
    """How soon the searches of a sampler have something within a share of the best, for good."""

    share: float
    trials: tuple[float | None, ...]
    """Of each run; None where it does not get there."""
    seconds: tuple[float | None, ...]
    median: float | None
    """Trials that half of the runs need at most; None where fewer than half get there."""
    p90: float | None
    median_s: float | None
    p90_s: float | None
    reached: float
    """Share of the runs that get there."""

    @classmethod
    def over(cls, share: float, trials: Sequence[float], seconds: Sequence[float]) -> Self:
        """Of runs, by their trials and seconds; infinite where one does not get there."""
        return cls(
            share=share,
            trials=tuple(map(_finite, trials)),
            seconds=tuple(map(_finite, seconds)),
            median=rank(trials, 0.5),
            p90=rank(trials, 0.9),
            median_s=rank(seconds, 0.5),
            p90_s=rank(seconds, 0.9),
            reached=sum(map(math.isfinite, trials)) / len(trials),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """All searches of one sampler on one surface."""

    sampler: str
    profiling: int
    """Trials whose time its prediction took."""
    regrets: tuple[tuple[float, ...], ...]
    """(runs, trials) of what is recommended."""
    seconds: tuple[tuple[float, ...], ...]
    """(runs, trials) up to the end of each trial."""
    regret: Quartiles
    within: tuple[Within, ...]
    failures: float
    """Trials of a search that failed, in the mean."""
    sampler_ms: float
    """The sampler's own time of a trial."""

    def reached(self, share: float) -> Within:
        """How soon it gets within a share."""
        return next(one for one in self.within if one.share == share)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NonInferiority:
    """The reference against one peer after so many trials: mean of the differences of their regrets."""

    peer: str
    budget: int
    """Trials."""
    units: int
    """Seeds on one surface; surfaces over several."""
    difference: float
    """Regret of the reference less that of the peer: below 0 is good for the reference."""
    upper: float | None
    """One-sided 95 % bound of its mean, by Student's t; None of fewer than five units."""
    p: float | None
    """That the mean is at the margin or above."""
    corrected_p: float | None
    """By Holm, over peers and budgets."""
    standing: Standing


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceContest:
    """One surface."""

    name: str
    model: str
    concurrency: int
    client_batch: int
    engine: str
    objective: str
    unit: str
    cells: int
    optimum: float
    """In the objective's unit, as it is minimised."""
    optimum_se: float
    default_regret: float | None
    """None where the default does not work."""
    good_cells: Mapping[float, int]
    """By share."""
    tolerances: Mapping[float, float]
    random_median: Mapping[float, int]
    """Trials after which random search, told the truth, has met a good cell in half of all searches."""
    contestants: tuple[Contestant, ...]
    noninferiority: tuple[NonInferiority, ...]
    notes: tuple[str, ...]
    rate_per_s: float | None = None
    """Of a scenario; None of one model in a closed loop."""

    def of(self, sampler: str) -> Contestant | None:
        """A sampler's searches; None where it did not take part."""
        return next((one for one in self.contestants if one.sampler == sampler), None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContestRecord:
    """All of it."""

    name: str
    samplers: tuple[str, ...]
    reference: str
    trials: int
    seeds: int
    margin: float
    surfaces: tuple[SurfaceContest, ...]
    over_surfaces: tuple[NonInferiority, ...]
    """The surface is the unit; empty of one surface."""
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain data; mappings by share have it as a text, as in `tune replay --json`."""
        data = dataclasses.asdict(self)
        for surface in data["surfaces"]:
            for name in ("good_cells", "tolerances", "random_median"):
                surface[name] = {f"{share:g}": value for share, value in surface[name].items()}
        return data


def rank(values: Sequence[float], share: float) -> float | None:
    """The value that this share of the runs does not exceed; None where it is infinite."""
    return _finite(sorted(values)[max(0, math.ceil(share * len(values)) - 1)])


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
