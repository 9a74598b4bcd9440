"""Interfaces of a spawner and its replicas, as a pool uses them."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable
from typing import Protocol

from serving.model_spec import ModelSpec
from serving.settings.replica import AcceleratorSettings
from serving.spawners.exit_status import ExitStatus
from serving.system.cgroups.cgroup import Usage
from serving.system.remote_clock import RemoteClock


class Replica(Protocol):
    """A replica that is alive and connected, with its limits in force."""

    worker: int
    pid: int
    """Process id on this machine; 0 if unknown."""
    features: tuple[str, ...]
    ended: asyncio.Future[ExitStatus]

    clock: RemoteClock
    """Clock of the replica's machine."""
    node_name: str
    """Name of the replica's machine; empty: this one."""
    leaving: asyncio.Future[str]
    """Done with the reason once the replica's machine is to be emptied."""

    async def attach(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Connect a protocol to the replica, which has been read to the end of HELLO.

        Raises:
            OSError: the connection is lost, or cannot be secured.
        """
        ...

    def root_of(self, root: pathlib.Path | None) -> pathlib.Path | None:
        """Return where the replica finds files that `Spawner.stage` named `root`.

        None stands for the files of the model for which it was started.
        """
        ...

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits and read them back.

        Raises:
            LimitsUnavailable: the limits are refused; the old ones stay in force.
        """
        ...

    def usage(self) -> Usage:
        """Return the resource usage so far or, after the replica's end, the last known one."""
        ...

    def kill(self, *, asked: bool = True) -> None:
        """Kill the replica without waiting."""
        ...


class Spawner(Protocol):
    """Spawner of replicas as processes or containers (`serving.spawners`)."""

    @property
    def limits_text(self) -> str:
        """Whether limits hold: "enforced", or "not enforced: " and the reason."""
        ...

    @property
    def image_id(self) -> str:
        """Id of the replicas' image, or empty if they run this installation."""
        ...

    async def open(self, kind: str) -> None:
        """Prepare for replicas of a model kind."""
        ...

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        accelerator: AcceleratorSettings,
        spec: ModelSpec | None,
        may_wait: bool,
    ) -> Replica:
        """Start a replica, and return once it is alive, limited and connected.

        It takes at most `ready_timeout_s`, as long again if a place has to be waited for, and the
        time in which files are sent to another machine.

        Args:
            worker: worker id that is new in this spawner.
            cpu: number of cores; None means no limit.
            memory_mb: memory in MiB; None means no limit.
            accelerator: GPU settings for the replica.
            spec: model that the replica will load or, for the `command` kind, run as its program;
                None if models are staged later.
            may_wait: whether to wait for a place for as long as it takes.

        Raises:
            ReplicaStartFailed: it did not start, or there is no place for it.
        """
        ...

    async def stage(self, spec: ModelSpec) -> pathlib.Path | None:
        """Stage a model's files for shared replicas; return their new root, or None if not moved.

        Raises:
            ServingError: the files cannot be staged.
        """
        ...

    async def unstage(self, root: pathlib.Path | None) -> None:
        """Remove the staged files below a root that `stage` returned."""
        ...

    async def close(self) -> None:
        """End all replicas and clean up."""
        ...
