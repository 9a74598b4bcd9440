"""The result of `tune compare`: searches by several samplers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.measurement import Measurement
from tuner.values.verdict import VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRun:
    """One search of a comparison."""

    sampler: str
    repeat: int
    """From 0; runs of a repeat share a seed and pair up."""
    seed: int
    study: str
    objectives: tuple[float | None, ...]
    """Per trial in its unit, not negated; None unless ok."""
    best_so_far: tuple[float | None, ...]
    """After each trial; None before a success."""
    wall_s: float
    winner: Configuration | None
    remeasured: tuple[Measurement, ...] = ()
    """The winner's final evaluations."""
    seconds: tuple[float, ...] = ()
    """Until each trial's end, with the profile, without other searches; empty in old files."""
    profiling: int = 0
    """Trials spent on the profile."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = ("sampler", "repeat", "seed", "study", "wall_s", "profiling")
        return {
            **{name: getattr(self, name) for name in plain},
            "objectives": list(self.objectives),
            "best_so_far": list(self.best_so_far),
            "seconds": list(self.seconds),
            "winner": None if self.winner is None else dict(self.winner),
            "remeasured": [measurement.as_json() for measurement in self.remeasured],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SamplerRun:
        """Inverse of `as_json`."""
        fields = dict(data)
        fields["objectives"] = tuple(fields["objectives"])
        fields["best_so_far"] = tuple(fields["best_so_far"])
        fields["seconds"] = tuple(fields.get("seconds", ()))
        fields["winner"] = None if fields["winner"] is None else Configuration(fields["winner"])
        fields["remeasured"] = tuple(Measurement.from_json(item) for item in fields["remeasured"])
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDifference:
    """Two samplers compared by re-evaluated winners."""

    first: str
    second: str
    outcome: VerdictOutcome
    """Of `first` against `second`."""
    ratio: float
    """`first`'s winners over `second`'s."""
    interval: Interval
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """Result of `tune compare`."""

    name: str
    model: str
    concurrency: int
    objective: str
    """As in StudyRecord."""
    samplers: tuple[str, ...]
    repeats: int
    trials: int
    """Per run, default and failures included."""
    runs: tuple[SamplerRun, ...]
    differences: tuple[SamplerDifference, ...]
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    client_batch: int = 1

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        plain = (
            "name",
            "model",
            "concurrency",
            "client_batch",
            "objective",
            "repeats",
            "trials",
        )
        return {
            **{name: getattr(self, name) for name in plain},
            "samplers": list(self.samplers),
            "runs": [run.as_json() for run in self.runs],
            "differences": [dataclasses.asdict(difference) for difference in self.differences],
            "notes": list(self.notes),
            "environment": dict(self.environment),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComparisonRecord:
        """Inverse of `as_json`."""
        fields = dict(data)
        fields["samplers"] = tuple(fields["samplers"])
        fields["runs"] = tuple(SamplerRun.from_json(run) for run in fields["runs"])
        fields["differences"] = tuple(
            SamplerDifference(**{**item, "interval": Interval(**item["interval"])})
            for item in fields["differences"]
        )
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)
