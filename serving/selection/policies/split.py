"""Policy `split`: each model gets a fixed share of users or queries, for A/B comparisons.

Users are split by a hash of salt and user name.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

from serving.selection.model_output import require
from serving.selection.policies.error_counts import ErrorCounts
from serving.selection.policies.one_model import Counting
from serving.selection.policy import Choice, Query, one_of

Unit = Literal["user", "query"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split(Counting):
    """Policy with a fixed share per model."""

    name: ClassVar[str] = "split"

    shares: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Share per model, in any unit; if empty, all are equal."""
    by: Unit = "user"
    salt: str = ""

    def __post_init__(self) -> None:
        require(self.by in get_args(Unit), "by", self.by, "user or query")
        for model, share in self.shares.items():
            require(
                math.isfinite(share) and share >= 0,
                f"shares.{model}",
                share,
                "a number of 0 or more",
            )
        require(
            not self.shares or any(share > 0 for share in self.shares.values()),
            "shares",
            dict(self.shares),
            "at least one share above 0",
        )

    def weights(self, state: ErrorCounts) -> Mapping[str, float]:
        """Return the shares, or equal shares if none are given."""
        shares = {model: self.shares.get(model, 0.0) for model in state.models}
        total = math.fsum(shares.values())
        if total <= 0:
            return {model: 1.0 / len(shares) for model in shares}
        return {model: share / total for model, share in shares.items()}

    def select(self, state: ErrorCounts, query: Query, draw: float) -> Choice:
        """Draw one model; if `by` is `user`, each user always gets the same one."""
        weights = self.weights(state)
        place = self._place(query.user) if self.by == "user" and query.user else draw
        return one_of(tuple(weights), tuple(weights.values()), place)

    def _place(self, user: str) -> float:
        digest = hashlib.blake2b(f"{self.salt}\0{user}".encode(), digest_size=6).digest()
        return int.from_bytes(digest, "big") / 2**48
