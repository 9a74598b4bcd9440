"""One replica of a pool: its settings, state, limits and death."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.pool.spawner import Replica
from serving.errors import LimitsUnavailable
from serving.settings import ServingSettings
from serving.settings.replica import ReplicaSettings

log = logging.getLogger(__name__)


class Member:
    """One replica of the pool."""

    def __init__(
        self, worker: int, settings: ServingSettings, *, max_items: int, pages: int | None
    ) -> None:
        self.worker = worker
        self.limits = settings.replica
        self.accelerator = settings.accelerator
        self.model = settings.model
        self.pad_to = settings.batching.pad_to
        self.max_items = max_items
        self.pages = pages
        self.replica: Replica | None = None
        self.connection: ReplicaConnection | None = None
        self.state = "starting"
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving = False
        """Whether new settings removed the replica, so that its end is not a failure."""
        self.evicted = False
        """Whether its machine is to be emptied: it leaves as soon as another is ready."""
        self.failure: tuple[str, str] | None = None

    def facts(self) -> dict[str, Any]:
        """Return worker, pid, state and usage as plain data."""
        usage = self.replica.usage() if self.replica is not None else None
        return {
            "worker": self.worker,
            "pid": self.replica.pid if self.replica is not None else None,
            "node": self.replica.node_name if self.replica is not None else "",
            "state": self.state,
            "peak_memory_mb": usage.peak_memory_mb if usage else None,
            "cpu_s": usage.cpu_s if usage else None,
            "throttled_s": usage.throttled_s if usage else None,
        }

    def can_change_to(self, settings: ServingSettings) -> bool:
        """Return whether the replica can take these settings without a restart."""
        now, wanted = self.limits, settings.replica
        seen, shall_see = self.accelerator, settings.accelerator
        if (seen.device, seen.share) != (shall_see.device, shall_see.share):
            return False
        if (self.model, self.pad_to) != (settings.model, settings.batching.pad_to):
            return False
        if (now.threads, now.spawner) != (wanted.threads, wanted.spawner):
            return False
        if wanted.memory_mb is None or now.memory_mb == wanted.memory_mb:
            return True
        return now.memory_mb is not None and wanted.memory_mb > now.memory_mb

    def become_ready(self) -> None:
        """Mark the replica as ready for batches."""
        self.state = "ready"
        self.ready.set_result(None)

    def connection_lost(self, fault: str | None) -> None:
        """End the replica; a fault is recorded as its failure."""
        replica = self.replica
        if fault is not None:
            self.failure = ("crash", fault)
        if self.state != "ended" and replica is not None and not replica.ended.done():
            replica.kill(asked=fault is not None)

    def kill_if_hung(self, now_s: float) -> None:
        """Kill the replica if one batch or model load takes too long."""
        connection, replica = self.connection, self.replica
        sent_s = None if connection is None else connection.oldest_sent_s
        if self.state != "ready" or connection is None or replica is None or sent_s is None:
            return
        limit_s = self.limits.hang_timeout_s
        text = f"a batch ran for over {limit_s:g} s (replica.hang_timeout_s)"
        if connection.is_loading:
            limit_s = self.limits.ready_timeout_s
            text = f"a load took over {limit_s:g} s (replica.ready_timeout_s)"
        if now_s - sent_s > limit_s:
            self.failure = ("hang", text)
            replica.kill()

    async def limit(self, wanted: ReplicaSettings) -> bool:
        """Set limits; return False if they are refused and a new replica is needed."""
        assert self.replica is not None
        if (self.limits.cpu, self.limits.memory_mb) != (wanted.cpu, wanted.memory_mb):
            before, self.limits = self.limits, wanted  # may still happen if cancelled
            try:
                await self.replica.set_limits(cpu=wanted.cpu, memory_mb=wanted.memory_mb)
            except LimitsUnavailable as error:
                log.info("limits need a new replica", extra={"error": str(error)})
                self.limits = before
                return False
        self.limits = wanted
        return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A replica's unexpected end."""

    worker: int
    reason: str
    text: str
    at_s: float
