"""Policy `split`: each model answers its share of the queries, for an A/B comparison.

Shares do not move; losses are counted per model, and the state shows them. By default the share is
one of users, not of queries, so that a person always meets the same model: the place of a user on
the line from 0 to 1 comes from a hash of salt and user. Another salt is another experiment, with
other users on each side. Pure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

from serving.selection.fixed import alone, losses_of_asked
from serving.selection.policy import Choice, Combined, Decision, Query, one_of, require
from serving.selection.prediction import CLASSES, Answer, Task, Truth
from serving.selection.tallies import Tallies

Unit = Literal["user", "query"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Fixed shares."""

    name: ClassVar[str] = "split"

    task: Task = CLASSES
    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Share of each model, in any unit; empty: equal ones. A linked model without a share is not
    asked."""
    by: Unit = "user"
    """What is split; queries without a user are split one by one in both cases."""
    salt: str = ""
    """Name of the experiment."""

    def __post_init__(self) -> None:
        require(self.by in get_args(Unit), "by", self.by, "user or query")
        for model, share in self.shares.items():
            require(
                math.isfinite(share) and share >= 0, f"shares.{model}", share, "0 or a number above"
            )
        require(
            not self.shares or any(share > 0 for share in self.shares.values()),
            "shares",
            dict(self.shares),
            "at least one share above 0",
        )

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
        """See `Policy`; there is nothing that a user's context changes."""
        return Tallies.none(shared.models)

    def weights(self, state: Tallies) -> Mapping[str, float]:
        """See `Policy`; equal where no linked model has a share."""
        shares = {model: self.shares.get(model, 0.0) for model in state.models}
        total = math.fsum(shares.values())
        if total <= 0:
            return {model: 1.0 / len(shares) for model in shares}
        return {model: share / total for model, share in shares.items()}

    def select(self, state: Tallies, query: Query, draw: float) -> Choice:
        """See `Policy`."""
        weights = self.weights(state)
        place = self._place(query.user) if self.by == "user" and query.user else draw
        return one_of(tuple(weights), tuple(weights.values()), place)

    def combine(self, state: Tallies, choice: Choice, answers: Mapping[str, Answer]) -> Combined:  # noqa: ARG002
        """See `Policy`."""
        return alone(self.task, choice, answers)

    def observe(self, state: Tallies, decision: Decision, truth: Truth) -> Tallies:
        """See `Policy`."""
        return state.observed(losses_of_asked(self.task, decision, truth))

    def _place(self, user: str) -> float:
        """Where a user stands in [0, 1)."""
        digest = hashlib.blake2b(f"{self.salt}\0{user}".encode(), digest_size=6).digest()
        return int.from_bytes(digest, "big") / 2**48
