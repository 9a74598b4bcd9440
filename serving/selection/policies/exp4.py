"""Policy `exp4`: query all models and take a weighted vote.

Exp4 of Auer et al. 2002 (SIAM J. Comput. 32(1), section 7) with models as experts, all losses
known:

    w_i <- w_i exp(-eta loss_i)

Where costs let one model respond alone, the others' losses in queries to all count by one over the
query probability.

The confidence is the share of all weight, missing models included, behind the output. Agreement
weights models by accuracy, as the weights soon favour the best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

from serving.selection import model_output
from serving.selection.model_output import CLASSES, ModelOutput, Number, Task, TrueLabel
from serving.selection.policies import cascade, voting
from serving.selection.policies.cascade import UNSEEN, EnsembleErrors
from serving.selection.policies.error_counts import (
    NEWCOMER_OBSERVATIONS,
    ErrorCounts,
    keep_of,
    losses_of_asked,
    require_memory,
)
from serving.selection.policies.log_weights import NEWCOMER_NATS, LogWeights
from serving.selection.policy import Choice, Combined, Decision, Query, require, require_costs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exp4State:
    """Weights, and error counts per model and of the ensemble."""

    weights: LogWeights
    tallies: ErrorCounts
    together: EnsembleErrors = UNSEEN

    def __post_init__(self) -> None:
        if self.weights.models != self.tallies.models:
            raise ValueError(f"weights of {self.weights.models}, tallies of {self.tallies.models}")

    @property
    def models(self) -> tuple[str, ...]:
        """Linked models."""
        return self.weights.models

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "weights": self.weights.as_json(),
            "tallies": self.tallies.as_json(),
            "together": self.together.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Exp4State:
        """Inverse of `as_json`."""
        return cls(
            weights=LogWeights.from_json(data["weights"]),
            tallies=ErrorCounts.from_json(data["tallies"]),
            together=EnsembleErrors.from_json(data["together"]),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exp4:
    """Exponential weights from all losses."""

    name: ClassVar[str] = "exp4"

    task: Task = CLASSES
    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Empty: all models are queried."""
    learning_rate: float = 0.1
    """eta; the bound gives 0.025, but models that differ need more (benchmarks/selection.py)."""
    sharing: float = 1e-4
    """Share of all weight spread evenly after each feedback."""
    vote: voting.By = "scores"
    """`scores` spreads a model's weight by probability, `majority` gives it to its label."""
    explore: float = 0.1
    """Share of queries to all although one model would do."""
    memory: float | None = 1000.0
    """Feedback count in which an observation fades to 1/e; None: never."""

    def __post_init__(self) -> None:
        require(
            0 < self.learning_rate <= 10,
            "learning_rate",
            self.learning_rate,
            "a number above 0, at most 10",
        )
        require(0 <= self.sharing < 1, "sharing", self.sharing, "0 or a number below 1")
        require(self.vote in get_args(voting.By), "vote", self.vote, "majority or scores")
        require(0 < self.explore <= 1, "explore", self.explore, "a number above 0, at most 1")
        require_memory(self.memory)
        require_costs(self.costs)

    def initial(self, models: Sequence[str]) -> Exp4State:
        """See `Policy`."""
        return Exp4State(weights=LogWeights.equal(models), tallies=ErrorCounts.none(models))

    def parse_state(self, data: Mapping[str, Any]) -> Exp4State:
        """See `Policy`."""
        return Exp4State.from_json(data)

    def relink(self, state: Exp4State, models: Sequence[str]) -> Exp4State:
        """See `Policy`; ensemble errors hold for the same models only."""
        same = set(models) == set(state.models)
        return Exp4State(
            weights=state.weights.relink(models),
            tallies=state.tallies.relink(models),
            together=state.together if same else UNSEEN,
        )

    def initial_for_user(self, shared: Exp4State) -> Exp4State:
        """See `Policy`."""
        return Exp4State(
            weights=shared.weights.temper(NEWCOMER_NATS),
            tallies=shared.tallies.at_most(NEWCOMER_OBSERVATIONS),
        )

    def weights(self, state: Exp4State) -> Mapping[str, float]:
        """See `Policy`."""
        return dict(zip(state.models, state.weights.shares(), strict=True))

    def select(self, state: Exp4State, query: Query, draw: float) -> Choice:  # noqa: ARG002
        """See `Policy`."""
        return cascade.choice(
            state.tallies, state.together, costs=self.costs, explore=self.explore, draw=draw
        )

    def combine(
        self, state: Exp4State, choice: Choice, responses: Mapping[str, ModelOutput]
    ) -> Combined:
        """See `Policy`."""
        # A model unlinked during the query counts nothing.
        nobody = dict.fromkeys(choice.models, 0.0)
        return voting.combine(
            self.task,
            choice,
            responses,
            weights=nobody | dict(self.weights(state)),
            standings=nobody | state.tallies.standings(),
            by=self.vote,
        )

    def observe(self, state: Exp4State, decision: Decision, truth: TrueLabel) -> Exp4State:
        """See `Policy`."""
        losses = losses_of_asked(self.task, decision, truth)
        keep = keep_of(self.memory)
        steps = {
            model: self.learning_rate * loss / decision.choice.probabilities[model]
            for model, loss in losses.items()
        }
        return Exp4State(
            weights=state.weights.step(steps, self.sharing),
            tallies=state.tallies.with_observation(losses, keep),
            together=state.together.with_observation(
                loss_of_all(self.task, state.models, decision, truth), keep
            ),
        )


def loss_of_all(
    task: Task, models: Sequence[str], decision: Decision, truth: TrueLabel
) -> float | None:
    """Return the loss of the combined output; None if not all models were queried."""
    if set(decision.choice.models) != set(models) or decision.output is None:
        return None
    if isinstance(decision.output, str):
        return float(decision.output != truth)
    return model_output.loss(task, Number(decision.output), truth)
