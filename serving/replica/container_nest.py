"""What the containers of a home belong to: a keeper, which gives them their name, and the directory with their sockets
and with the files that are lent to them.

In: what the next gateway must share with this one. Out: the directory, as long as there is a keeper. Should that end,
the directory goes on under the name of another one; containers cannot, so their home is told. `ContainerHome` has one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Container, Mapping
from typing import Any

from serving import owner
from serving.errors import NotReady
from serving.replica import blocking
from serving.replica.container_keeper import SOCKET, Keeper
from serving.replica.shelf import Shelf

log = logging.getLogger(__name__)

_SHELF = "files"
_END_S = 10.0
_RETRY_S = 1.0
_TAKE_OVER_S = 5.0
"""Longest wait for each word of a keeper that was left: it has nothing else to do."""

Note = Callable[[pathlib.Path | None], None]


class Nest:
    """One keeper after another, and their directory. All methods belong to the event loop's thread."""

    def __init__(self, keeper: Keeper, shelf: Shelf, facts: Mapping[str, str]) -> None:
        self.keeper: Keeper | None = keeper
        """None while there is none."""
        self.shelf = shelf
        self.on_renewed: Callable[[], None] | None = None
        """Called when what is there has another keeper than the containers that run have as their owner."""
        self._facts = facts
        self._names = [self.name]
        """Under which there may be containers."""
        self._note: Note | None = None
        self._keep_s = 0.0
        self._renewing: asyncio.Task[None] | None = None
        self._is_closing = False

    @classmethod
    async def made(cls, facts: Mapping[str, str]) -> Nest:
        """A new one.

        Args:
            facts: which a gateway that takes it over must share.

        Raises:
            OSError: there can be no keeper, or no directory.
        """
        keeper = await Keeper.started()
        try:
            shelf = _new_shelf(keeper)
        except OSError:
            await keeper.close(is_clean=True)
            raise
        nest = cls._with(keeper, shelf, facts)
        keeper.own([nest.name], nest.directory, facts)
        return nest

    @classmethod
    async def taken_over(cls, directory: pathlib.Path, facts: Mapping[str, str]) -> Nest:
        """What a killed gateway has left.

        Args:
            directory: where it was.
            facts: of this gateway.

        Raises:
            NotReady: there is no keeper, it is not this user's own, or keeps what this gateway cannot use.
        """
        keeper = await Keeper.taken_over(directory, facts, timeout_s=_TAKE_OVER_S)
        try:
            shelf = Shelf(directory / _SHELF, is_there=True)
        except OSError as error:
            await keeper.close(is_clean=False)
            raise NotReady(f"nothing was lent from {directory}: {error}") from error
        return cls._with(keeper, shelf, facts)

    @classmethod
    def _with(cls, keeper: Keeper, shelf: Shelf, facts: Mapping[str, str]) -> Nest:
        nest = cls(keeper, shelf, facts)
        keeper.listen(nest._keeper_ended)
        return nest

    @property
    def directory(self) -> pathlib.Path:
        """Of this user alone, named after the keeper."""
        return self.shelf.folder.parent

    @property
    def name(self) -> str:
        """Of the containers' owner."""
        return self.directory.name

    def folder_of(self, worker: int) -> pathlib.Path:
        """Where the socket of a container is."""
        return self.directory / str(worker)

    def workers(self) -> list[int]:
        """Numbers of those that have a folder."""
        return [int(path.name) for path in self.directory.iterdir() if path.name.isdecimal()]

    def remove_folders(self, *, but_of: Container[int]) -> None:
        """Remove those of workers that are not there any more."""
        for worker in self.workers():
            if worker not in but_of:
                shutil.rmtree(self.folder_of(worker), ignore_errors=True)

    async def ready(self, within_s: float) -> None:
        """Wait until there is a keeper.

        Raises:
            NotReady: there is none in time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while (renewing := self._renewing) is not None and not renewing.done():
                    await asyncio.wait({renewing})
        if self.keeper is None:
            raise NotReady("there is no keeper for containers")

    def keep(self, kept: Mapping[str, Any], note: Note) -> None:
        """What is started now shall outlive this gateway.

        Args:
            kept: its "takeover_s" is for how long.
            note: told where the next gateway finds it, and None when nothing is there any more.
        """
        if self._note is None:
            note(self.directory)
        self._note = note
        self._keep_s = max(self._keep_s, float(kept["takeover_s"]))
        if self.keeper is not None:
            self.keeper.keep(self._keep_s)

    def noted(self, note: Note) -> None:
        """It was noted by the gateway before."""
        self._note = note

    async def close(self, *, is_clean: bool) -> None:
        """Remove the directory, and let the keeper end.

        Args:
            is_clean: whether no container is left; else the keeper removes them.
        """
        self._is_closing = True
        closing = blocking.asked(self.shelf.close)  # who copies files gives up
        await asyncio.wait({closing}, timeout=_END_S)
        if self._renewing is not None:
            await asyncio.wait({self._renewing}, timeout=_END_S)
            self._renewing.cancel()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self._note is not None:
            self._note(None)
        keeper, self.keeper = self.keeper, None
        if keeper is not None:
            await keeper.close(is_clean=is_clean)

    def _keeper_ended(self) -> None:
        """Somebody killed it: what has its name would be taken for what a killed gateway has left."""
        self.keeper = None
        if not self._is_closing:
            log.warning("the keeper of containers has ended: they are replaced")
            self._renewing = asyncio.create_task(self._renew(), name="renew the keeper")

    async def _renew(self) -> None:
        """Another keeper, to which all belongs that there is but the containers."""
        keeper = None
        while keeper is None and not self._is_closing:
            keeper = await self._next_keeper()
            if keeper is None:
                await asyncio.sleep(_RETRY_S)
        if keeper is None:
            return
        self.keeper = keeper
        keeper.listen(self._keeper_ended)
        if self._note is not None:
            self._note(self.directory)
            keeper.keep(self._keep_s)
        if self.on_renewed is not None:
            self.on_renewed()

    async def _next_keeper(self) -> Keeper | None:
        """One that owns the directory under its name; None where that failed."""
        keeper = None
        try:
            keeper = await Keeper.started()
            move = functools.partial(self.shelf.move, self.directory.with_name(_name_of(keeper)))
            await blocking.asked(move)
            (self.directory / SOCKET).unlink(missing_ok=True)
        except OSError:
            log.exception("there is no keeper: should this process be killed, containers are left")
            if keeper is not None:
                await keeper.close(is_clean=True)
            return None
        self._names.insert(0, self.name)
        keeper.own(self._names, self.directory, self._facts)
        return keeper


def _new_shelf(keeper: Keeper) -> Shelf:
    directory = pathlib.Path(tempfile.gettempdir(), _name_of(keeper))
    directory.mkdir(mode=0o700)
    return Shelf(directory / _SHELF)


def _name_of(keeper: Keeper) -> str:
    """What it keeps may outlive this process."""
    return owner.of_process(keeper.pid).new_name()
