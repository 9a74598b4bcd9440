"""Spawner of replicas as containers of this machine's Docker engine.

The wire is a Unix socket in a mounted folder; there is no network. The CPU quota is set after
HELLO, so a small one does not slow the start; the memory limit always holds. Mounts are fixed at
creation: one model's files, or the staging folder if models come and go.

Containers are removed when they end and by `close`; after a `kill -9` of the gateway the reaper
cleans up, and after one of both the next spawner.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pathlib
import shutil

from serving import __version__
from serving.accelerator import devices, nvml
from serving.errors import AcceleratorUnavailable, LimitsUnavailable, NotReady, ReplicaStartFailed
from serving.model_spec import ModelSpec
from serving.models import EXTRAS
from serving.settings.replica import AcceleratorSettings
from serving.spawners import handshake
from serving.spawners.docker import containers
from serving.spawners.docker.container_spec import FILES_FOLDER, SOCKET_FOLDER, ContainerSpec
from serving.spawners.docker.containers import ContainerGone, DockerClient, DockerError
from serving.spawners.docker.replica import ContainerReplica
from serving.spawners.docker.session import DockerSession
from serving.spawners.exit_status import ExitStatus
from serving.spawners.process.forkserver_client import environment
from serving.system.cgroups import manager
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

_IMAGE = "luthier-replica"
_SOCKET = "gateway.sock"
_END_S = 10.0
_RETRY_S = 0.5
_UNHEARD_S = 10.0
"""Time without a report after which a container told to end is given up."""


def image_of(kind: str) -> str:
    """Return the image for a model kind, as named by `make images`."""
    return f"{_IMAGE}:{__version__}" + (f"-{kind}" if kind in EXTRAS else "")


class DockerSpawner:
    """All replicas of one gateway and kind. All methods belong to the event loop's thread."""

    def __init__(self, image: str | None = None) -> None:
        """Contact no engine yet; `image` overrides the image of the model kind."""
        self._image = image
        self._said_no_sharing = False
        self._kind: str | None = None
        self._engine: DockerClient | None = None
        self._nest: DockerSession | None = None
        self._replicas: dict[int, ContainerReplica] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._unremoved: set[str] = set()
        """Containers that the engine failed to remove."""
        self._limits_text = "not enforced: the spawner is not open"
        self.image_id = ""
        """Image id, once open."""

    @property
    def limits_text(self) -> str:
        """Either "enforced", or "not enforced: " and the reason."""
        return self._limits_text

    async def open(self, kind: str) -> None:
        """Connect to the engine for a model kind; clean up after killed gateways.

        Raises:
            ReplicaStartFailed: no usable engine, or no image.
        """
        image = self._image = self._image or image_of(kind)
        try:
            engine = self._engine = await run_in_daemon_thread(DockerClient.connect)
            self._limits_text = engine.limits_text
            image_id = await run_in_daemon_thread(engine.image_id, image)
        except DockerError as error:
            raise ReplicaStartFailed("engine", str(error)) from error
        if image_id is None:
            raise ReplicaStartFailed(
                "engine",
                f"the Docker engine has no image {image}; `make images` builds it (docker/README.md), "
                f"replica.image names another one",
            )
        self.image_id = image_id
        if engine.limits_text != "enforced":
            log.warning("limits are not enforced", extra={"reason": engine.limits_text})
        await _clean_up()
        self._nest = DockerSession.open()
        self._kind = kind

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        spec: ModelSpec | None,
        accelerator: AcceleratorSettings | None = None,
    ) -> ContainerReplica:
        """Start a replica, see `Spawner.start`; if cancelled, end it.

        The model's files are mounted read-only. By default it sees the first GPU, if any.

        Raises:
            ReplicaStartFailed: it ended, or was not ready in time.
            LimitsUnavailable: the engine refuses these limits.
        """
        accelerator = accelerator or AcceleratorSettings()
        gpu = await self._gpu(accelerator)
        kind, nest, engine = self._kind, self._nest, self._engine
        if kind is None or engine is None or nest is None:
            raise NotReady("the spawner is not open")
        folder = nest.folder_of(worker)
        folder.mkdir()
        # The container's user is another one; the parent folder keeps others out.
        folder.chmod(0o711)
        replica = ContainerReplica(worker, engine, memory_mb)
        container = self._spec(worker, nest, memory_mb, spec, kind, accelerator, gpu)
        try:
            with handshake.listen(folder / _SOCKET, mode=0o666) as listener:
                self._begin(replica, container, engine)
                async with handshake.ready_within(replica, ready_timeout_s):
                    # The pid that it tells is only valid inside the container.
                    await handshake.while_alive(replica, handshake.greet(replica, listener))
                    if cpu is not None:
                        await replica.set_limits(cpu=cpu, memory_mb=memory_mb)
        except LimitsUnavailable:
            if replica.ended.done():  # explains the refusal
                raise handshake.end_as_failure(replica.ended.result()) from None
            raise
        return replica

    async def stage(self, spec: ModelSpec) -> pathlib.Path | None:
        """Stage a model's files; see `Spawner.stage`.

        Raises:
            ReplicaStartFailed: they cannot be staged.
            NotReady: the spawner is not open.
        """
        if self._kind is None or self._nest is None:
            raise NotReady("the spawner is not open")
        try:
            return await self._nest.stage(spec.files)
        except OSError as error:
            text = f"the files of {spec.label} cannot be staged for running containers: {error}"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                text += (
                    "; set TMPDIR to a folder on the file system of the models, where they "
                    "take no space"
                )
            raise ReplicaStartFailed("load", text) from error

    async def unstage(self, root: pathlib.Path | None) -> None:
        """Unstage what `stage` returned."""
        if root is not None and self._nest is not None:
            await run_in_daemon_thread(self._nest.shelf.remove, root)

    async def close(self) -> None:
        """End all replicas and clean up. May be called again."""
        self._kind = None
        for replica in self._replicas.values():
            replica.kill()
        if self._lives:
            await asyncio.wait(self._lives, timeout=_END_S)
        nest, self._nest = self._nest, None
        if nest is not None:
            await nest.close(is_clean=not (self._lives or self._unremoved))
        if self._engine is not None:
            self._engine.close()

    def _spec(
        self,
        worker: int,
        nest: DockerSession,
        memory_mb: int | None,
        spec: ModelSpec | None,
        kind: str,
        accelerator: AcceleratorSettings,
        gpu: str | None,
    ) -> ContainerSpec:
        assert self._image is not None
        program = None if spec is None else spec.program
        words = () if program is None else (str(program.folder), *program.words)
        if spec is None:  # the mount is fixed, its contents are not
            files = {FILES_FOLDER: nest.shelf.folder}
        else:
            files = {f"{FILES_FOLDER}{file}": file for file in spec.files}
        return ContainerSpec(
            name=f"{nest.name}-{worker}",
            owner=nest.name,
            worker=worker,
            image=self._image,
            command=(f"{SOCKET_FOLDER}/{_SOCKET}", FILES_FOLDER, kind, *words),
            socket_folder=nest.folder_of(worker),
            files=files,
            memory_mb=memory_mb,
            environment=environment(devices.replica_environment(accelerator, shares=False)),
            gpu=gpu,
        )

    async def _gpu(self, accelerator: AcceleratorSettings) -> str | None:
        if accelerator.share is not None and not self._said_no_sharing:
            self._said_no_sharing = True
            reason = "a container cannot reach the CUDA MPS daemon of its machine"
            log.warning("accelerator.share has no effect", extra={"reason": reason})
        offers_gpus = self._engine is not None and self._engine.offers_gpus
        has_gpu = offers_gpus and await run_in_daemon_thread(nvml.is_there)
        try:
            return devices.container_gpu(accelerator, os.environ, has_gpu=has_gpu)
        except AcceleratorUnavailable as error:
            raise ReplicaStartFailed("load", f"accelerator.device is cuda: {error}") from error

    # The life of a container

    def _begin(self, replica: ContainerReplica, spec: ContainerSpec, engine: DockerClient) -> None:
        self._replicas[replica.worker] = replica
        life = asyncio.create_task(
            self._live(replica, spec, engine), name=f"container {replica.worker}"
        )
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _live(
        self, replica: ContainerReplica, spec: ContainerSpec, engine: DockerClient
    ) -> None:
        """Run a container from creation to removal; resolve `ended` when it has stopped."""
        ended = ExitStatus(reason="crash", text="it was never started")
        try:
            container = await run_in_daemon_thread(engine.create, spec)
            if not replica.ending.is_set():
                pid = await run_in_daemon_thread(engine.start, container)
                replica.runs(container, pid, manager.group_of(pid) if pid else None)
                ended = await self._end_of(replica, container, engine)
        except Exception as error:  # any error ends it, and it is removed
            if not isinstance(error, DockerError):
                log.exception("a container hit an error")
            ended = ExitStatus(reason="crash", text=str(error))
        finally:
            del self._replicas[replica.worker]
            replica.usage()
            replica.ended.set_result(ended)
        await self._remove(spec.name, engine)
        shutil.rmtree(spec.socket_folder, ignore_errors=True)

    async def _end_of(
        self, replica: ContainerReplica, container: str, engine: DockerClient
    ) -> ExitStatus:
        """Wait for the end; an unreachable engine matters only after the end was requested."""
        told = asyncio.create_task(_wait_for_exit(replica, container, engine))
        ending = asyncio.create_task(replica.ending.wait())
        try:
            await asyncio.wait({told, ending}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({told}, timeout=_UNHEARD_S)
            return told.result() if told.done() else replica.unheard(_UNHEARD_S)
        finally:
            told.cancel()
            ending.cancel()

    async def _remove(self, name: str, engine: DockerClient) -> None:
        """Remove a container if it was created, and those that failed before.

        By name, because the response to its creation may be lost.
        """
        for one in [name, *self._unremoved]:
            try:
                await run_in_daemon_thread(engine.remove, one)
            except DockerError as error:
                self._unremoved.add(one)
                facts = {"container": one, "error": str(error)}
                log.warning("a container is removed later", extra=facts)
                return
            self._unremoved.discard(one)


async def _clean_up() -> None:
    """Clean up after killed gateways."""
    await run_in_daemon_thread(manager.cleanup_stale)
    try:
        for name in await run_in_daemon_thread(containers.cleanup_stale):
            log.info("removed what a killed gateway left behind", extra={"container": name})
    except DockerError as error:  # harmless
        log.warning("what a killed gateway left behind stays", extra={"error": str(error)})


async def _wait_for_exit(
    replica: ContainerReplica, container: str, engine: DockerClient
) -> ExitStatus:
    """Wait until the engine reports the end."""
    while True:
        try:
            found = await run_in_daemon_thread(engine.wait, container)
        except ContainerGone:
            return ExitStatus(reason="crash", text="somebody removed its container")
        except DockerError:  # the socket shows whether it lives
            await asyncio.sleep(_RETRY_S)
        else:
            if found is not None:
                return replica.ended_by(found)
