"""Replica facts from `GET /admin/replicas`: memory, CPU time, throttling and deaths.

Times are in seconds, memory in MiB; None if unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFact:
    """Facts about one replica since its start."""

    pid: int | None
    """Process id, or None while the replica starts."""
    peak_memory_mb: float | None
    cpu_s: float | None
    throttled_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportedDeath:
    """Unplanned end of a replica since the last apply."""

    reason: str
    """Reason that the engine reports, such as oom, crash or hang."""
    text: str
    who: str = "a replica"
    """What ended, in words."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """Facts about all replicas at one time."""

    replicas: tuple[ReplicaFact, ...]
    deaths: tuple[ReportedDeath, ...]
    refusals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of rejected requests by reason, if models share replicas."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the running replicas."""
        return tuple(replica.pid for replica in self.replicas if replica.pid is not None)

    @property
    def peak_memory_mb(self) -> float | None:
        """Largest peak memory of any replica."""
        return max(self._known("peak_memory_mb"), default=None)

    @property
    def cpu_s(self) -> float | None:
        """Total CPU time of the replicas."""
        return sum(known) if (known := self._known("cpu_s")) else None

    @property
    def throttled_s(self) -> float | None:
        """Total time for which replicas were throttled by their CPU quota."""
        return sum(known) if (known := self._known("throttled_s")) else None

    def _known(self, name: str) -> list[float]:
        found = [getattr(replica, name) for replica in self.replicas]
        return [value for value in found if value is not None]

    def died_of(self, reason: str) -> ReportedDeath | None:
        """Return the latest death with this reason, or None."""
        return next((death for death in reversed(self.deaths) if death.reason == reason), None)


def parse(response: Mapping[str, Any]) -> ReplicaFacts:
    """Parse a response of the admin port; raise KeyError or TypeError if malformed."""
    return ReplicaFacts(
        replicas=tuple(
            ReplicaFact(
                pid=None if replica["pid"] is None else int(replica["pid"]),
                peak_memory_mb=replica.get("peak_memory_mb"),
                cpu_s=replica.get("cpu_s"),
                throttled_s=replica.get("throttled_s"),
            )
            for replica in response["replicas"]
        ),
        deaths=tuple(
            ReportedDeath(reason=str(death["reason"]), text=str(death["text"]))
            for death in response["deaths"]
        ),
    )
