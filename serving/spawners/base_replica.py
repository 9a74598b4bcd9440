"""Common base of process and container replicas."""

from __future__ import annotations

import asyncio
import pathlib
import socket
from collections.abc import Callable

from serving.errors import NotReady
from serving.spawners.exit_status import ExitStatus
from serving.system.cgroups.cgroup import ControlGroup, Usage
from serving.system.remote_clock import RemoteClock


class BaseReplica:
    """Replica that a spawner started. Not thread-safe."""

    def __init__(self, worker: int, group: ControlGroup | None = None) -> None:
        self.worker = worker
        self.pid = 0
        self.features: tuple[str, ...] = ()
        self.ended: asyncio.Future[ExitStatus] = asyncio.get_running_loop().create_future()
        self.group = group
        """Control group of the replica; None if it has none or its group is not visible."""
        self.clock = RemoteClock()
        """Clock of the replica's machine."""
        self.node_name = ""
        """Name of the replica's machine; empty: this one."""
        self.leaving: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done with the reason once the replica's machine is to be emptied."""
        self._sock: socket.socket | None = None
        self._memory_mb: int | None = None
        self.moves = False
        """Whether a node agent may move it to a connection, which tells it the agent's key."""
        self.was_killed = False
        """Whether the gateway asked for its end."""
        self._last_usage = Usage()

    @property
    def sock(self) -> socket.socket:
        """Accepted connection from the replica; the caller closes it."""
        if self._sock is None:
            raise NotReady(f"replica {self.worker} is not connected")
        return self._sock

    def set_socket(self, sock: socket.socket) -> None:
        """Set the accepted connection."""
        self._sock = sock

    async def attach(self, make: Callable[[], asyncio.Protocol]) -> None:
        """See `Replica.attach`."""
        await asyncio.get_running_loop().create_unix_connection(make, sock=self.sock)

    def root_of(self, root: pathlib.Path | None) -> pathlib.Path | None:
        """See `Replica.root_of`."""
        return root

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """See `Replica.set_limits`."""
        raise NotImplementedError

    def usage(self) -> Usage:
        """Return the resource usage so far, or the last known usage once the group is gone."""
        if self.group is not None and not self.ended.done():
            usage = self.group.usage()
            if usage.cpu_s is not None:  # None: the group is gone
                self._last_usage = usage
        return self._last_usage

    def kill(self, *, asked: bool = True) -> None:
        """Kill the replica without waiting; `asked` is False if it is ending anyway."""
        if not self.ended.done():
            self.was_killed = self.was_killed or asked
            self._request_end()

    def abandon(self) -> None:
        """Kill a replica that failed to start, and close its socket."""
        self.kill()
        if self._sock is not None:
            self._sock.close()

    def _request_end(self) -> None:
        """Make the replica end without waiting; may be called again."""
        raise NotImplementedError
