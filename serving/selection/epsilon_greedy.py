"""Policy `epsilon-greedy`: the model with the lowest mean loss plus cost, and sometimes another.

A model without remembered observations counts as faultless and is queried. No I/O.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from serving.selection.fixed import alone, losses_of_asked
from serving.selection.policy import (
    Choice,
    Combined,
    Decision,
    Query,
    one_of,
    require,
    require_costs,
)
from serving.selection.prediction import CLASSES, Answer, Task, Truth
from serving.selection.tallies import NEWCOMER_OBSERVATIONS, Tallies, keep_of, require_memory


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EpsilonGreedy:
    """Best mean with exploration."""

    name: ClassVar[str] = "epsilon-greedy"

    task: Task = CLASSES
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Cost of querying a model, in units of loss."""
    epsilon: float = 0.1
    """Share of queries to a random model; 0.1 remembers some ten observations of each of five."""
    memory: float | None = 1000.0
    """Feedback count after which an observation weighs 1/e; None: never fades."""

    def __post_init__(self) -> None:
        require(0 <= self.epsilon <= 1, "epsilon", self.epsilon, "0 to 1")
        require_memory(self.memory)
        require_costs(self.costs)

    def initial(self, models: Sequence[str]) -> Tallies:
        """See `Policy`."""
        return Tallies.none(models)

    def restored(self, data: Mapping[str, Any]) -> Tallies:
        """See `Policy`."""
        return Tallies.from_json(data)

    def relinked(self, state: Tallies, models: Sequence[str]) -> Tallies:
        """See `Policy`; a new model is queried at once."""
        return state.relinked(models)

    def newcomer(self, shared: Tallies) -> Tallies:
        """See `Policy`."""
        return shared.at_most(NEWCOMER_OBSERVATIONS)

    def weights(self, state: Tallies) -> Mapping[str, float]:
        """See `Policy`."""
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

    def select(self, state: Tallies, query: Query, draw: float) -> Choice:  # noqa: ARG002
        """See `Policy`."""
        weights = self.weights(state)
        return one_of(tuple(weights), tuple(weights.values()), draw)

    def combine(self, state: Tallies, choice: Choice, answers: Mapping[str, Answer]) -> Combined:  # noqa: ARG002
        """See `Policy`."""
        return alone(self.task, choice, answers)

    def observe(self, state: Tallies, decision: Decision, truth: Truth) -> Tallies:
        """See `Policy`."""
        losses = losses_of_asked(self.task, decision, truth)
        return state.observed(losses, keep_of(self.memory))
