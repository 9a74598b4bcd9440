"""Result of a short probe, from which a search space is derived."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tuner.space.environment import Machine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """Measurements of one replica with one thread and no limits, at some batch sizes."""

    model: str
    concurrency: int
    machine: Machine
    idle_memory_mb: float
    """MiB of a ready replica before its first request."""
    peak_memory_mb: Mapping[int, float]
    """Peak MiB by batch size, including size 1."""
    cpu_cores_used: float
    service_time_s: Mapping[int, float]
    """Seconds per batch by batch size, including size 1."""
    whole: str = ""
    """Why the model is unbatched; empty if it is batched."""
    client_batch: int = 1
    pads: bool = False
    """Whether requests differ in size and may be padded without changing responses."""

    @property
    def items(self) -> int:
        """Number of items in flight."""
        return self.concurrency * self.client_batch

    def __post_init__(self) -> None:
        figures = [*self.peak_memory_mb.values(), *self.service_time_s.values()]
        figures += [self.cpu_cores_used, self.idle_memory_mb]
        if not all(figure > 0 and math.isfinite(figure) for figure in figures):
            raise ValueError(f"times, memory and CPU use are above 0, got {figures}: probe again")
