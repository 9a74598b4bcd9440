"""What a selection policy is, and the values that it takes and gives.

A policy is a frozen value with its options; it keeps nothing. What it has learnt is a state, a
frozen value of its own that every method takes and `observe` returns anew:

    select(state, query, draw) -> Choice          whom to ask
    combine(state, choice, answers) -> Combined   what their answers amount to
    observe(state, decision, truth) -> State      what the feedback teaches

Chance is `draw`, a number in [0, 1) that the caller has drawn, so the same call gives the same
choice. Models are named by strings. It must not know how models are asked, nor how late it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from serving.errors import InvalidSettings
from serving.selection.prediction import Answer, Truth, as_plain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a policy may know of a query."""

    id: int
    user: str = ""
    """Context of the state; empty: everybody's."""
    input_hash: str = ""
    """Of the input's bytes; joins feedback that names no query."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Whom to ask."""

    models: tuple[str, ...]
    probabilities: Mapping[str, float]
    """For each linked model the probability with which it was to be asked."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What the answers amount to."""

    output: str | float | None
    """A label or a number; None: nothing has arrived."""
    confidence: float
    """In [0, 1]: agreement weighted by the policy; what is missing agrees with nothing."""
    agreement: float
    """In [0, 1]: how far those that answered support the output, by their probability of it, each
    counted by how often it is right. Here a model that has won all the weight does not speak for
    the others. 1 of one."""
    used: tuple[str, ...]
    """Models whose answers made the output."""
    missing: tuple[str, ...]
    """Models that were asked and have not answered."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One query as it was decided: what feedback needs to teach something."""

    query: Query
    choice: Choice
    answers: Mapping[str, Answer]
    """What arrived in time."""
    output: str | float | None
    is_default: bool = False

    def as_json(self) -> dict[str, Any]:
        """Plain data, for logs and for people."""
        return {
            "query_id": self.query.id,
            "user": self.query.user,
            "input_hash": self.query.input_hash,
            "asked": list(self.choice.models),
            "probabilities": dict(self.choice.probabilities),
            "answers": {model: as_plain(answer) for model, answer in self.answers.items()},
            "output": self.output,
            "default": self.is_default,
        }


class State(Protocol):
    """What a policy has learnt."""

    @property
    def models(self) -> tuple[str, ...]:
        """The linked models, in the order in which they were linked."""
        ...

    def as_json(self) -> dict[str, Any]:
        """Plain data from which the policy restores an equal state."""
        ...


S = TypeVar("S", bound=State)


class Policy(Protocol[S]):
    """How models are chosen and combined."""

    name: ClassVar[str]
    """As the registry knows it."""

    def initial(self, models: Sequence[str]) -> S:
        """The state that has learnt nothing."""
        ...

    def restored(self, data: Mapping[str, Any]) -> S:
        """Inverse of a state's `as_json`.

        Raises:
            ValueError, KeyError, TypeError: it is not the JSON form of a state of this policy.
        """
        ...

    def relinked(self, state: S, models: Sequence[str]) -> S:
        """The state for other models: what was learnt of those that stay is kept.

        A new one begins in the middle: neither best nor worst.
        """
        ...

    def newcomer(self, shared: S) -> S:
        """Where a user begins of whom nothing is known, given what all users taught together."""
        ...

    def weights(self, state: S) -> Mapping[str, float]:
        """How much each model counts now; they sum to 1."""
        ...

    def select(self, state: S, query: Query, draw: float) -> Choice:
        """Whom to ask; there is at least one linked model, and `draw` is in [0, 1)."""
        ...

    def combine(self, state: S, choice: Choice, answers: Mapping[str, Answer]) -> Combined:
        """What has arrived, as one answer; models asked and not in `answers` are missing."""
        ...

    def observe(self, state: S, decision: Decision, truth: Truth) -> S:
        """The state after feedback; models that are no longer linked teach nothing."""
        ...


def require(holds: bool, option: str, value: object, expected: str) -> None:
    """Check one option.

    Raises:
        InvalidSettings: it does not hold.
    """
    if not holds:
        raise InvalidSettings(f"{option} = {value!r:.200}, expected {expected}")


def require_costs(costs: Mapping[str, float]) -> None:
    """Check costs.

    Raises:
        InvalidSettings: one is negative, or above 1.
    """
    for model, cost in costs.items():
        require(
            0 <= cost <= 1, f"costs.{model}", cost, "0 to 1, in the unit of loss: 0.01 is worth 1 %"
        )


def drawn(probabilities: Sequence[float], draw: float) -> int:
    """The index that a draw in [0, 1) falls on; never one of probability 0."""
    last, reached = 0, 0.0
    for index, probability in enumerate(probabilities):
        if probability > 0.0:
            last = index
            reached += probability
            if draw < reached:
                return index
    return last


def one_of(models: Sequence[str], probabilities: Sequence[float], draw: float) -> Choice:
    """The choice of exactly one model."""
    return Choice(
        models=(models[drawn(probabilities, draw)],),
        probabilities=dict(zip(models, probabilities, strict=True)),
    )
