"""What a short probe of a model saw: the figures from which a search space is derived.

In: measurements of one replica with one thread, no quota and no memory limit, at a few batch sizes.
Out: one checked value. Pure: the hub does the probing.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tuner.space.environment import Machine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One replica under generous limits."""

    model: str
    """Name or file of the model."""
    concurrency: int
    machine: Machine
    idle_memory_mb: float
    """MiB of a replica that is ready and has served nothing."""
    peak_memory_mb: Mapping[int, float]
    """Batch size -> largest MiB of the replica; 1 is among the sizes."""
    cpu_cores_used: float
    """Cores that it used while it was busy."""
    service_time_s: Mapping[int, float]
    """Batch size -> seconds that the replica took for a batch; 1 is among the sizes."""
    whole: str = ""
    """Why the model is served whole, one request at a time: then there is nothing to batch; empty: it is not."""
    client_batch: int = 1
    """Items in each request."""
    pads: bool = False
    """Whether requests differ in size, and can be filled up to one without changing an answer."""

    @property
    def items(self) -> int:
        """Items in flight at any time."""
        return self.concurrency * self.client_batch

    def __post_init__(self) -> None:
        if self.concurrency < 1 or self.client_batch < 1:
            raise ValueError(
                f"concurrency {self.concurrency}, client batch {self.client_batch}: "
                "expected at least 1"
            )
        for name in ("peak_memory_mb", "service_time_s"):
            sizes = sorted(getattr(self, name))
            if not sizes or sizes[0] != 1:
                raise ValueError(f"{name} is known for batch sizes {sizes}, expected 1 and larger")
        figures = [*self.peak_memory_mb.values(), *self.service_time_s.values()]
        figures += [self.cpu_cores_used, self.idle_memory_mb]
        if not all(figure > 0 and math.isfinite(figure) for figure in figures):
            raise ValueError(f"times, memory and CPU use are above 0, got {figures}: probe again")
