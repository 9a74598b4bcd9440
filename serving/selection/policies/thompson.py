"""Policy `thompson`: query each model in proportion to its probability of being the best.

Mean losses have Beta posteriors; a loss counts as a fraction of a failure (Agrawal and Goyal 2012,
arXiv:1111.1797, flip a coin instead). Posterior draws are fixed, so logged probabilities are exact.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from serving.selection.model_output import require
from serving.selection.policies.error_counts import ErrorCounts, require_memory
from serving.selection.policies.one_model import Learning
from serving.selection.policy import require_costs

_DRAWS = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Thompson(Learning):
    """Thompson sampling, computed as probabilities."""

    name: ClassVar[str] = "thompson"

    failures: float = 1.0
    successes: float = 1.0

    def __post_init__(self) -> None:
        require_memory(self.memory)
        require_costs(self.costs)
        require(self.failures > 0, "failures", self.failures, "a number above 0")
        require(self.successes > 0, "successes", self.successes, "a number above 0")

    def weights(self, state: ErrorCounts) -> Mapping[str, float]:
        """Return each model's probability of being the best."""
        failures = tuple(self.failures + loss for loss in state.losses)
        successes = tuple(
            # Rounding may push a loss sum slightly above its count.
            self.successes + max(0.0, count - loss)
            for count, loss in zip(state.counts, state.losses, strict=True)
        )
        costs = tuple(self.costs.get(model, 0.0) for model in state.models)
        shares = _best(failures, successes, costs)
        return dict(zip(state.models, shares, strict=True))


@functools.lru_cache(maxsize=1024)
def _best(
    failures: tuple[float, ...], successes: tuple[float, ...], costs: tuple[float, ...]
) -> tuple[float, ...]:
    if not failures:
        return ()
    rng = np.random.default_rng(0)
    prices = rng.beta(failures, successes, size=(_DRAWS, len(failures))) + np.array(costs)
    wins = np.bincount(prices.argmin(axis=1), minlength=len(failures))
    return tuple((wins / _DRAWS).tolist())
