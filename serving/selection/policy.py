"""Interface of selection policies, and the values that they exchange.

A policy is a frozen set of options, and what it has learned is a frozen state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from serving.selection.model_output import ModelOutput, TrueLabel, require


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A policy's view of a query."""

    id: int
    user: str = ""
    """User name; if empty, the shared state is used."""
    input_hash: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The selected models."""

    models: tuple[str, ...]
    probabilities: Mapping[str, float]
    """Each linked model's probability of being queried."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """The models' combined output."""

    output: str | float | None
    """Label or number; None if no output arrived."""
    confidence: float
    """Share of the models' weight behind the output; missing models count against it."""
    agreement: float
    """Support in [0, 1] from models with an output, weighted by probability and accuracy."""
    used: tuple[str, ...]
    missing: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Facts about an answered query that feedback needs."""

    query: Query
    choice: Choice
    answers: Mapping[str, ModelOutput]
    """Outputs that arrived in time, by model."""
    output: str | float | None
    is_default: bool = False


class PolicyState(Protocol):
    """A policy's learned state: a frozen dataclass whose fields can be written as JSON."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def models(self) -> tuple[str, ...]:
        """Linked models, in the order of linking."""
        ...


S = TypeVar("S", bound=PolicyState)


class Policy(Protocol[S]):
    """Selects models, combines their outputs and learns."""

    name: ClassVar[str]

    def initial(self, models: Sequence[str]) -> S:
        """Return the initial state."""
        ...

    def parse_state(self, data: Mapping[str, Any]) -> S:
        """Parse a state's fields, as `dataclasses.asdict` and JSON give them.

        Raises:
            ValueError, KeyError, TypeError: `data` is not a state of this policy.
        """
        ...

    def relink(self, state: S, models: Sequence[str]) -> S:
        """Return the state for other models, keeping what was learned."""
        ...

    def initial_for_user(self, shared: S) -> S:
        """Return a new user's initial state."""
        ...

    def weights(self, state: S) -> Mapping[str, float]:
        """Return the models' current weights, which sum to 1."""
        ...

    def select(self, state: S, query: Query, draw: float) -> Choice:
        """Select some of the linked models, of which there is at least one; `draw` is in [0, 1)."""
        ...

    def combine(self, state: S, choice: Choice, responses: Mapping[str, ModelOutput]) -> Combined:
        """Combine outputs; queried models not in `responses` are missing."""
        ...

    def observe(self, state: S, decision: Decision, truth: TrueLabel) -> S:
        """Return the state after feedback."""
        ...


def require_costs(costs: Mapping[str, float]) -> None:
    """Check costs.

    Raises:
        InvalidSettings: a cost is outside [0, 1].
    """
    for model, cost in costs.items():
        require(
            0 <= cost <= 1, f"costs.{model}", cost, "0 to 1, in the unit of loss: 0.01 is worth 1 %"
        )


def sample_index(probabilities: Sequence[float], draw: float) -> int:
    """Return the index that a draw in [0, 1) selects."""
    last, reached = 0, 0.0
    for index, probability in enumerate(probabilities):
        if probability > 0.0:
            last = index
            reached += probability
            if draw < reached:
                return index
    return last


def one_of(models: Sequence[str], probabilities: Sequence[float], draw: float) -> Choice:
    """Select one model by a draw in [0, 1)."""
    return Choice(
        models=(models[sample_index(probabilities, draw)],),
        probabilities=dict(zip(models, probabilities, strict=True)),
    )
