"""Policy `exp3`: one model per query, drawn by weights that only its own loss updates.

Auer, Cesa-Bianchi, Freund and Schapire 2002, "The nonstochastic multiarmed bandit problem", SIAM J.
Comput. 32(1), figure 1, with losses for rewards as in Clipper (section 5.1):

    p_i = (1 - gamma) w_i / sum w + gamma / K
    w_i <- w_i exp(-eta loss / p_i)         for the queried model

p_i is the probability at decision time. Every step charges costs to all models. `sharing` makes
this Exp3.S (section 8), which follows changes of the best model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from serving.selection.model_output import TrueLabel, require
from serving.selection.policies.error_counts import losses_of_asked
from serving.selection.policies.log_weights import NEWCOMER_NATS, LogWeights, require_rates
from serving.selection.policies.one_model import OneModel
from serving.selection.policy import Decision, require_costs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exp3(OneModel[LogWeights]):
    """Policy with exponential weights learned from the queried model's loss."""

    name: ClassVar[str] = "exp3"

    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    gamma: float = 0.05
    """Share of queries to a random model; the bound gives 0.015 for 5 models and 20,000 queries."""
    learning_rate: float = 0.05
    """eta; the bound suggests 0.006, but good models tolerate more (benchmarks/selection.py)."""
    sharing: float = 1e-4
    """Share alpha of all weight that is spread evenly after each feedback."""

    def __post_init__(self) -> None:
        require(0 < self.gamma <= 1, "gamma", self.gamma, "a number above 0, at most 1")
        require_rates(self.learning_rate, self.sharing)
        require_costs(self.costs)

    def initial(self, models: Sequence[str]) -> LogWeights:
        """Return equal weights."""
        return LogWeights.equal(models)

    def parse_state(self, data: Mapping[str, Any]) -> LogWeights:
        """Parse a state's fields."""
        return LogWeights.from_json(data)

    def relink(self, state: LogWeights, models: Sequence[str]) -> LogWeights:
        """Return the weights for other models."""
        return state.relink(models)

    def initial_for_user(self, shared: LogWeights) -> LogWeights:
        """Return the shared weights, made more equal."""
        return shared.temper(NEWCOMER_NATS)

    def weights(self, state: LogWeights) -> Mapping[str, float]:
        """Return the probabilities p_i, which include exploration."""
        each = self.gamma / max(1, len(state.models))
        return {
            model: (1 - self.gamma) * share + each
            for model, share in zip(state.models, state.shares(), strict=True)
        }

    def observe(self, state: LogWeights, decision: Decision, truth: TrueLabel) -> LogWeights:
        """Lower the queried model's weight by its loss, and all weights by costs."""
        steps = {model: self.learning_rate * self.costs.get(model, 0.0) for model in state.models}
        for model, loss in losses_of_asked(self.task, decision, truth).items():
            if model in steps:
                probability = decision.choice.probabilities[model]
                steps[model] += self.learning_rate * loss / probability
        return state.step(steps, self.sharing)
