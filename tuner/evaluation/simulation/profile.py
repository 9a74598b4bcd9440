"""Cost profile of one model on one machine, in seconds, as `evaluation.profiler` measures it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchCost:
    """Costs of batches of one size at one thread count, in a lone, unlimited replica."""

    threads: int
    size: int
    service_s: float
    """Time per batch in a replica that always has another batch waiting."""
    cpu_s: float
    gateway_s: float | None
    """CPU time of the gateway per request, or None if unknown."""
    client_s: float | None
    """CPU time of the load generator per request, or None if unknown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CostProfile:
    """Costs of one model on one machine."""

    batches: tuple[BatchCost, ...]
    """Costs of all measured batches, including single items with one thread."""
    client_batch: int
    seconds: float

    @property
    def threads(self) -> tuple[int, ...]:
        """Measured thread counts, ascending."""
        return tuple(sorted({batch.threads for batch in self.batches}))

    def of(self, threads: int) -> tuple[BatchCost, ...]:
        """Return the costs at the nearest thread count, ordered by size."""
        nearest = min(self.threads, key=lambda known: (abs(known - threads), known))
        found = [batch for batch in self.batches if batch.threads == nearest]
        return tuple(sorted(found, key=lambda batch: batch.size))

    def faster(self, factor: float) -> Self:
        """Return the profile with batch times divided by `factor`, per-request costs unchanged."""
        batches = tuple(
            dataclasses.replace(
                batch, service_s=batch.service_s / factor, cpu_s=batch.cpu_s / factor
            )
            for batch in self.batches
        )
        return dataclasses.replace(self, batches=batches)

    def as_json(self) -> dict[str, Any]:
        """Return plain data to save as JSON."""
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
        """Return the profile that `as_json` saved."""
        return cls(
            client_batch=data["client_batch"],
            seconds=data["seconds"],
            batches=tuple(BatchCost(**batch) for batch in data["batches"]),
        )
