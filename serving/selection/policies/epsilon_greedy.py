"""Policy `epsilon-greedy`: query the model with the lowest mean loss plus cost, or explore."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from serving.selection.model_output import require
from serving.selection.policies.error_counts import ErrorCounts, require_memory
from serving.selection.policies.one_model import Learning
from serving.selection.policy import require_costs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonGreedy(Learning):
    """A policy that mostly queries the best model."""

    name: ClassVar[str] = "epsilon-greedy"

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 1, "epsilon", self.epsilon, "0 to 1")
        require_memory(self.memory)
        require_costs(self.costs)

    def weights(self, state: ErrorCounts) -> Mapping[str, float]:
        """Return `epsilon` split evenly among all models, plus the rest for the best one."""
        means = state.means(0.0, 1.0)
        prices = [
            mean + self.costs.get(model, 0.0)
            for model, mean in zip(state.models, means, strict=True)
        ]
        best = min(range(len(prices)), key=prices.__getitem__, default=0)
        each = self.epsilon / max(1, len(prices))
        return {
            model: each + (1.0 - self.epsilon) * (index == best)
            for index, model in enumerate(state.models)
        }
