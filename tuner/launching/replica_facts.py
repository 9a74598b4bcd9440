"""Replica facts from `GET /admin/replicas`: memory, CPU time, throttling and deaths.

In seconds and MiB; None if unknown.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFact:
    """One replica since its start."""

    pid: int | None
    """None while it starts."""
    state: str
    peak_memory_mb: float | None
    cpu_s: float | None
    throttled_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReportedDeath:
    """Unplanned end of a replica since the last apply."""

    reason: str
    """The engine's reason, such as oom, crash or hang."""
    text: str
    who: str = "a replica"
    """What ended, in words."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaFacts:
    """All replicas at one moment."""

    replicas: tuple[ReplicaFact, ...]
    deaths: tuple[ReportedDeath, ...]
    refusals: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Reason -> rejected requests, where models share replicas."""

    @property
    def pids(self) -> tuple[int, ...]:
        """Running processes."""
        return tuple(replica.pid for replica in self.replicas if replica.pid is not None)

    @property
    def peak_memory_mb(self) -> float | None:
        """Largest memory of a replica."""
        known = [
            replica.peak_memory_mb
            for replica in self.replicas
            if replica.peak_memory_mb is not None
        ]
        return max(known, default=None)

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all replicas."""
        known = [replica.cpu_s for replica in self.replicas if replica.cpu_s is not None]
        return sum(known) if known else None

    @property
    def throttled_s(self) -> float | None:
        """Time that CPU quotas stopped all replicas."""
        known = [
            replica.throttled_s for replica in self.replicas if replica.throttled_s is not None
        ]
        return sum(known) if known else None

    def died_of(self, reason: str) -> ReportedDeath | None:
        """Return the newest death with that reason."""
        return next((death for death in reversed(self.deaths) if death.reason == reason), None)


def parse(response: Mapping[str, Any]) -> ReplicaFacts:
    """Parse a response of the admin port.

    Raises:
        KeyError, TypeError: it has another form.
    """
    return ReplicaFacts(
        replicas=tuple(
            ReplicaFact(
                pid=None if replica["pid"] is None else int(replica["pid"]),
                state=str(replica["state"]),
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
