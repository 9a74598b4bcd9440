"""Process replica: its socket, limits, usage and exit status.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from serving.errors import NotReady
from serving.spawners.exit_status import ExitStatus, from_code, from_signal, oom_text
from serving.spawners.process.forkserver_client import ForkServerClient
from serving.system.cgroups.cgroup import ControlGroup, Usage


class ProcessReplica:
    """One process of a spawner."""

    def __init__(self, worker: int, forker: ForkServerClient, group: ControlGroup | None) -> None:
        loop = asyncio.get_running_loop()
        self.worker = worker
        self.pid = 0
        self.features: tuple[str, ...] = ()
        """From its HELLO."""
        self.ended: asyncio.Future[ExitStatus] = loop.create_future()
        self.started: asyncio.Future[int] = loop.create_future()
        """Its pid, once it exists."""
        self.forker = forker
        self.group = group
        self._sock: socket.socket | None = None
        self._memory_mb: int | None = None
        self.ordered = False
        """Whether the fork server was asked for it and will report its end."""
        self._was_killed = False
        self._last_usage = Usage()

    @property
    def sock(self) -> socket.socket:
        """See `pool.spawner.Replica`."""
        if self._sock is None:
            raise NotReady(f"replica {self.worker} is not connected")
        return self._sock

    def set_socket(self, sock: socket.socket) -> None:
        """Set the accepted connection."""
        self._sock = sock

    def abandon(self) -> None:
        """Kill a replica that failed to start; close its socket."""
        self.kill()
        if self._sock is not None:
            self._sock.close()

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits; a no-op if they cannot be enforced.

        Raises:
            LimitsUnavailable: refused, e.g. memory below current use; the old limits hold.
        """
        self.limit(cpu=cpu, memory_mb=memory_mb)

    def limit(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Do as `set_limits`, synchronously."""
        if self.group is not None:
            self.group.set_limits(cpu=cpu, memory_mb=memory_mb)
        self._memory_mb = memory_mb

    def usage(self) -> Usage:
        """Return the usage so far, or the last one known."""
        if self.group is not None and not self.ended.done():
            self._last_usage = self.group.usage()
        return self._last_usage

    def kill(self, *, asked: bool = True) -> None:
        """Kill it; `ended` follows. `asked` is False if it is ending anyway."""
        if not self.ended.done():
            self._was_killed = self._was_killed or asked
            self.forker.kill(self.worker)

    def ended_by(self, event: Mapping[str, Any]) -> ExitStatus:
        """Return the exit status, from the fork server's event and the group's OOM kills."""
        number = event.get("signal")
        if number is None:
            return from_code(event["code"])
        oom = None
        if self.group is not None and self.group.oom_kills():
            oom = oom_text(self.group.usage().peak_memory_mb, self._memory_mb)
        return from_signal(number, oom=oom, asked=self._was_killed)
