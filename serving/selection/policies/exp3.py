"""Policy `exp3`: one model per query, by weights that only its own loss updates.

Auer, Cesa-Bianchi, Freund and Schapire 2002, "The nonstochastic multiarmed bandit problem", SIAM J.
Comput. 32(1), figure 1, with losses for rewards as in Clipper (section 5.1):

    p_i = (1 - gamma) w_i / sum w + gamma / K
    w_i <- w_i exp(-eta loss / p_i)         for the queried model

p_i is from decision time. Costs are charged to all models at every step. `sharing` makes it Exp3.S
(section 8), which follows changes of the best model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from serving.selection.model_output import TrueLabel
from serving.selection.policies.error_counts import losses_of_asked
from serving.selection.policies.log_weights import NEWCOMER_NATS, LogWeights
from serving.selection.policies.one_model import OneModel
from serving.selection.policy import Decision, require, require_costs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exp3(OneModel[LogWeights]):
    """Exponential weights from the queried model's loss."""

    name: ClassVar[str] = "exp3"

    costs: Mapping[str, float] = dataclasses.field(default_factory=dict)
    gamma: float = 0.05
    """Share of queries to a random model; the bound gives 0.015 for 5 models, 20,000 queries."""
    learning_rate: float = 0.05
    """eta; the bound gives 0.006, but good models bear more (benchmarks/selection.py)."""
    sharing: float = 1e-4
    """alpha: share of all weight spread evenly after each feedback."""

    def __post_init__(self) -> None:
        require(0 < self.gamma <= 1, "gamma", self.gamma, "a number above 0, at most 1")
        require(
            0 < self.learning_rate <= 10,
            "learning_rate",
            self.learning_rate,
            "a number above 0, at most 10",
        )
        require(0 <= self.sharing < 1, "sharing", self.sharing, "0 or a number below 1")
        require_costs(self.costs)

    def initial(self, models: Sequence[str]) -> LogWeights:
        """See `Policy`."""
        return LogWeights.equal(models)

    def parse_state(self, data: Mapping[str, Any]) -> LogWeights:
        """See `Policy`."""
        return LogWeights.from_json(data)

    def relink(self, state: LogWeights, models: Sequence[str]) -> LogWeights:
        """See `Policy`."""
        return state.relink(models)

    def initial_for_user(self, shared: LogWeights) -> LogWeights:
        """See `Policy`."""
        return shared.temper(NEWCOMER_NATS)

    def weights(self, state: LogWeights) -> Mapping[str, float]:
        """See `Policy`; includes exploration."""
        each = self.gamma / max(1, len(state.models))
        return {
            model: (1 - self.gamma) * share + each
            for model, share in zip(state.models, state.shares(), strict=True)
        }

    def observe(self, state: LogWeights, decision: Decision, truth: TrueLabel) -> LogWeights:
        """See `Policy`."""
        steps = {model: self.learning_rate * self.costs.get(model, 0.0) for model in state.models}
        for model, loss in losses_of_asked(self.task, decision, truth).items():
            if model in steps:
                probability = decision.choice.probabilities[model]
                steps[model] += self.learning_rate * loss / probability
        return state.step(steps, self.sharing)
