"""Container replica: its socket, limits, usage and exit status.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from typing import Literal

from serving.errors import LimitsUnavailable, NotReady
from serving.spawners.docker.container_spec import Exit
from serving.spawners.docker.containers import DockerClient, DockerError
from serving.spawners.exit_status import ExitStatus, from_code, from_signal, oom_text
from serving.system.cgroups.cgroup import ControlGroup, Usage
from serving.system.daemon_threads import run_in_daemon_thread

_SIGNALLED = 128
"""Offset of signal numbers in exit codes; 255 is a program's own code."""


class ContainerReplica:
    """One container of a spawner."""

    def __init__(self, worker: int, engine: DockerClient, kill: Callable[[str], None]) -> None:
        """Create no container yet; `kill` requests a container's end without waiting."""
        loop = asyncio.get_running_loop()
        self.worker = worker
        self.pid = 0
        self.features: tuple[str, ...] = ()
        self.ended: asyncio.Future[ExitStatus] = loop.create_future()
        self.container: str | None = None
        """Its id, once it runs."""
        self.ending = asyncio.Event()
        """Set when its end is requested."""
        self._was_killed = False
        self._engine = engine
        self._kill = kill
        self._group: ControlGroup | None = None
        self._sock: socket.socket | None = None
        self._memory_mb: int | None = None
        self._limiting = asyncio.Lock()
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

    def record_memory_limit(self, memory_mb: int | None) -> None:
        """Record the memory limit of the created container."""
        self._memory_mb = memory_mb

    def runs(self, container: str, pid: int, group: ControlGroup | None) -> None:
        """Record that it runs; kill it if its end was requested meanwhile.

        `pid` is 0 if it has ended already, `group` None if it is not visible.
        """
        self.container, self.pid, self._group = container, pid, group
        if self.ending.is_set():
            self._kill(container)

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits; a no-op if the engine cannot enforce them.

        Raises:
            LimitsUnavailable: refused, e.g. memory below current use, or lifting a memory limit.
        """
        if self.container is None or self.ended.done():
            raise LimitsUnavailable(f"replica {self.worker} is not running")
        if memory_mb is None and self._memory_mb is not None:
            raise LimitsUnavailable(
                f"the memory limit of a running container, {self._memory_mb} MiB, cannot be lifted"
            )
        if self._engine.limits_text != "enforced":
            return
        # Continues if the caller is cancelled: the engine's change cannot be undone.
        change = asyncio.ensure_future(self._change_limits(self.container, cpu, memory_mb))
        change.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(change)
        except DockerError as error:
            raise LimitsUnavailable(str(error)) from error

    async def _change_limits(
        self, container: str, cpu: float | None, memory_mb: int | None
    ) -> None:
        """Change limits one at a time, so that the last one holds."""
        async with self._limiting:
            limit = self._engine.limit
            await run_in_daemon_thread(limit, container, cpu=cpu, memory_mb=memory_mb)
            self._memory_mb = memory_mb

    def usage(self) -> Usage:
        """Return the usage so far, or the last one known."""
        if self._group is not None and not self.ended.done():
            usage = self._group.usage()
            if usage.cpu_s is not None:  # None: the group is gone
                self._last_usage = usage
        return self._last_usage

    def kill(self, *, asked: bool = True) -> None:
        """Kill it; `ended` follows. `asked` is False if it is ending anyway."""
        if self.ended.done():
            return
        self._was_killed = self._was_killed or asked
        if self.container is not None and not self.ending.is_set():
            self._kill(self.container)
        self.ending.set()

    def unheard(self, after_s: float) -> ExitStatus:
        """Return the exit status if the engine has not reported one for `after_s`."""
        reason: Literal["killed", "crash"] = "killed" if self._was_killed else "crash"
        return ExitStatus(
            reason=reason, text=f"the engine did not report its end within {after_s:g} s"
        )

    def ended_by(self, exit_: Exit) -> ExitStatus:
        """Return the exit status from the engine's report."""
        number = exit_.code - _SIGNALLED
        if not 0 < number < signal.NSIG:
            return from_code(exit_.code, exit_.said)
        # The engine's OOM flag covers the container: another process may have been killed.
        oom = oom_text(None, self._memory_mb) if exit_.oom else None
        return from_signal(number, oom=oom, asked=self._was_killed)
