"""Deployments taken out of service: each is drained, and then its replicas are ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from serving.deployment.deployment import Deployment

log = logging.getLogger(__name__)

RETIRE_S = 30.0
"""Seconds in which a replaced or withdrawn deployment's requests must end."""


class DrainingDeployments:
    """Deployments that are ending, each with a task."""

    def __init__(self, give_up_pools: Callable[[], Awaitable[None]]) -> None:
        self._give_up_pools = give_up_pools
        self._tasks: dict[asyncio.Task[None], Deployment] = {}

    def all(self) -> tuple[Deployment, ...]:
        """Return the deployments that have not ended."""
        return tuple(self._tasks.values())

    def begin(self, served: Deployment, within_s: float) -> asyncio.Task[None]:
        """Drain a deployment for at most `within_s`, then end it; return the task."""
        ending = asyncio.create_task(self._end(served, within_s), name=f"end {served.id}")
        self._tasks[ending] = served
        ending.add_done_callback(self._tasks.pop)
        return ending

    async def cancel(self) -> tuple[Deployment, ...]:
        """Stop draining; return the deployments, which the caller must close."""
        served = self.all()
        endings = tuple(self._tasks)
        for ending in endings:
            ending.cancel()
        await asyncio.gather(*endings, return_exceptions=True)
        return served

    async def _end(self, served: Deployment, within_s: float) -> None:
        facts = {"model": served.id.name, "version": served.id.version}
        try:
            if not await served.drain(within_s):
                log.warning("not drained in time", extra=facts)
        finally:
            try:
                await served.close()
                await self._give_up_pools()
            except Exception:  # perhaps nobody awaits this task
                log.exception("a version has not ended", extra=facts)
