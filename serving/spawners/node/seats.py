"""Seats: places for replicas on machines, which an engine such as Ray gives and takes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol


class Address(NamedTuple):
    """A node agent that can be dialled."""

    node: str
    """Name of the machine, as the engine tells it."""
    host: str
    port: int
    certificate: str | None = None
    """PEM of the only certificate that it shows; None: without TLS."""


class Resources(NamedTuple):
    """What a replica reserves on its machine."""

    cpu: float
    """Cores."""
    memory_mb: int | None
    gpu: float
    """GPUs, or the part of one."""


class Seat(Protocol):
    """Place that is reserved for one replica, until it is given back."""

    address: Address
    gpu: str | None
    """Index or UUID of the reserved GPU on its machine; None: no GPU."""

    @property
    def leaving(self) -> asyncio.Future[str]:
        """Done with the reason once the machine is to be emptied."""
        ...

    def give_back(self) -> None:
        """Give the place back."""
        ...


class Cluster(Protocol):
    """Machines of an engine."""

    async def open(self) -> None:
        """Connect to the engine.

        Raises:
            ReplicaStartFailed: it cannot be reached.
        """
        ...

    async def seat(self, wanted: Resources, on_waiting: Callable[[str], None]) -> Seat:
        """Reserve a place; wait for a machine if there is none, and say so with `on_waiting`."""
        ...

    def avoid(self, address: Address) -> None:
        """Prefer other machines for a time that grows: this one was lost, or a start there failed.

        The engine may not know of either.
        """
        ...

    def trust(self, address: Address) -> None:
        """Forget what `avoid` was told of a machine: a start there has worked."""
        ...

    async def close(self) -> None:
        """Give everything back."""
        ...
