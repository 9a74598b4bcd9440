"""Policy `exp4`: query all models and take a weighted vote.

This is Exp4 of Auer et al. 2002 (SIAM J. Comput. 32(1), section 7) with models as experts and all
losses known:

    w_i <- w_i exp(-eta loss_i)

If costs let one model respond alone, the others' losses are divided by the probability of querying
them.

The confidence is the share of all weight, including missing models', behind the output. The
agreement weights models by accuracy, since the weights soon favour the best.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, get_args

from serving.selection.model_output import ModelOutput, TrueLabel, require
from serving.selection.policies import voting
from serving.selection.policies.cascade import UNSEEN, Cascade, EnsembleErrors
from serving.selection.policies.error_counts import (
    NEWCOMER_OBSERVATIONS,
    ErrorCounts,
    losses_of_asked,
)
from serving.selection.policies.log_weights import (
    NEWCOMER_NATS,
    LogWeights,
    require_rates,
)
from serving.selection.policy import Choice, Combined, Decision


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exp4State:
    """Weights, and error counts of each model and of the ensemble."""

    weights: LogWeights
    tallies: ErrorCounts
    together: EnsembleErrors = UNSEEN

    def __post_init__(self) -> None:
        if self.weights.models != self.tallies.models:
            raise ValueError(f"weights of {self.weights.models}, tallies of {self.tallies.models}")

    @property
    def models(self) -> tuple[str, ...]:
        """The linked models."""
        return self.weights.models


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exp4(Cascade[Exp4State]):
    """Policy with exponential weights learned from all losses."""

    name: ClassVar[str] = "exp4"

    learning_rate: float = 0.1
    """eta; the bound suggests 0.025, but models that differ need more (benchmarks/selection.py)."""
    sharing: float = 1e-4
    """Share of all weight that is spread evenly after each feedback."""
    vote: voting.By = "scores"
    """Whether a model's weight is spread by probability (`scores`) or goes to its label."""

    def __post_init__(self) -> None:
        Cascade.__post_init__(self)
        require_rates(self.learning_rate, self.sharing)
        require(self.vote in get_args(voting.By), "vote", self.vote, "majority or scores")

    def initial(self, models: Sequence[str]) -> Exp4State:
        """Return equal weights and no errors."""
        return Exp4State(weights=LogWeights.equal(models), tallies=ErrorCounts.none(models))

    def parse_state(self, data: Mapping[str, Any]) -> Exp4State:
        """Parse a state's fields."""
        return Exp4State(
            weights=LogWeights.from_json(data["weights"]),
            tallies=ErrorCounts.from_json(data["tallies"]),
            together=EnsembleErrors.from_json(data["together"]),
        )

    def relink(self, state: Exp4State, models: Sequence[str]) -> Exp4State:
        """Return the state for other models; ensemble errors are kept only for the same set."""
        same = set(models) == set(state.models)
        return Exp4State(
            weights=state.weights.relink(models),
            tallies=state.tallies.relink(models),
            together=state.together if same else UNSEEN,
        )

    def initial_for_user(self, shared: Exp4State) -> Exp4State:
        """Return the shared weights, made more equal, and a few shared observations."""
        return Exp4State(
            weights=shared.weights.temper(NEWCOMER_NATS),
            tallies=shared.tallies.at_most(NEWCOMER_OBSERVATIONS),
        )

    def weights(self, state: Exp4State) -> Mapping[str, float]:
        """Return the exponential weights."""
        return dict(zip(state.models, state.weights.shares(), strict=True))

    def combine(
        self, state: Exp4State, choice: Choice, responses: Mapping[str, ModelOutput]
    ) -> Combined:
        """Combine outputs as the option `vote` says."""
        return self.combine_by(state, choice, responses, self.vote)

    def observe(self, state: Exp4State, decision: Decision, truth: TrueLabel) -> Exp4State:
        """Lower the models' weights by their losses."""
        steps = {
            model: self.learning_rate * loss / decision.choice.probabilities[model]
            for model, loss in losses_of_asked(self.task, decision, truth).items()
        }
        tallies, together = self.count_errors(state, decision, truth)
        return Exp4State(
            weights=state.weights.step(steps, self.sharing), tallies=tallies, together=together
        )
