"""A replica that outlived its gateway, and comes back to the next one with the models that it holds.

In: what its template, or the label of its container, has kept of it. Out: whether it is back, and what it holds.
`as_process` and `as_container` make these. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from serving.errors import ReplicaStartFailed
from serving.replica.container import ContainerReplica
from serving.replica.process import Replica
from serving.replica.wire import HeldModel, HelloMessage


class LeftReplica:
    """One replica, until somebody takes it or its home ends it."""

    def __init__(
        self,
        replica: Replica | ContainerReplica,
        kept: Mapping[str, Any],
        greeting: asyncio.Task[HelloMessage | None],
    ) -> None:
        self.replica = replica
        self.kept = kept
        """What the gateway that started it wanted the next one to know."""
        self._greeting = greeting

    async def held(self, within_s: float) -> tuple[HeldModel, ...] | None:
        """The models that it holds; None where it has not come back in time, and is of no use.

        One that was in the midst of a batch or a load ends that first.
        """
        await asyncio.wait({self._greeting}, timeout=within_s)
        try:
            hello = self._greeting.result() if self._greeting.done() else None
        except (ReplicaStartFailed, OSError):  # it has ended, or no socket is left for it
            return None
        return None if hello is None else hello.models

    async def end(self) -> None:
        """Nobody takes it."""
        self._greeting.cancel()
        await asyncio.gather(self._greeting, return_exceptions=True)
        self.replica.abandon()
