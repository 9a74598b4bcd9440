"""Session of an open Docker spawner: its private folder, staged files and reaper."""

from __future__ import annotations

import asyncio
import functools
import pathlib
import shutil
from collections.abc import Sequence

from serving.accelerator import devices
from serving.model_spec import ModelSpec
from serving.settings.replica import AcceleratorSettings
from serving.spawners.docker.container_spec import FILES_FOLDER, SOCKET_FOLDER, ContainerSpec
from serving.spawners.docker.containers import DockerClient
from serving.spawners.docker.reaper import ReaperClient
from serving.spawners.docker.staging import StagingFolder
from serving.spawners.process.forkserver_client import environment
from serving.system import process_identity
from serving.system.daemon_threads import run_in_daemon_thread

SOCKET = "gateway.sock"
_SHELF = "files"
_END_S = 10.0


class DockerSession:
    """State of an open spawner. Not thread-safe."""

    def __init__(self, engine: DockerClient, kind: str, image: str) -> None:
        """Create a private directory and its reaper, or raise OSError."""
        self.engine = engine
        self._kind = kind
        self._image = image
        self.name = process_identity.this_process().new_name()
        """Name of the containers' owner."""
        self.directory = process_identity.make_directory(self.name)
        """Private folder for sockets and staged files."""
        try:
            self.shelf = StagingFolder(self.directory / _SHELF)
            self.keeper = ReaperClient(self.name, self.directory)
        except OSError:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def container_spec(
        self,
        worker: int,
        memory_mb: int | None,
        spec: ModelSpec | None,
        accelerator: AcceleratorSettings,
        gpu: str | None,
    ) -> ContainerSpec:
        """Return the spec of a replica's container; arguments are as for `Spawner.start`."""
        program = None if spec is None else spec.program
        words = () if program is None else (str(program.folder), *program.words)
        if spec is None:  # the mount is fixed, its contents are not
            files = {FILES_FOLDER: self.shelf.folder}
        else:
            files = {f"{FILES_FOLDER}{file}": file for file in spec.files}
        return ContainerSpec(
            name=f"{self.name}-{worker}",
            owner=self.name,
            worker=worker,
            image=self._image,
            command=(f"{SOCKET_FOLDER}/{SOCKET}", FILES_FOLDER, self._kind, *words),
            socket_folder=self.directory / str(worker),
            files=files,
            memory_mb=memory_mb,
            environment=environment(devices.replica_environment(accelerator, shares=False)),
            gpu=gpu,
        )

    async def stage(self, files: Sequence[pathlib.Path]) -> pathlib.Path:
        """Stage files as `StagingFolder.add` does; if cancelled, unstage them."""
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
    if not staged.cancelled() and staged.exception() is None:
        run_in_daemon_thread(shelf.remove, staged.result())
