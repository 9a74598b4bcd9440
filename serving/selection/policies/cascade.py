"""Cascade: query one cheap model if it is good enough, else all.

It is good enough if its mean loss plus cost is at most that of the ensemble plus all costs. Some
queries go to all regardless, to keep the estimates true.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from serving.selection.policies.error_counts import ErrorCounts
from serving.selection.policy import Choice

_ENOUGH = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleErrors:
    """Error count of all models combined."""

    count: float = 0.0
    losses: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in (self.count, self.losses)):
            raise ValueError("a count or a sum of losses is negative or not finite")

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnsembleErrors:
        """Inverse of `as_json`."""
        return cls(count=float(data["count"]), losses=float(data["losses"]))

    def with_observation(self, loss: float | None, keep: float) -> EnsembleErrors:
        """Add a feedback; None if not all models were queried."""
        return EnsembleErrors(
            count=keep * self.count + (loss is not None), losses=keep * self.losses + (loss or 0.0)
        )


UNSEEN = EnsembleErrors()


def choice(
    tallies: ErrorCounts,
    together: EnsembleErrors,
    *,
    costs: Mapping[str, float],
    explore: float,
    draw: float,
) -> Choice:
    """Select all models, or one that is good enough; all without costs.

    Args:
        tallies: losses per model.
        together: losses of the ensemble.
        costs: per model, in units of loss.
        explore: share of queries to all regardless.
        draw: in [0, 1).
    """
    models = tallies.models
    everyone = Choice(models=models, probabilities=dict.fromkeys(models, 1.0))
    if not costs or together.count < _ENOUGH or len(models) < 2:
        return everyone
    prices = {
        model: mean + costs.get(model, 0.0)
        for model, mean in zip(models, tallies.means(0.5, 2.0), strict=True)
    }
    cheapest = min(models, key=prices.__getitem__)
    of_all = together.losses / together.count + math.fsum(costs.get(model, 0.0) for model in models)
    if prices[cheapest] > of_all:
        return everyone
    probabilities = {model: 1.0 if model == cheapest else explore for model in models}
    return Choice(models=models if draw < explore else (cheapest,), probabilities=probabilities)
