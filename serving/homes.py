"""The homes of replicas, one per kind of model: a template process imports one runtime, an image holds one.

In: model cards. Out: open homes, made when the first model of a kind is served and kept until the end,
warm for the next one. Belongs to the event loop's thread.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Callable, Iterator

from serving.errors import ReplicaStartFailed
from serving.pool import Home
from serving.replica.as_container import ContainerHome
from serving.replica.as_process import ProcessHome
from serving.settings import ReplicaSettings
from serving.values import ModelCard


def maker(settings: ReplicaSettings) -> Callable[[], Home]:
    """What makes the homes that the settings ask for."""
    if settings.home == "docker":
        return functools.partial(ContainerHome, settings.image)
    return ProcessHome


class Homes:
    """All homes of one gateway."""

    def __init__(self, make: Callable[[], Home] = ProcessHome) -> None:
        """No home is open yet; `make` makes them."""
        self._make = make
        self._homes: dict[str, Home] = {}
        self._opening = asyncio.Lock()
        self.workers: Iterator[int] = itertools.count(1)
        """Numbers for replicas, each given once."""

    async def of(self, card: ModelCard) -> Home:
        """The open home of replicas that run a model.

        Raises:
            ReplicaStartFailed: it cannot be opened.
        """
        async with self._opening:
            home = self._homes.get(card.kind)
            if home is None:
                home = self._homes[card.kind] = await self._opened(card.kind)
            return home

    async def _opened(self, kind: str) -> Home:
        home = self._make()
        try:
            await home.open(kind)
        except BaseException as error:
            await home.close()
            if isinstance(error, OSError):  # no descriptor left, no room for its files
                text = f"a home for replicas cannot be made: {error}"
                raise ReplicaStartFailed("crash", text) from error
            raise
        return home

    @property
    def limits_text(self) -> str:
        """The word "enforced", or "not enforced: " and why; the same for all kinds of one machine."""
        for home in self._homes.values():
            return home.limits_text
        return "not enforced: no model has been served"

    async def close(self) -> None:
        """End all replicas and remove all traces."""
        async with self._opening:
            await asyncio.gather(*(home.close() for home in self._homes.values()))
            self._homes.clear()
