"""Weights of multiplicative-weights policies, kept as logarithms.

In: losses times a learning rate, as they come. Out: weights that sum to 1. The largest logarithm
is always 0, so nothing overflows, however many losses were seen. Sharing (Herbster and Warmuth
1998, Fixed-Share; the last line of Exp3.S in Auer et al. 2002) gives every model a part of all
weight after each step: a floor from which one that has recovered climbs back. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

LOWEST = -200.0
"""No weight falls below e^-200, with or without sharing: finite for ever, and 0 to any sum."""

NEWCOMER_NATS = 2.0
"""A new user's weights differ by at most e^2: the order that all users taught, soon outvoted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogWeights:
    """Logarithms of weights, the largest 0."""

    models: tuple[str, ...]
    logs: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.models) != len(self.logs):
            raise ValueError(f"{len(self.models)} models, {len(self.logs)} weights")
        if not all(LOWEST <= log <= 0.0 for log in self.logs):
            raise ValueError(f"the logarithm of a weight is outside {LOWEST:g} to 0: {self.logs}")

    @classmethod
    def equal(cls, models: Sequence[str]) -> LogWeights:
        """All alike."""
        return cls(models=tuple(models), logs=(0.0,) * len(models))

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"models": list(self.models), "logs": list(self.logs)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LogWeights:
        """Inverse of `as_json`."""
        return cls(
            models=tuple(str(model) for model in data["models"]),
            logs=tuple(float(log) for log in data["logs"]),
        )

    def shares(self) -> tuple[float, ...]:
        """The weights; they sum to 1."""
        weights = [math.exp(log) for log in self.logs]
        total = math.fsum(weights)
        return tuple(weight / total for weight in weights)

    def stepped(self, steps: Mapping[str, float], sharing: float) -> LogWeights:
        """Each log weight less its step (0 or more), then `sharing` of all weight dealt evenly."""
        logs = [
            log - steps.get(model, 0.0) for model, log in zip(self.models, self.logs, strict=True)
        ]
        logs = _anchored(logs)
        if sharing > 0 and logs:
            weights = [math.exp(log) for log in logs]
            dealt = sharing * math.fsum(weights) / len(weights)
            logs = _anchored([math.log((1 - sharing) * weight + dealt) for weight in weights])
        return LogWeights(models=self.models, logs=tuple(logs))

    def relinked(self, models: Sequence[str]) -> LogWeights:
        """For other models; a new one has the mean weight of those that stay."""
        known = dict(zip(self.models, self.logs, strict=True))
        kept = [known[model] for model in models if model in known]
        mean = math.log(math.fsum(math.exp(log) for log in kept) / len(kept)) if kept else 0.0
        logs = _anchored([known.get(model, mean) for model in models])
        return LogWeights(models=tuple(models), logs=tuple(logs))

    def tempered(self, nats: float) -> LogWeights:
        """The same order, the weights apart by a factor of at most e^nats."""
        lowest = min(self.logs, default=0.0)
        factor = min(1.0, nats / -lowest) if lowest < 0 else 1.0
        return LogWeights(models=self.models, logs=tuple(factor * log for log in self.logs))


def _anchored(logs: Sequence[float]) -> list[float]:
    """The same weights with a largest logarithm of 0."""
    highest = max(logs, default=0.0)
    return [max(LOWEST, log - highest) for log in logs]
