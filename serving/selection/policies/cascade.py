"""Cascade: query one cheap model if it is good enough; otherwise let all models vote.

It is good enough if its mean loss plus cost is at most the ensemble's mean loss plus all costs.
Some queries go to all models regardless, to keep the estimates up to date.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from serving.selection import model_output
from serving.selection.model_output import CLASSES, ModelOutput, Number, Task, TrueLabel, require
from serving.selection.policies import voting
from serving.selection.policies.error_counts import (
    ErrorCounts,
    keep_of,
    losses_of_asked,
    require_memory,
)
from serving.selection.policy import Choice, Combined, Decision, PolicyState, Query, require_costs

_ENOUGH = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleErrors:
    """Error count of the combined output of all models."""

    count: float = 0.0
    losses: float = 0.0

    def __post_init__(self) -> None:
        if not all(math.isfinite(value) and value >= 0 for value in (self.count, self.losses)):
            raise ValueError("a count or a sum of losses is negative or not finite")

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> EnsembleErrors:
        """Build the count from its JSON form."""
        return cls(count=float(data["count"]), losses=float(data["losses"]))

    def with_observation(self, loss: float | None, keep: float) -> EnsembleErrors:
        """Return the errors with a loss added; None means that not all models were queried."""
        return EnsembleErrors(
            count=keep * self.count + (loss is not None), losses=keep * self.losses + (loss or 0.0)
        )


UNSEEN = EnsembleErrors()


class CascadeState(PolicyState, Protocol):
    """A state with error counts of each model and of the ensemble."""

    @property
    def tallies(self) -> ErrorCounts:
        """Error counts of each model."""
        ...

    @property
    def together(self) -> EnsembleErrors:
        """Error count of the combined output of all models."""
        ...


S = TypeVar("S", bound=CascadeState)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cascade(abc.ABC, Generic[S]):
    """Base of policies that query all models, or a single one to save costs."""

    task: Task = CLASSES
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Cost of querying each model, in units of loss; if empty, all models are queried."""
    explore: float = 0.1
    """Share of queries that go to all models although one would do."""
    memory: float | None = 1000.0
    """Number of feedback messages after which an observation fades to 1/e; None means never."""

    def __post_init__(self) -> None:
        require(0 < self.explore <= 1, "explore", self.explore, "a number above 0, at most 1")
        require_memory(self.memory)
        require_costs(self.costs)

    @abc.abstractmethod
    def weights(self, state: S) -> Mapping[str, float]:
        """Return the models' weights in the vote, which sum to 1."""

    def select(self, state: S, query: Query, draw: float) -> Choice:  # noqa: ARG002
        """Select all models, or only the cheapest if costs are set and it is good enough."""
        models, together = state.models, state.together
        everyone = Choice(models=models, probabilities=dict.fromkeys(models, 1.0))
        if not self.costs or together.count < _ENOUGH or len(models) < 2:
            return everyone
        prices = {
            model: mean + self.costs.get(model, 0.0)
            for model, mean in zip(models, state.tallies.means(0.5, 2.0), strict=True)
        }
        cheapest = min(models, key=prices.__getitem__)
        all_costs = math.fsum(self.costs.get(model, 0.0) for model in models)
        if prices[cheapest] > together.losses / together.count + all_costs:
            return everyone
        probabilities = {model: 1.0 if model == cheapest else self.explore for model in models}
        chosen = models if draw < self.explore else (cheapest,)
        return Choice(models=chosen, probabilities=probabilities)

    def combine_by(
        self, state: S, choice: Choice, responses: Mapping[str, ModelOutput], by: voting.By
    ) -> Combined:
        """Let the models vote; a model that was unlinked during the query has no weight."""
        nobody = dict.fromkeys(choice.models, 0.0)
        return voting.combine(
            self.task,
            choice,
            responses,
            weights=nobody | dict(self.weights(state)),
            standings=nobody | state.tallies.standings(),
            by=by,
        )

    def count_errors(
        self, state: S, decision: Decision, truth: TrueLabel
    ) -> tuple[ErrorCounts, EnsembleErrors]:
        """Return the error counts of each model and of the ensemble after feedback."""
        keep = keep_of(self.memory)
        losses = losses_of_asked(self.task, decision, truth)
        loss = _loss_of_all(self.task, state.models, decision, truth)
        return (
            state.tallies.with_observation(losses, keep),
            state.together.with_observation(loss, keep),
        )


def _loss_of_all(
    task: Task, models: Sequence[str], decision: Decision, truth: TrueLabel
) -> float | None:
    if set(decision.choice.models) != set(models) or decision.output is None:
        return None
    if isinstance(decision.output, str):
        return float(decision.output != truth)
    return model_output.loss(task, Number(decision.output), truth)
