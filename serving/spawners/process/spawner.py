"""Spawner of replicas as processes of this machine.

One fork server forks the replicas. They die with it; the next start makes a new one. It cleans up
after a `kill -9` of the gateway; if it was killed too, the next spawner does.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import pathlib
import shutil
import signal
import socket
from collections.abc import Mapping
from typing import Any

from serving import wire
from serving.accelerator import devices, mps
from serving.errors import NotReady
from serving.model_spec import ModelSpec, Program
from serving.settings.replica import AcceleratorSettings
from serving.spawners import handshake
from serving.spawners.base_replica import BaseReplica
from serving.spawners.exit_status import ExitStatus, from_code, from_signal, oom_text
from serving.spawners.process.forkserver_client import ForkServerClient
from serving.system import process_identity
from serving.system.cgroups.cgroup import ControlGroup
from serving.system.cgroups.manager import (
    CgroupManager,
    CgroupSupport,
    cleanup_stale,
    own_group,
)

log = logging.getLogger(__name__)

WARM_TIMEOUT_S = 60.0
OF_POD = "of the whole server"
"""Limits of replicas that have none of their own (`replica.limits`)."""
_END_S = 5.0
_REMOVAL_S = 2.0
_RETRY_S = 0.005


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _ForkServerSession:
    forker: ForkServerClient
    directory: pathlib.Path
    limits: CgroupManager


class ProcessReplica(BaseReplica):
    """Replica that runs as a local process. Not thread-safe."""

    def __init__(self, worker: int, forker: ForkServerClient, group: ControlGroup | None) -> None:
        super().__init__(worker, group)
        self.forker = forker
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Process id, once the process exists."""
        self.ordered = False
        """Whether the fork server was asked to start the process and will report its end."""

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits; do nothing if they cannot be enforced.

        Raises LimitsUnavailable, for example if the memory limit is below current use.
        """
        if self.group is not None:
            self.group.set_limits(cpu=cpu, memory_mb=memory_mb)
        self._memory_mb = memory_mb

    def ended_by(self, event: Mapping[str, Any], *, whole: WholeServer | None) -> ExitStatus:
        """Return the exit status, from the fork server's event and the OOM kills of its group.

        Without a group of its own, those of the server count, if it is limited as a `whole`.
        """
        number = event.get("signal")
        if number is None:
            return from_code(event["code"])
        oom = None
        if self.group is not None and self.group.oom_kills():
            oom = oom_text(self.group.usage().peak_memory_mb, self._memory_mb)
        elif whole is not None and number == signal.SIGKILL and whole.takes_oom_kill():
            oom = "the kernel killed it for memory of the whole server; raise replica.memory_mb"
        return from_signal(number, oom=oom, asked=self.was_killed)

    def _request_end(self) -> None:
        self.forker.kill(self.worker)


class WholeServer:
    """OOM kills in the group of this server, each of which explains the end of one replica."""

    def __init__(self) -> None:
        self._group = own_group()
        self._told = 0 if self._group is None else self._group.oom_kills()

    def takes_oom_kill(self) -> bool:
        """Whether there was a kill that explains no end yet; it then explains this one."""
        if self._group is None or self._group.oom_kills() <= self._told:
            return False
        self._told += 1
        return True


class ProcessSpawner:
    """Spawner of local processes for one gateway and model kind. Not thread-safe."""

    def __init__(
        self, *, warm_timeout_s: float = WARM_TIMEOUT_S, has_own_limits: bool = True
    ) -> None:
        """Prepare; without `has_own_limits`, the server as a whole is limited by whoever started it."""
        self._warm_timeout_s = warm_timeout_s
        self._has_own_limits = has_own_limits
        self._whole = None if has_own_limits else WholeServer()
        self._kind: str | None = None
        self._nest: _ForkServerSession | None = None
        self._making = asyncio.Lock()
        self._support = CgroupSupport(kind=None, reason="the spawner is not open")
        self._replicas: dict[int, ProcessReplica] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._said_no_sharing = False
        self.image_id = ""
        """Empty, as replicas run this installation."""

    @property
    def limits_text(self) -> str:
        """See `Spawner.limits_text`."""
        return self._support.text if self._has_own_limits else OF_POD

    async def open(self, kind: str) -> None:
        """Clean up after killed gateways; start the fork server, or raise ReplicaStartFailed."""
        for path in cleanup_stale():
            log.info("removed what a killed gateway left behind", extra={"path": str(path)})
        self._kind = kind
        await self._living_nest()
        if self._support.kind is None and self._has_own_limits:
            log.warning("limits are not enforced", extra={"reason": self._support.reason})

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        spec: ModelSpec | None,
        accelerator: AcceleratorSettings | None = None,
        may_wait: bool = False,  # noqa: ARG002  there is always a place
        gpu: str | None = None,
    ) -> ProcessReplica:
        """Start a replica (see `Spawner.start`); if cancelled, end it.

        It sees the given GPU (index or UUID); by default, those of this process.
        """
        nest = await self._living_nest()
        environment = self._environment(accelerator or AcceleratorSettings(), gpu)
        group = nest.limits.group(worker)
        replica = ProcessReplica(worker, nest.forker, group)
        try:
            await replica.set_limits(cpu=cpu, memory_mb=memory_mb)
        except BaseException:
            if group is not None:
                nest.limits.remove(group)
            raise
        self._replicas[worker] = replica
        program = None if spec is None else spec.program
        replica.moves = program is None
        try:
            async with handshake.ready_within(replica, ready_timeout_s):
                await self._connect(replica, nest, environment, program)
        finally:
            if not replica.ordered:
                self._finish(replica, ExitStatus(reason="crash", text="it was never started"))
        return replica

    async def stage(self, _spec: ModelSpec) -> pathlib.Path | None:
        """Do nothing: replicas see all files."""
        return None

    async def unstage(self, _root: pathlib.Path | None) -> None:
        """Do nothing: nothing was staged."""

    async def close(self) -> None:
        """End all replicas and the fork server. May be called again."""
        self._kind = None
        async with self._making:
            for replica in self._replicas.values():
                replica.kill()
            endings = [replica.ended for replica in self._replicas.values()]
            if endings:
                await asyncio.wait(endings, timeout=_END_S)
            await self._remove_nest()

    # The fork server

    async def _living_nest(self) -> _ForkServerSession:
        async with self._making:
            if self._kind is None:
                raise NotReady("the spawner is not open")
            if self._nest is None or not self._nest.forker.is_alive:
                await self._remove_nest()
                self._nest = await self._new_nest(self._kind)
            return self._nest

    async def _new_nest(self, kind: str) -> _ForkServerSession:
        name = process_identity.this_process().new_name()
        limits = CgroupManager(name)
        directory = process_identity.make_directory(name)
        try:
            if self._has_own_limits:
                self._support = limits.open()
            forker = await ForkServerClient.launch(
                kind,
                directory,
                limits.directories,
                on_event=self._heard,
                timeout_s=self._warm_timeout_s,
            )
        except BaseException:
            limits.close()
            shutil.rmtree(directory, ignore_errors=True)
            raise
        if not forker.forks:
            log.warning("replicas start slowly: their runtime starts threads when it is imported")
        return _ForkServerSession(forker=forker, directory=directory, limits=limits)

    async def _remove_nest(self) -> None:
        nest, self._nest = self._nest, None
        if nest is None:
            return
        await nest.forker.close()
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=_END_S)
        if not await asyncio.to_thread(nest.limits.close):
            log.warning("control groups remain", extra={"path": str(nest.limits.directories)})
        shutil.rmtree(nest.directory, ignore_errors=True)

    # Starting a replica

    def _environment(self, accelerator: AcceleratorSettings, gpu: str | None) -> dict[str, str]:
        lacking = None if accelerator.share is None else mps.lacking(os.environ)
        if lacking is not None and not self._said_no_sharing:
            self._said_no_sharing = True
            log.warning("accelerator.share has no effect", extra={"reason": lacking})
        return devices.replica_environment(accelerator, shares=lacking is None, gpu=gpu)

    async def _connect(
        self,
        replica: ProcessReplica,
        nest: _ForkServerSession,
        environment: Mapping[str, str],
        program: Program | None,
    ) -> None:
        path = nest.directory / f"{replica.worker}.sock"
        with handshake.listen(path) as listener:
            procs = replica.group.procs_files if replica.group is not None else ()
            nest.forker.start(
                replica.worker, path=path, procs=procs, environment=environment, program=program
            )
            replica.ordered = True
            await handshake.while_alive(replica, _greet(replica, listener))

    # Events of the fork server

    def _heard(self, forker: ForkServerClient, event: Mapping[str, Any]) -> None:
        if event["event"] == "closed":
            ended = ExitStatus(reason="crash", text="its fork server ended, and it with it")
            for replica in list(self._replicas.values()):
                if replica.forker is forker:
                    self._finish(replica, ended)
            return
        replica = self._replicas[event["worker"]]
        if event["event"] == "started":
            replica.started.set_result(event["pid"])
        else:
            self._finish(replica, replica.ended_by(event, whole=self._whole))

    def _finish(self, replica: ProcessReplica, ended: ExitStatus) -> None:
        del self._replicas[replica.worker]
        replica.usage()
        task = asyncio.ensure_future(self._remove_group(replica, ended))
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _remove_group(self, replica: ProcessReplica, ended: ExitStatus) -> None:
        nest, group = self._nest, replica.group
        if group is not None and nest is not None:
            until_s = asyncio.get_running_loop().time() + _REMOVAL_S
            while not nest.limits.clear(group):
                if asyncio.get_running_loop().time() > until_s:
                    log.warning("a control group remains", extra={"worker": replica.worker})
                    break
                await asyncio.sleep(_RETRY_S)
        replica.ended.set_result(ended)


async def _greet(replica: ProcessReplica, listener: socket.socket) -> None:
    replica.pid = await asyncio.shield(replica.started)
    pid = await handshake.greet(replica, listener)
    if pid is not None and pid != replica.pid:
        raise wire.WireError(
            f"its HELLO comes from process {pid}, but {replica.pid} was started; a "
            "script that starts a program must `exec` it"
        )
