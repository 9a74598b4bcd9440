"""One replica that is a container: its socket, limits and usage, and how it ended.

`as_container` makes these; whoever gets one owns its socket. All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import functools
import signal
import socket
from collections.abc import Callable
from typing import Literal

from serving.errors import LimitsUnavailable, NotReady
from serving.replica import blocking
from serving.replica.cgroups import Group, Usage
from serving.replica.container_engine import ContainerEngine, EngineError, Exit
from serving.replica.ended import Ended, by_code, by_signal, oom_text

_SIGNALLED = 128
"""Exit codes above tell a signal, as far as there are signals: 255 is a program's own."""


class ContainerReplica:
    """One container of a home, told from the others by its worker number."""

    def __init__(self, worker: int, engine: ContainerEngine, kill: Callable[[str], None]) -> None:
        """No container yet.

        Args:
            worker: its number.
            engine: that runs it.
            kill: asks for the end of a container, without waiting for it.
        """
        loop = asyncio.get_running_loop()
        self.worker = worker
        self.pid = 0
        self.features: tuple[str, ...] = ()
        self.ended: asyncio.Future[Ended] = loop.create_future()
        self.container: str | None = None
        """Its id, as soon as it runs."""
        self.ending = asyncio.Event()
        """It was told to end."""
        self._was_killed = False
        self._engine = engine
        self._kill = kill
        self._group: Group | None = None
        self._sock: socket.socket | None = None
        self._memory_mb: int | None = None
        self._limiting = asyncio.Lock()
        self._last_usage = Usage()

    @property
    def sock(self) -> socket.socket:
        """Connected, non-blocking, read up to the end of HELLO; its owner closes it."""
        if self._sock is None:
            raise NotReady(f"replica {self.worker} is not connected")
        return self._sock

    def connected(self, sock: socket.socket) -> None:
        """Its side has connected."""
        self._sock = sock

    def abandon(self) -> None:
        """End a replica that nobody got to see, and close its socket."""
        self.kill()
        if self._sock is not None:
            self._sock.close()

    def made(self, memory_mb: int | None) -> None:
        """It was made with this limit."""
        self._memory_mb = memory_mb

    def runs(self, container: str, pid: int, group: Group | None) -> None:
        """Its container runs; whoever asked for its end in the meantime gets it now.

        Args:
            container: its id.
            pid: its process, 0: it has ended already.
            group: its control group, None where this process cannot see it.
        """
        self.container, self.pid, self._group = container, pid, group
        if self.ending.is_set():
            self._kill(container)

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits and read them back; nothing happens where the engine cannot enforce them.

        Raises:
            LimitsUnavailable: the engine refused, as when memory would fall below what is used.
                A memory limit that there is cannot be lifted.
        """
        if self.container is None or self.ended.done():
            raise LimitsUnavailable(f"replica {self.worker} does not run")
        if memory_mb is None and self._memory_mb is not None:
            raise LimitsUnavailable(
                f"the memory limit of a running container, {self._memory_mb} MiB, cannot be lifted"
            )
        if self._engine.limits_text != "enforced":
            return
        # Goes on where its caller gives up: what the engine was asked for cannot be taken back.
        change = asyncio.ensure_future(self._limited(self.container, cpu, memory_mb))
        change.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.shield(change)
        except EngineError as error:
            raise LimitsUnavailable(str(error)) from error

    async def _limited(self, container: str, cpu: float | None, memory_mb: int | None) -> None:
        """One change after another, so that the engine is left with the last one."""
        async with self._limiting:
            request = functools.partial(self._engine.limit, container, cpu=cpu, memory_mb=memory_mb)
            await blocking.asked(request)
            self._memory_mb = memory_mb

    def usage(self) -> Usage:
        """What it has used so far; after its end, what it had used when it was last asked."""
        if self._group is not None and not self.ended.done():
            usage = self._group.usage()
            if usage.cpu_s is not None:  # of a group that is gone nothing is known
                self._last_usage = usage
        return self._last_usage

    def kill(self, *, asked: bool = True) -> None:
        """End it at once; `ended` follows. May be called again.

        Args:
            asked: whether this is why it ends; False where it is ending already, and shall not linger.
        """
        if self.ended.done():
            return
        self._was_killed = self._was_killed or asked
        if self.container is not None and not self.ending.is_set():
            self._kill(self.container)
        self.ending.set()

    def unheard(self, after_s: float) -> Ended:
        """How it ended, where the engine has not told after so many seconds."""
        reason: Literal["killed", "crash"] = "killed" if self._was_killed else "crash"
        return Ended(reason=reason, text=f"the engine did not tell of its end within {after_s:g} s")

    def ended_by(self, exit_: Exit) -> Ended:
        """How it ended, from the engine's report."""
        number = exit_.code - _SIGNALLED
        if not 0 < number < signal.NSIG:
            return by_code(exit_.code, exit_.said)
        # The engine's word is of the container: a process beside the replica may have been the one.
        oom = oom_text(None, self._memory_mb) if exit_.oom else None
        return by_signal(number, oom=oom, asked=self._was_killed)
