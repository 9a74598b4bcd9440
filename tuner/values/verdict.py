"""Verdicts: the best against the default, or against a prediction's choice."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from tuner.values.configuration import Configuration
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement

VerdictOutcome = Literal["better", "worse", "no difference shown"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionComparison:
    """Best against the prediction's choice."""

    configuration: Configuration
    outcome: VerdictOutcome
    ratio: float
    """Best over the prediction's choice."""
    interval: Interval
    pairs: int

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PredictionComparison:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "interval": Interval(**data["interval"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecondObjectiveVerdict:
    """Verdict on a second objective, by the same pairs."""

    objective: str
    outcome: VerdictOutcome
    ratio: float
    """Best over default."""
    interval: Interval
    """In this session."""
    between_session_interval: Interval
    """Of another session's ratio."""
    text: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Default against best in alternating rounds; ratios are best over default."""

    outcome: VerdictOutcome
    ratio: float
    interval: Interval
    """In this session."""
    between_session_interval: Interval
    """Of another session's ratio."""
    throughput_ratio: float | None
    throughput_interval: Interval
    p99_ratio: float | None
    """None if too few pairs have both p99."""
    p99_interval: Interval
    default: tuple[Measurement, ...]
    best: tuple[Measurement, ...]
    text: str
    against_prediction: PredictionComparison | None = None
    """None without prediction, or with the same choice."""
    second: SecondObjectiveVerdict | None = None
    evaluation_sd: float | None = None
    """Sd of pairs' log ratios beyond that of slices within; None without slices."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        against = self.against_prediction
        return {
            **dataclasses.asdict(self),
            "against_prediction": None if against is None else against.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `as_json`."""
        fields = dict(data)
        for name in ("interval", "between_session_interval", "throughput_interval", "p99_interval"):
            fields[name] = Interval(**fields[name]) if name in fields else UNKNOWN
        for name in ("default", "best"):
            fields[name] = tuple(Measurement.from_json(item) for item in fields[name])
        against = fields.get("against_prediction")
        fields["against_prediction"] = (
            None if against is None else PredictionComparison.from_json(against)
        )
        second = fields.get("second")
        fields["second"] = (
            None
            if second is None
            else SecondObjectiveVerdict(
                **{
                    **second,
                    "interval": Interval(**second["interval"]),
                    "between_session_interval": Interval(**second["between_session_interval"])
                    if "between_session_interval" in second
                    else UNKNOWN,
                }
            )
        )
        return cls(**fields)
