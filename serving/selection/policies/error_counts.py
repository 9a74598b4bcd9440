"""Error counts per model: the state of counting policies, and part of other states.

All counts fade with each feedback, so a model that is no longer queried is tried again.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from serving.selection.model_output import Task, TrueLabel, loss, require
from serving.selection.policy import Decision

NEWCOMER_OBSERVATIONS = 10.0
"""Number of shared observations that a new user starts with."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCounts:
    """Number of observations and total loss per model."""

    models: tuple[str, ...]
    counts: tuple[float, ...]
    losses: tuple[float, ...]

    def __post_init__(self) -> None:
        if not len(self.models) == len(self.counts) == len(self.losses):
            raise ValueError(
                f"{len(self.models)} models, {len(self.counts)} counts, {len(self.losses)} losses"
            )
        if not all(math.isfinite(value) and value >= 0 for value in self.counts + self.losses):
            raise ValueError("a count or a sum of losses is negative or not finite")

    @classmethod
    def none(cls, models: Sequence[str]) -> ErrorCounts:
        """Return zero counts."""
        zeros = (0.0,) * len(models)
        return cls(models=tuple(models), counts=zeros, losses=zeros)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ErrorCounts:
        """Build the counts from their JSON form."""
        return cls(
            models=tuple(str(model) for model in data["models"]),
            counts=tuple(float(count) for count in data["counts"]),
            losses=tuple(float(loss) for loss in data["losses"]),
        )

    def with_observation(self, losses: Mapping[str, float], keep: float = 1.0) -> ErrorCounts:
        """Fade all counts by `keep`, then add the losses of some models."""
        return ErrorCounts(
            models=self.models,
            counts=tuple(
                keep * count + (model in losses)
                for model, count in zip(self.models, self.counts, strict=True)
            ),
            losses=tuple(
                keep * loss + losses.get(model, 0.0)
                for model, loss in zip(self.models, self.losses, strict=True)
            ),
        )

    def relink(self, models: Sequence[str]) -> ErrorCounts:
        """Return counts for other models; new models start at zero."""
        known = {m: (c, x) for m, c, x in zip(self.models, self.counts, self.losses, strict=True)}
        pairs = [known.get(model, (0.0, 0.0)) for model in models]
        return ErrorCounts(
            models=tuple(models),
            counts=tuple(count for count, _ in pairs),
            losses=tuple(loss for _, loss in pairs),
        )

    def at_most(self, observations: float) -> ErrorCounts:
        """Return the same means with at most `observations` per model."""
        shares = [min(1.0, observations / count) if count else 1.0 for count in self.counts]
        return ErrorCounts(
            models=self.models,
            counts=tuple(share * count for share, count in zip(shares, self.counts, strict=True)),
            losses=tuple(share * loss for share, loss in zip(shares, self.losses, strict=True)),
        )

    def means(self, prior_loss: float, prior_count: float) -> tuple[float, ...]:
        """Return each model's mean loss, with a prior of `prior_count` observations."""
        return tuple(
            (loss + prior_loss * prior_count) / (count + prior_count)
            for count, loss in zip(self.counts, self.losses, strict=True)
        )

    def standings(self) -> dict[str, float]:
        """Return each model's accuracy in (0, 1), or 0.5 if unknown."""
        means = self.means(0.5, 2.0)
        return {model: 1.0 - mean for model, mean in zip(self.models, means, strict=True)}


def losses_of_asked(task: Task, decision: Decision, truth: TrueLabel) -> dict[str, float]:
    """Return the loss of each queried model; a missing output has the maximum loss."""
    return {
        model: loss(task, decision.answers.get(model), truth) for model in decision.choice.models
    }


def keep_of(memory: float | None) -> float:
    """Return the factor by which feedback fades counts: 1 - 1/memory, or 1 if that is None."""
    return 1.0 if memory is None else 1.0 - 1.0 / memory


def require_memory(memory: float | None) -> None:
    """Check the option `memory`.

    Raises:
        InvalidSettings: it is less than 2.
    """
    require(
        memory is None or 2 <= memory < math.inf,
        "memory",
        memory,
        "2 or more feedbacks, or none to forget nothing",
    )
