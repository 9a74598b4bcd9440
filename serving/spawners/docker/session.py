"""Session of an open Docker spawner: its private folder, staged files and reaper."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Self

from serving.spawners.docker.reaper import ReaperClient
from serving.spawners.docker.staging import StagingFolder
from serving.system import process_identity
from serving.system.daemon_threads import run_in_daemon_thread

_SHELF = "files"
_END_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DockerSession:
    """State of an open spawner. All methods belong to the event loop's thread."""

    name: str
    """Owner of the containers."""
    directory: pathlib.Path
    """Private folder of sockets and staged files."""
    shelf: StagingFolder
    keeper: ReaperClient

    @classmethod
    def open(cls) -> Self:
        """Create the private directory and its reaper; raises OSError if it cannot be created."""
        name = process_identity.this_process().new_name()
        directory = pathlib.Path(tempfile.gettempdir(), name)
        directory.mkdir(mode=0o700)
        try:
            shelf = StagingFolder(directory / _SHELF)
            keeper = ReaperClient(name, directory)
        except OSError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return cls(name=name, directory=directory, shelf=shelf, keeper=keeper)

    def folder_of(self, worker: int) -> pathlib.Path:
        """Return the folder of a container's socket."""
        return self.directory / str(worker)

    async def stage(self, files: Sequence[pathlib.Path]) -> pathlib.Path:
        """Stage files, as `StagingFolder.add`; if cancelled, unstage them."""
        staging = run_in_daemon_thread(self.shelf.add, files)
        try:
            return await asyncio.shield(staging)
        except asyncio.CancelledError:  # nobody will know their root
            staging.add_done_callback(functools.partial(_remove_unclaimed, self.shelf))
            raise

    async def close(self, *, is_clean: bool) -> None:
        """Remove the directory; the reaper removes containers unless `is_clean`."""
        closing = run_in_daemon_thread(self.shelf.close)  # aborts copies
        await asyncio.wait({closing}, timeout=_END_S)
        shutil.rmtree(self.directory, ignore_errors=True)
        await self.keeper.close(is_clean=is_clean)


def _remove_unclaimed(shelf: StagingFolder, staged: asyncio.Future[pathlib.Path]) -> None:
    """Unstage a cancelled request's files."""
    if not staged.cancelled() and staged.exception() is None:
        run_in_daemon_thread(shelf.remove, staged.result())
