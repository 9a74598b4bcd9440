"""Common parts of policies that query one model and return its output. No I/O."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from serving.selection.model_output import CLASSES, Answer, Task, Truth
from serving.selection.policies import voting
from serving.selection.policies.error_counts import (
    NEWCOMER_OBSERVATIONS,
    Tallies,
    keep_of,
    losses_of_asked,
)
from serving.selection.policy import Choice, Combined, Decision, Query, State, one_of

S = TypeVar("S", bound=State)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OneModel(abc.ABC, Generic[S]):
    """Draw one model by the weights."""

    task: Task = CLASSES

    @abc.abstractmethod
    def weights(self, state: S) -> Mapping[str, float]:
        """See `Policy`."""

    def select(self, state: S, query: Query, draw: float) -> Choice:  # noqa: ARG002
        """See `Policy`."""
        weights = self.weights(state)
        return one_of(tuple(weights), tuple(weights.values()), draw)

    def combine(self, state: S, choice: Choice, answers: Mapping[str, Answer]) -> Combined:  # noqa: ARG002
        """See `Policy`."""
        equal = dict.fromkeys(choice.models, 1.0)
        return voting.combined(
            self.task, choice, answers, weights=equal, standings=equal, by="scores"
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counting(OneModel[Tallies]):
    """Count the errors of each model; user states make no difference."""

    def initial(self, models: Sequence[str]) -> Tallies:
        """See `Policy`."""
        return Tallies.none(models)

    def restored(self, data: Mapping[str, Any]) -> Tallies:
        """See `Policy`."""
        return Tallies.from_json(data)

    def relinked(self, state: Tallies, models: Sequence[str]) -> Tallies:
        """See `Policy`; a new model has no count yet."""
        return state.relinked(models)

    def newcomer(self, shared: Tallies) -> Tallies:
        """See `Policy`."""
        return Tallies.none(shared.models)

    def observe(self, state: Tallies, decision: Decision, truth: Truth) -> Tallies:
        """See `Policy`."""
        return state.observed(losses_of_asked(self.task, decision, truth))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Learning(Counting):
    """Let the counts, which fade, decide together with costs."""

    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Cost of querying a model, in units of loss."""
    memory: float | None = 1000.0
    """Feedback count after which an observation weighs 1/e; None: never fades."""

    def newcomer(self, shared: Tallies) -> Tallies:
        """See `Policy`."""
        return shared.at_most(NEWCOMER_OBSERVATIONS)

    def observe(self, state: Tallies, decision: Decision, truth: Truth) -> Tallies:
        """See `Policy`."""
        losses = losses_of_asked(self.task, decision, truth)
        return state.observed(losses, keep_of(self.memory))
