"""Process replica: its limits and exit status.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from serving.spawners.base_replica import BaseReplica
from serving.spawners.exit_status import ExitStatus, from_code, from_signal, oom_text
from serving.spawners.process.forkserver_client import ForkServerClient
from serving.system.cgroups.cgroup import ControlGroup


class ProcessReplica(BaseReplica):
    """One process of a spawner."""

    def __init__(self, worker: int, forker: ForkServerClient, group: ControlGroup | None) -> None:
        super().__init__(worker, group)
        self.forker = forker
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Its pid, once it exists."""
        self.ordered = False
        """Whether the fork server was asked for it and will report its end."""

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits; a no-op if they cannot be enforced.

        Raises:
            LimitsUnavailable: refused, e.g. memory below current use; the old limits hold.
        """
        if self.group is not None:
            self.group.set_limits(cpu=cpu, memory_mb=memory_mb)
        self._memory_mb = memory_mb

    def ended_by(self, event: Mapping[str, Any]) -> ExitStatus:
        """Return the exit status, from the fork server's event and the group's OOM kills."""
        number = event.get("signal")
        if number is None:
            return from_code(event["code"])
        oom = None
        if self.group is not None and self.group.oom_kills():
            oom = oom_text(self.group.usage().peak_memory_mb, self._memory_mb)
        return from_signal(number, oom=oom, asked=self._was_killed)

    def _request_end(self) -> None:
        self.forker.kill(self.worker)
