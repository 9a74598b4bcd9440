"""Replica in a container: its life, limits and exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
from typing import Literal

from serving.errors import LimitsUnavailable
from serving.spawners.base_replica import BaseReplica
from serving.spawners.docker.container_spec import ContainerSpec, Exit
from serving.spawners.docker.containers import ContainerGone, DockerClient, DockerError
from serving.spawners.exit_status import ExitStatus, from_code, from_signal, oom_text
from serving.system.cgroups import manager
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

NEVER_STARTED = ExitStatus(reason="crash", text="it was never started")
_RETRY_S = 0.5
_UNHEARD_S = 10.0
"""Time to wait for the end of a container that was told to end, before giving up on it."""
_SIGNALLED = 128
"""Offset of signal numbers in exit codes; 255 is a program's own code."""


class ContainerReplica(BaseReplica):
    """Replica that runs as a Docker container. Not thread-safe."""

    def __init__(self, engine: DockerClient, spec: ContainerSpec) -> None:
        super().__init__(spec.worker)
        self.spec = spec
        self.container: str | None = None
        """Id of the container, once it runs."""
        self.started = asyncio.Event()
        """Set once the engine has said that the container runs, which its replica may say earlier."""
        self._engine = engine
        self._memory_mb = spec.memory_mb
        self._ending = asyncio.Event()
        self._limiting = asyncio.Lock()

    async def run(self) -> ExitStatus:
        """Create and start the container; return its exit status once it has stopped."""
        container = await run_in_daemon_thread(self._engine.create, self.spec)
        if self._ending.is_set():
            return NEVER_STARTED
        pid = await run_in_daemon_thread(self._engine.start, container)  # 0: it has ended already
        self.container, self.pid = container, pid
        self.started.set()
        self.group = manager.group_of(pid) if pid else None
        if self._ending.is_set():
            run_in_daemon_thread(self._kill, container)
        told = asyncio.create_task(self._wait_for_exit(container))
        ending = asyncio.create_task(self._ending.wait())
        try:
            await asyncio.wait({told, ending}, return_when=asyncio.FIRST_COMPLETED)
            # An unreachable engine matters only now.
            await asyncio.wait({told}, timeout=_UNHEARD_S)
            if told.done():
                return told.result()
        finally:
            told.cancel()
            ending.cancel()
        reason: Literal["killed", "crash"] = "killed" if self.was_killed else "crash"
        text = f"the engine did not report its end within {_UNHEARD_S:g} s"
        return ExitStatus(reason=reason, text=text)

    async def _wait_for_exit(self, container: str) -> ExitStatus:
        while True:
            try:
                found = await run_in_daemon_thread(self._engine.wait, container)
            except ContainerGone:
                return ExitStatus(reason="crash", text="somebody removed its container")
            except DockerError:  # the socket shows whether it lives
                await asyncio.sleep(_RETRY_S)
            else:
                if found is not None:
                    return self._status_of(found)

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits; do nothing if the engine cannot enforce them.

        Raises LimitsUnavailable, for example if the memory limit is below current use or is lifted.
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
        """Apply changes one after another, so that the last change holds."""
        async with self._limiting:
            limit = self._engine.limit
            await run_in_daemon_thread(limit, container, cpu=cpu, memory_mb=memory_mb)
            self._memory_mb = memory_mb

    def _request_end(self) -> None:
        if self.container is not None and not self._ending.is_set():
            run_in_daemon_thread(self._kill, self.container)
        self._ending.set()

    def _kill(self, container: str) -> None:
        try:
            self._engine.kill(container)
        except DockerError as error:  # it will be removed
            facts = {"container": container, "error": str(error)}
            log.warning("a container was not stopped", extra=facts)

    def _status_of(self, exit_: Exit) -> ExitStatus:
        number = exit_.code - _SIGNALLED
        if not 0 < number < signal.NSIG:
            return from_code(exit_.code, exit_.said)
        # The engine's OOM flag covers the container: another process may have been killed.
        oom = oom_text(None, self._memory_mb) if exit_.oom else None
        return from_signal(number, oom=oom, asked=self.was_killed)
