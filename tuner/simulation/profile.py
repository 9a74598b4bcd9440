"""What one model costs on one machine: a batch by its size and threads, a request in gateway and client.

Pure values; `tuner.profiling` measures them, a surface keeps them, the simulators read them. Seconds
throughout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """A batch of one size with one number of threads, one replica alone, without limits."""

    threads: int
    size: int
    service_s: float
    """Wall time of a replica that always has another batch waiting."""
    cpu_s: float
    """CPU time of the replica."""
    gateway_s: float | None
    """CPU time of the gateway per request in such batches; None where it is not told."""
    client_s: float | None
    """CPU time of the load generator per request."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One model on one machine."""

    batches: tuple[BatchCost, ...]
    """At least that of single items with one thread."""
    client_batch: int
    seconds: float
    """What it took to measure."""

    @property
    def threads(self) -> tuple[int, ...]:
        """Numbers of threads that were measured, ascending."""
        return tuple(sorted({batch.threads for batch in self.batches}))

    def of(self, threads: int) -> tuple[BatchCost, ...]:
        """Costs with the nearest number of threads, by size."""
        nearest = min(self.threads, key=lambda known: (abs(known - threads), known))
        found = [batch for batch in self.batches if batch.threads == nearest]
        return tuple(sorted(found, key=lambda batch: batch.size))

    def faster(self, factor: float) -> Self:
        """The profile of a model whose batches take a share of the time; a request's own costs stay."""
        batches = tuple(
            dataclasses.replace(
                batch, service_s=batch.service_s / factor, cpu_s=batch.cpu_s / factor
            )
            for batch in self.batches
        )
        return dataclasses.replace(self, batches=batches)

    def as_json(self) -> dict[str, Any]:
        """Plain data for a file."""
        return {
            "client_batch": self.client_batch,
            "seconds": round(self.seconds, 2),
            "batches": [
                {
                    name: float(f"{value:.4g}") if isinstance(value, float) else value
                    for name, value in dataclasses.asdict(batch).items()
                }
                for batch in self.batches
            ],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of `as_json`."""
        return cls(
            client_batch=data["client_batch"],
            seconds=data["seconds"],
            batches=tuple(BatchCost(**batch) for batch in data["batches"]),
        )
