"""Where replicas live, and one of them, as a pool sees them. Only their form."""

from __future__ import annotations

import asyncio
import pathlib
import socket
from typing import Protocol

from serving.replica.cgroups import Usage
from serving.replica.ended import Ended
from serving.settings import AcceleratorSettings
from serving.values import ModelCard


class Replica(Protocol):
    """One replica of a home: alive, limited, connected and greeted."""

    worker: int
    pid: int
    """Its process as this machine numbers it, 0 where that is not known."""
    features: tuple[str, ...]
    """What its HELLO promised."""
    ended: asyncio.Future[Ended]

    @property
    def sock(self) -> socket.socket:
        """Connected, non-blocking, read up to the end of HELLO; its owner closes it."""
        ...

    async def set_limits(self, *, cpu: float | None, memory_mb: int | None) -> None:
        """Change the limits and read them back.

        Raises:
            LimitsUnavailable: they were refused; the old ones hold.
        """
        ...

    def usage(self) -> Usage:
        """What it has used so far; after its end, what it had used at the last."""
        ...

    def kill(self, *, asked: bool = True) -> None:
        """End it at once; `ended` follows."""
        ...


class Home(Protocol):
    """Where replicas live; see `serving.replica.as_process` and `as_container`."""

    @property
    def limits_text(self) -> str:
        """The word "enforced", or "not enforced: " and why."""
        ...

    @property
    def software(self) -> str:
        """What tells the programs of its replicas from this installation's: an image's id; empty where none are."""
        ...

    async def open(self, kind: str) -> None:
        """Make ready for replicas that run models of a kind."""
        ...

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        accelerator: AcceleratorSettings,
        card: ModelCard | None,
    ) -> Replica:
        """Start a replica: alive, limited, connected and greeted; without a card for models that are lent."""
        ...

    async def lend(self, card: ModelCard) -> pathlib.Path | None:
        """Let replicas that were started without a card read a model's files.

        Returns:
            Below which folder they find them; None: where they are.

        Raises:
            ServingError: they cannot be laid out for them.
        """
        ...

    async def take_back(self, root: pathlib.Path | None) -> None:
        """What `lend` returned is needed no more."""
        ...

    async def close(self) -> None:
        """End all replicas and remove all traces."""
        ...
