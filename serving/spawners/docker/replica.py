"""Container replica: its limits and exit status.

All methods belong to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Literal

from serving.errors import LimitsUnavailable
from serving.spawners.base_replica import BaseReplica
from serving.spawners.docker.container_spec import Exit
from serving.spawners.docker.containers import DockerClient, DockerError
from serving.spawners.exit_status import ExitStatus, from_code, from_signal, oom_text
from serving.system.cgroups.cgroup import ControlGroup
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

_SIGNALLED = 128
"""Offset of signal numbers in exit codes; 255 is a program's own code."""


class ContainerReplica(BaseReplica):
    """One container of a spawner."""

    def __init__(self, worker: int, engine: DockerClient, memory_mb: int | None) -> None:
        """Create no container yet; it will be created with `memory_mb`."""
        super().__init__(worker)
        self.container: str | None = None
        """Its id, once it runs."""
        self.ending = asyncio.Event()
        """Set when its end is requested."""
        self._engine = engine
        self._memory_mb = memory_mb
        self._limiting = asyncio.Lock()

    def runs(self, container: str, pid: int, group: ControlGroup | None) -> None:
        """Record that it runs; kill it if its end was requested meanwhile.

        `pid` is 0 if it has ended already, `group` None if it is not visible.
        """
        self.container, self.pid, self.group = container, pid, group
        if self.ending.is_set():
            run_in_daemon_thread(self._kill, container)

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

    def _request_end(self) -> None:
        if self.container is not None and not self.ending.is_set():
            run_in_daemon_thread(self._kill, self.container)
        self.ending.set()

    def _kill(self, container: str) -> None:
        try:
            self._engine.kill(container)
        except DockerError as error:  # it will be removed
            facts = {"container": container, "error": str(error)}
            log.warning("a container was not stopped", extra=facts)

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
