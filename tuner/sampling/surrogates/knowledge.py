"""Prior knowledge of candidates: predictions, and evaluations of earlier studies.

On the log scale, in the study's axes; made by `tuner.study.prediction` and
`tuner.study.warm_start`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WarmStart:
    """k evaluations of the same model under other workloads."""

    vectors: Array  # (k, d)
    context: Array  # (k, c) differences of their workloads
    targets: Array  # (k,) log objectives, without what the workload's size explains
    errors: Array  # (k,) standard error within each evaluation; NaN if unknown
    prediction: Array | None
    """(k,) log predictions under their workload."""
    own_context: Array  # (c,) of the study itself

    def __post_init__(self) -> None:
        lengths = {len(self.vectors), len(self.context), len(self.targets), len(self.errors)}
        if len(lengths) > 1:
            raise ValueError(f"columns of unequal length: {sorted(lengths)}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriorKnowledge:
    """Predictions and earlier evaluations; nothing by default."""

    prior_mean: Array | None = None
    """(m,) log predicted objectives of the candidates."""
    warm_start: WarmStart | None = None
    latency: Array | None = None
    """(m,) log predicted mean latencies, for metric constraints."""


NO_PRIOR_KNOWLEDGE = PriorKnowledge()
