"""Policy `fixed`: one model responds to every query, and its errors are counted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar

from serving.selection.model_output import require
from serving.selection.policies.error_counts import ErrorCounts
from serving.selection.policies.one_model import Counting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fixed(Counting):
    """A policy that always queries the same model."""

    name: ClassVar[str] = "fixed"

    model: str | None = None
    """Name of the model; None means the first linked one."""

    def __post_init__(self) -> None:
        require(self.model != "", "model", self.model, "a model's name, or none")

    def weights(self, state: ErrorCounts) -> Mapping[str, float]:
        """Return weight 1 for the fixed model and 0 for others."""
        chosen = self.model if self.model in state.models else next(iter(state.models), None)
        return {model: float(model == chosen) for model in state.models}
