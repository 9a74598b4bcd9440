"""One replica in a pool: what it was started with, its state, its limits; and what is told when it dies."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import Any

from serving.dispatch import Connection
from serving.errors import LimitsUnavailable
from serving.pool.home import Replica
from serving.settings import AcceleratorSettings, ModelSettings, ReplicaSettings, ServingSettings

log = logging.getLogger(__name__)


class Member:
    """One replica in the pool."""

    __slots__ = (
        "accelerator",
        "connection",
        "failure",
        "leaving",
        "limits",
        "max_items",
        "model",
        "pad_to",
        "pages",
        "ready",
        "replica",
        "state",
        "worker",
    )

    def __init__(
        self,
        worker: int,
        limits: ReplicaSettings,
        accelerator: AcceleratorSettings,
        model: ModelSettings,
        pad_to: int | None,
        max_items: int,
        pages: int | None,
    ) -> None:
        self.worker = worker
        self.limits = limits
        self.accelerator = accelerator
        self.model = model
        """Which form of the model it loads, and what is known of its inputs."""
        self.pad_to = pad_to
        """To a multiple of which it fills up requests of different sizes; None: it does not."""
        self.max_items = max_items
        """Items of the largest batch that it is warmed up with."""
        self.pages = pages
        """Memory for models that come and go; None: as many as there are."""
        self.replica: Replica | None = None
        self.connection: Connection | None = None
        self.state = "starting"
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.leaving = False
        """New settings do without it; its end says nothing about them."""
        self.failure: tuple[str, str] | None = None
        """Why it ended unasked: reason, text."""

    def facts(self) -> dict[str, Any]:
        """As plain data: worker, pid, state, usage."""
        usage = self.replica.usage() if self.replica is not None else None
        return {
            "worker": self.worker,
            "pid": self.replica.pid if self.replica is not None else None,
            "state": self.state,
            "peak_memory_mb": usage.peak_memory_mb if usage else None,
            "cpu_s": usage.cpu_s if usage else None,
            "throttled_s": usage.throttled_s if usage else None,
        }

    def can_become(self, settings: ServingSettings) -> bool:
        """Whether it can take the wanted settings while it lives.

        What memory it used it does not give back, its model is loaded, and what it sees of the GPU is settled when
        its runtime begins.
        """
        now, wanted = self.limits, settings.replica
        seen, shall_see = self.accelerator, settings.accelerator
        if (seen.device, seen.share) != (shall_see.device, shall_see.share):
            return False
        if (self.model, self.pad_to) != (settings.model, settings.batching.pad_to):
            return False
        if now.threads != wanted.threads or now.home != wanted.home:
            return False
        if wanted.memory_mb is None or now.memory_mb == wanted.memory_mb:
            return True
        return now.memory_mb is not None and wanted.memory_mb > now.memory_mb

    async def limit(self, wanted: ReplicaSettings) -> bool:
        """Set limits on a living replica; False when the kernel refuses, and a new one is needed."""
        assert self.replica is not None
        if (self.limits.cpu, self.limits.memory_mb) != (wanted.cpu, wanted.memory_mb):
            before, self.limits = self.limits, wanted  # it may come to pass though we give up
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
    """A replica that ended unasked."""

    worker: int
    reason: str
    text: str
    at_s: float
    """Unix time, for people."""
