"""Protocols of a spawner and its replicas, as a pool sees them."""

from __future__ import annotations

import asyncio
import pathlib
import socket
from typing import Protocol

from serving.model_spec import ModelSpec
from serving.settings.replica import AcceleratorSettings
from serving.spawners.exit_status import ExitStatus
from serving.system.cgroups.cgroup import Usage


class Replica(Protocol):
    """Replica that is alive, limited and connected."""

    worker: int
    pid: int
    """Its pid on this machine, 0 if unknown."""
    features: tuple[str, ...]
    ended: asyncio.Future[ExitStatus]

    @property
    def sock(self) -> socket.socket:
        """Connected, non-blocking socket, read up to the end of HELLO; its owner closes it."""
        ...

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits and read them back.

        Raises:
            LimitsUnavailable: refused; the old ones hold.
        """
        ...

    def usage(self) -> Usage:
        """Usage so far; after the end, the last one."""
        ...

    def kill(self, *, asked: bool = True) -> None:
        """Kill it; `ended` follows."""
        ...


class Spawner(Protocol):
    """Spawner of replicas, as processes or as containers (`serving.spawners`)."""

    @property
    def limits_text(self) -> str:
        """Either "enforced", or "not enforced: " and the reason."""
        ...

    @property
    def image_id(self) -> str:
        """Image id of the replicas; empty: they run this installation."""
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
    ) -> Replica:
        """Start a replica until it is alive, limited and connected.

        Args:
            worker: a new number in this spawner.
            cpu: cores; None: no limit.
            memory_mb: MiB; None: no limit.
            accelerator: its view of the GPU.
            spec: the model it will load or, of kind command, become; None: staged models.
        """
        ...

    async def stage(self, spec: ModelSpec) -> pathlib.Path | None:
        """Stage a model's files for replicas without a model; return their root there, if changed.

        Raises:
            ServingError: they cannot be staged.
        """
        ...

    async def unstage(self, root: pathlib.Path | None) -> None:
        """Unstage what `stage` returned."""
        ...

    async def close(self) -> None:
        """End all replicas and clean up."""
        ...
