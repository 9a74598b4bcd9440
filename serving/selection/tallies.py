"""How often each model was wrong: the state of the policies that count, and a part of others.

A tally is a number of observations and the sum of their losses, per model. With a memory of n, all
that was counted fades by 1 - 1/n with every feedback, whichever model it spoke of. So a model that
is no longer asked is slowly forgotten, and one that has recovered is tried again. Pure.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from serving.selection.policy import require

NEWCOMER_OBSERVATIONS = 10.0
"""What all users taught counts at most as this many observations of a new user: enough to begin
well, little enough to be outvoted within a dozen answers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tallies:
    """Observations and losses of each model."""

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
    def none(cls, models: Sequence[str]) -> Tallies:
        """Nothing observed."""
        zeros = (0.0,) * len(models)
        return cls(models=tuple(models), counts=zeros, losses=zeros)

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "models": list(self.models),
            "counts": list(self.counts),
            "losses": list(self.losses),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tallies:
        """Inverse of `as_json`."""
        return cls(
            models=tuple(str(model) for model in data["models"]),
            counts=tuple(float(count) for count in data["counts"]),
            losses=tuple(float(loss) for loss in data["losses"]),
        )

    def observed(self, losses: Mapping[str, float], keep: float = 1.0) -> Tallies:
        """With one more observation of some models, after all have faded by the factor `keep`."""
        return Tallies(
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

    def relinked(self, models: Sequence[str]) -> Tallies:
        """For other models; a new one has been observed never."""
        known = {m: (c, x) for m, c, x in zip(self.models, self.counts, self.losses, strict=True)}
        pairs = [known.get(model, (0.0, 0.0)) for model in models]
        return Tallies(
            models=tuple(models),
            counts=tuple(count for count, _ in pairs),
            losses=tuple(loss for _, loss in pairs),
        )

    def at_most(self, observations: float) -> Tallies:
        """The same means, by no more than so many observations of each model."""
        shares = [min(1.0, observations / count) if count else 1.0 for count in self.counts]
        return Tallies(
            models=self.models,
            counts=tuple(share * count for share, count in zip(shares, self.counts, strict=True)),
            losses=tuple(share * loss for share, loss in zip(shares, self.losses, strict=True)),
        )

    def means(self, prior_loss: float, prior_count: float) -> tuple[float, ...]:
        """Mean loss of each model, drawn to a prior that counts as some observations."""
        return tuple(
            (loss + prior_loss * prior_count) / (count + prior_count)
            for count, loss in zip(self.counts, self.losses, strict=True)
        )

    def standings(self) -> dict[str, float]:
        """How often each model is right, in (0, 1); 0.5 where nothing is known."""
        means = self.means(0.5, 2.0)
        return {model: 1.0 - mean for model, mean in zip(self.models, means, strict=True)}


def keep_of(memory: float | None) -> float:
    """The factor by which a tally fades at each feedback; None: never."""
    return 1.0 if memory is None else 1.0 - 1.0 / memory


def require_memory(memory: float | None) -> None:
    """Check the option `memory`.

    Raises:
        InvalidSettings: it is below 2.
    """
    require(
        memory is None or 2 <= memory < math.inf,
        "memory",
        memory,
        "2 or more feedbacks, or none to forget nothing",
    )
