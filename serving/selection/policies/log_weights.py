"""Log-space weights for multiplicative-weights policies.

The largest log is 0, so nothing overflows. Sharing (Herbster and Warmuth 1998, Fixed-Share; Exp3.S
in Auer et al. 2002) gives every model a part of all weight after each step, so that a model that
recovers can climb back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from serving.selection.model_output import require

LOWEST = -200.0
"""Minimum log weight, finite but negligible in any sum."""

NEWCOMER_NATS = 2.0
"""Log of the largest ratio between a new user's weights."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogWeights:
    """Log weights, the largest of which is 0."""

    models: tuple[str, ...]
    logs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.models) != len(self.logs):
            raise ValueError(f"{len(self.models)} models, {len(self.logs)} weights")
        if not all(LOWEST <= log <= 0.0 for log in self.logs):
            raise ValueError(f"the logarithm of a weight is outside {LOWEST:g} to 0: {self.logs}")

    @classmethod
    def equal(cls, models: Sequence[str]) -> LogWeights:
        """Return equal weights."""
        return cls(models=tuple(models), logs=(0.0,) * len(models))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogWeights:
        """Build the weights from their JSON form."""
        return cls(
            models=tuple(str(model) for model in data["models"]),
            logs=tuple(float(log) for log in data["logs"]),
        )

    def shares(self) -> tuple[float, ...]:
        """Return the weights, which sum to 1."""
        weights = [math.exp(log) for log in self.logs]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    def step(self, steps: Mapping[str, float], sharing: float) -> LogWeights:
        """Subtract non-negative steps, then spread `sharing` of all weight evenly."""
        logs = [
            log - steps.get(model, 0.0) for model, log in zip(self.models, self.logs, strict=True)
        ]
        logs = _shift_max_to_zero(logs)
        if sharing > 0 and logs:
            weights = [math.exp(log) for log in logs]
            dealt = sharing * math.fsum(weights) / len(weights)
            logs = _shift_max_to_zero(
                [math.log((1 - sharing) * weight + dealt) for weight in weights]
            )
        return LogWeights(models=self.models, logs=tuple(logs))

    def relink(self, models: Sequence[str]) -> LogWeights:
        """Return weights for other models; new models get the mean weight."""
        known = dict(zip(self.models, self.logs, strict=True))
        kept = [known[model] for model in models if model in known]
        mean = math.log(math.fsum(math.exp(log) for log in kept) / len(kept)) if kept else 0.0
        logs = _shift_max_to_zero([known.get(model, mean) for model in models])
        return LogWeights(models=tuple(models), logs=tuple(logs))

    def temper(self, nats: float) -> LogWeights:
        """Return weights in the same order whose ratios are at most e^nats."""
        lowest = min(self.logs, default=0.0)
        factor = min(1.0, nats / -lowest) if lowest < 0 else 1.0
        return LogWeights(models=self.models, logs=tuple(factor * log for log in self.logs))


def require_rates(learning_rate: float, sharing: float) -> None:
    """Check the options of a policy with log weights.

    Raises:
        InvalidSettings: an option is out of range.
    """
    expected = "a number above 0, at most 10"
    require(0 < learning_rate <= 10, "learning_rate", learning_rate, expected)
    require(0 <= sharing < 1, "sharing", sharing, "0 or a number below 1")


def _shift_max_to_zero(logs: Sequence[float]) -> list[float]:
    highest = max(logs, default=0.0)
    return [max(LOWEST, log - highest) for log in logs]
