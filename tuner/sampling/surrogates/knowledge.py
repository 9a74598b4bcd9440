"""Prior knowledge of candidates on the log scale: predictions and earlier evaluations."""

from __future__ import annotations

import dataclasses

from tuner.sampling.arrays import Array


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WarmStart:
    """Evaluations (k,) of the same model under other workloads."""

    vectors: Array  # (k, d)
    context: Array  # (k, c) differences of their workloads
    targets: Array  # (k,) log objectives, without what the workload's size explains
    errors: Array  # (k,) standard error within each evaluation; NaN if unknown
    own_context: Array  # (c,) of the study itself
    prediction: Array | None = None
    """Log predictions (k,) under these workloads."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PriorKnowledge:
    """Predictions and earlier evaluations; nothing by default."""

    prior_mean: Array | None = None
    """Log predicted objectives (m,) of the candidates."""
    warm_start: WarmStart | None = None
    latency: Array | None = None
    """Log predicted mean latencies (m,), for metric constraints."""


NO_PRIOR_KNOWLEDGE = PriorKnowledge()
