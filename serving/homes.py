"""The homes of replicas, one per kind of model: a template process imports one runtime, an image holds one.

In: model cards. Out: open homes, made when the first model of a kind is served and kept until the end,
warm for the next one; those of a server that was killed are taken over, where there is a note of them. Belongs to the
event loop's thread.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import pathlib
from collections.abc import Callable, Iterator

from serving.errors import NotReady, ReplicaStartFailed
from serving.pool import Home
from serving.replica import as_container
from serving.replica.as_container import ContainerHome
from serving.replica.as_process import ProcessHome
from serving.replica.left import LeftReplica
from serving.settings import ReplicaSettings
from serving.state.nests import Nests
from serving.values import ModelCard

log = logging.getLogger(__name__)


def maker(settings: ReplicaSettings, nests: Nests | None = None) -> Callable[[], Home]:
    """What makes the homes that the settings ask for; nests: where they note what could be taken over."""
    note = None if nests is None else nests.note
    if settings.home == "docker":
        return functools.partial(ContainerHome, settings.image, note=note)
    return functools.partial(ProcessHome, note=note)


class Homes:
    """All homes of one gateway."""

    def __init__(self, make: Callable[[], Home] = ProcessHome, nests: Nests | None = None) -> None:
        """No home is open yet.

        Args:
            make: makes them.
            nests: where a server that was killed has noted what it left.
        """
        self._make = make
        self._nests = nests
        self._homes: dict[str, Home] = {}
        self._taken: dict[str, ProcessHome | ContainerHome] = {}
        """Homes of a server that was killed, until `settle`."""
        self._opening = asyncio.Lock()
        self.workers: Iterator[int] = itertools.count(1)
        """Numbers for replicas, each given once."""

    async def take_over(self) -> None:
        """Before any home is asked for: take what a server that was killed has left."""
        if self._nests is None:
            return
        noted = self._nests.taken()
        async with asyncio.TaskGroup() as group:
            takes = [
                group.create_task(self._take(self._nests, *one), name=f"take over {one[0]}")
                for one in noted.items()
            ]
        self.workers = itertools.count(1 + max((take.result() for take in takes), default=0))

    async def _take(self, nests: Nests, kind: str, directory: pathlib.Path) -> int:
        """One home; returns the highest number of its replicas."""
        made = self._make()
        form = ContainerHome if as_container.is_left_in(directory) else ProcessHome
        home = made if isinstance(made, form) else form(note=nests.note)
        try:
            last = await home.take_over(kind, directory)
        except BaseException as error:
            await home.close()
            if not isinstance(error, NotReady):
                raise
            log.info("nothing is taken over", extra={"kind": kind, "reason": str(error)})
            nests.note(kind, None)
            return 0
        if home is made:
            self._taken[kind] = home
        else:  # the settings want others now
            await home.close()
        return last

    def left(self, kind: str) -> list[LeftReplica]:
        """Replicas of a kind that a killed server left; whoever takes or ends one takes it out of this list."""
        home = self._taken.get(kind)
        return [] if home is None else home.left

    async def settle(self) -> None:
        """End what was left and is of no use to anybody."""
        taken, self._taken = self._taken, {}
        for kind, home in taken.items():
            if self._homes.get(kind) is home:
                await home.settle()
            else:
                await home.close()

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
        taken = self._taken.get(kind)
        if taken is not None:
            return taken
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
            homes = [*self._homes.values(), *self._taken.values()]
            await asyncio.gather(*(home.close() for home in dict.fromkeys(homes)))
            self._homes.clear()
            self._taken.clear()
