"""One replica that is a process: its socket, limits and usage, and how it ended.

`as_process` makes these; whoever gets one owns its socket. All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import Any

from serving.errors import NotReady
from serving.replica.cgroups import Group, Usage
from serving.replica.ended import Ended, by_code, by_signal, oom_text
from serving.replica.forker import Forker


class Replica:
    """One process of a home, told from the others by its worker number."""

    def __init__(self, worker: int, forker: Forker, group: Group | None) -> None:
        loop = asyncio.get_running_loop()
        self.worker = worker
        self.pid = 0
        self.features: tuple[str, ...] = ()
        """What its HELLO promised."""
        self.ended: asyncio.Future[Ended] = loop.create_future()
        self.started: asyncio.Future[int] = loop.create_future()
        """Its pid, as soon as there is a process."""
        self.forker = forker
        self.group = group
        self._sock: socket.socket | None = None
        self._memory_mb: int | None = None
        self.ordered = False
        """Whether the template was asked for it: only then will its end be told."""
        self._was_killed = False
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

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits and read them back; nothing happens where limits cannot be enforced.

        Raises:
            LimitsUnavailable: the kernel refused, as when memory would fall below what is used; the
                old limits hold.
        """
        self.limit(cpu=cpu, memory_mb=memory_mb)

    def limit(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """As `set_limits`, which waits for nothing here: the kernel answers at once."""
        if self.group is not None:
            self.group.set_limits(cpu=cpu, memory_mb=memory_mb)
        self._memory_mb = memory_mb

    def usage(self) -> Usage:
        """What it has used so far; after its end, what it had used at the last."""
        if self.group is not None and not self.ended.done():
            self._last_usage = self.group.usage()
        return self._last_usage

    def kill(self, *, asked: bool = True) -> None:
        """End it at once; `ended` follows. May be called again.

        Args:
            asked: whether this is why it ends; False where it is ending already, and shall not linger.
        """
        if not self.ended.done():
            self._was_killed = self._was_killed or asked
            self.forker.kill(self.worker)

    def ended_by(self, event: Mapping[str, Any]) -> Ended:
        """How it ended, from the template's report and the group's count of kills for memory."""
        number = event.get("signal")
        if number is None:
            return by_code(event["code"])
        oom = None
        if self.group is not None and self.group.oom_kills():
            oom = oom_text(self.group.usage().peak_memory_mb, self._memory_mb)
        return by_signal(number, oom=oom, asked=self._was_killed)
