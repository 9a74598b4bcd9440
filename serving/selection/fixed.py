"""Policy `fixed`: one model responds to everything; its errors are counted. No I/O.

Other models may stay linked, to switch to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from serving.selection import voting
from serving.selection.policy import Choice, Combined, Decision, Query, one_of, require
from serving.selection.prediction import CLASSES, Answer, Task, Truth, loss
from serving.selection.tallies import Tallies


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """One model."""

    name: ClassVar[str] = "fixed"

    task: Task = CLASSES
    model: str | None = None
    """The model; else the first linked one."""

    def __post_init__(self) -> None:
        require(self.model != "", "model", self.model, "a model's name, or none")

    def initial(self, models: Sequence[str]) -> Tallies:
        """See `Policy`."""
        return Tallies.none(models)

    def restored(self, data: Mapping[str, Any]) -> Tallies:
        """See `Policy`."""
        return Tallies.from_json(data)

    def relinked(self, state: Tallies, models: Sequence[str]) -> Tallies:
        """See `Policy`."""
        return state.relinked(models)

    def newcomer(self, shared: Tallies) -> Tallies:
        """See `Policy`; user states make no difference."""
        return Tallies.none(shared.models)

    def weights(self, state: Tallies) -> Mapping[str, float]:
        """See `Policy`."""
        chosen = self.model if self.model in state.models else next(iter(state.models), None)
        return {model: float(model == chosen) for model in state.models}

    def select(self, state: Tallies, query: Query, draw: float) -> Choice:  # noqa: ARG002
        """See `Policy`."""
        weights = self.weights(state)
        return one_of(tuple(weights), tuple(weights.values()), draw)

    def combine(self, state: Tallies, choice: Choice, answers: Mapping[str, Answer]) -> Combined:  # noqa: ARG002
        """See `Policy`."""
        return alone(self.task, choice, answers)

    def observe(self, state: Tallies, decision: Decision, truth: Truth) -> Tallies:
        """See `Policy`."""
        return state.observed(losses_of_asked(self.task, decision, truth))


def alone(task: Task, choice: Choice, answers: Mapping[str, Answer]) -> Combined:
    """Return the output of one model."""
    equal = dict.fromkeys(choice.models, 1.0)
    return voting.combined(task, choice, answers, weights=equal, standings=equal, by="scores")


def losses_of_asked(task: Task, decision: Decision, truth: Truth) -> dict[str, float]:
    """Loss of each queried model; a missing output counts as wrong."""
    return {
        model: loss(task, decision.answers.get(model), truth) for model in decision.choice.models
    }
