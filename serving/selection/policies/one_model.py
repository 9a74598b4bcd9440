"""Base classes of policies that query one model and return its output."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from serving.selection.model_output import CLASSES, ModelOutput, Task, TrueLabel
from serving.selection.policies import voting
from serving.selection.policies.error_counts import (
    NEWCOMER_OBSERVATIONS,
    ErrorCounts,
    keep_of,
    losses_of_asked,
)
from serving.selection.policy import Choice, Combined, Decision, PolicyState, Query, one_of

S = TypeVar("S", bound=PolicyState)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneModel(abc.ABC, Generic[S]):
    """Base of policies that draw one model by weight."""

    task: Task = CLASSES

    @abc.abstractmethod
    def weights(self, state: S) -> Mapping[str, float]:
        """Return the probabilities of the models, which sum to 1."""

    def select(self, state: S, query: Query, draw: float) -> Choice:  # noqa: ARG002
        """Draw one model."""
        weights = self.weights(state)
        return one_of(tuple(weights), tuple(weights.values()), draw)

    def combine(self, state: S, choice: Choice, responses: Mapping[str, ModelOutput]) -> Combined:  # noqa: ARG002
        """Return the model's output."""
        equal = dict.fromkeys(choice.models, 1.0)
        return voting.combine(
            self.task, choice, responses, weights=equal, standings=equal, by="scores"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counting(OneModel[ErrorCounts]):
    """Base of policies that count each model's errors."""

    def initial(self, models: Sequence[str]) -> ErrorCounts:
        """Return zero counts."""
        return ErrorCounts.none(models)

    def parse_state(self, data: Mapping[str, Any]) -> ErrorCounts:
        """Parse a state's fields."""
        return ErrorCounts.from_json(data)

    def relink(self, state: ErrorCounts, models: Sequence[str]) -> ErrorCounts:
        """Return the counts for other models."""
        return state.relink(models)

    def initial_for_user(self, shared: ErrorCounts) -> ErrorCounts:
        """Return zero counts, because users are counted separately."""
        return ErrorCounts.none(shared.models)

    def observe(self, state: ErrorCounts, decision: Decision, truth: TrueLabel) -> ErrorCounts:
        """Count the losses."""
        return state.with_observation(losses_of_asked(self.task, decision, truth))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Learning(Counting):
    """Base of policies that decide by costs and by counts that fade."""

    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    memory: float | None = 1000.0
    """Number of feedback messages after which an observation fades to 1/e; None means never."""

    def initial_for_user(self, shared: ErrorCounts) -> ErrorCounts:
        """Return a few of the shared observations."""
        return shared.at_most(NEWCOMER_OBSERVATIONS)

    def observe(self, state: ErrorCounts, decision: Decision, truth: TrueLabel) -> ErrorCounts:
        """Count the losses, and fade earlier ones."""
        losses = losses_of_asked(self.task, decision, truth)
        return state.with_observation(losses, keep_of(self.memory))
