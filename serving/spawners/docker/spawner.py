"""Spawner of replicas as containers of this machine's Docker engine.

The wire is a Unix socket in a mounted folder; there is no network. The CPU quota is set after
HELLO, so that a small quota does not slow the start. Mounts are fixed at creation: one model's
files, or the staging folder if models come and go. The reaper cleans up after a `kill -9` of the
gateway, and the next spawner does if the reaper was killed too.
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
from serving.spawners.docker.containers import DockerClient, DockerError
from serving.spawners.docker.replica import NEVER_STARTED, ContainerReplica
from serving.spawners.docker.session import SOCKET, DockerSession
from serving.spawners.exit_status import ExitStatus
from serving.system.cgroups import manager
from serving.system.daemon_threads import run_in_daemon_thread

log = logging.getLogger(__name__)

_IMAGE = "luthier-replica"
_END_S = 10.0


def image_of(kind: str) -> str:
    """Return the image for a model kind, as named by `make images`."""
    return f"{_IMAGE}:{__version__}" + (f"-{kind}" if kind in EXTRAS else "")


class DockerSpawner:
    """Spawner of containers for one gateway and model kind. Not thread-safe."""

    def __init__(self, image: str | None = None) -> None:
        """`image` overrides the image of the model kind."""
        self._image = image
        self._said_no_sharing = False
        self._engine: DockerClient | None = None
        self._nest: DockerSession | None = None
        self._replicas: dict[int, ContainerReplica] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._unremoved: set[str] = set()
        self._limits_text = "not enforced: the spawner is not open"
        self.image_id = ""

    @property
    def limits_text(self) -> str:
        """See `Spawner.limits_text`."""
        return self._limits_text

    async def open(self, kind: str) -> None:
        """Connect to the engine for a model kind; clean up after killed gateways.

        Raises ReplicaStartFailed if there is no usable engine or no image.
        """
        image = self._image or image_of(kind)
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
        self._nest = DockerSession(engine, kind, image)

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        spec: ModelSpec | None,
        accelerator: AcceleratorSettings | None = None,
        may_wait: bool = False,  # noqa: ARG002  there is always a place
        gpu: str | None = None,
    ) -> ContainerReplica:
        """Start a replica (see `Spawner.start`); if cancelled, end it.

        The model's files are mounted read-only. The replica sees the given GPU (index or UUID); by
        default, the first one, if any.
        """
        accelerator = accelerator or AcceleratorSettings()
        gpu = gpu or await self._gpu(accelerator, self._opened().engine)
        nest = self._opened()
        container = nest.container_spec(worker, memory_mb, spec, accelerator, gpu)
        folder = container.socket_folder
        folder.mkdir()
        # The container has another user; the parent folder keeps others out.
        folder.chmod(0o711)
        replica = ContainerReplica(nest.engine, container)
        try:
            with handshake.listen(folder / SOCKET, mode=0o666) as listener:
                self._begin(replica, nest.engine)
                async with handshake.ready_within(replica, ready_timeout_s):
                    # The pid that the replica reports is valid only inside the container.
                    await handshake.while_alive(replica, handshake.greet(replica, listener))
                    await handshake.while_alive(replica, replica.started.wait())
                    if cpu is not None:
                        await replica.set_limits(cpu=cpu, memory_mb=memory_mb)
        except LimitsUnavailable:
            if replica.ended.done():  # explains the refusal
                raise handshake.end_as_failure(replica.ended.result()) from None
            raise
        return replica

    async def stage(self, spec: ModelSpec) -> pathlib.Path | None:
        """Stage a model's files (see `Spawner.stage`), or raise ReplicaStartFailed."""
        try:
            return await self._opened().stage(spec.files)
        except OSError as error:
            text = f"the files of {spec.label} cannot be staged for running containers: {error}"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                text += (
                    "; set TMPDIR to a folder of the models' file system, where they take no space"
                )
            raise ReplicaStartFailed("load", text) from error

    async def unstage(self, root: pathlib.Path | None) -> None:
        """See `Spawner.unstage`."""
        if root is not None and self._nest is not None:
            await run_in_daemon_thread(self._nest.shelf.remove, root)

    async def close(self) -> None:
        """End all replicas and clean up. May be called again."""
        nest, self._nest = self._nest, None
        if nest is not None:
            for replica in self._replicas.values():
                replica.kill()
            if self._lives:
                await asyncio.wait(self._lives, timeout=_END_S)
            await nest.close(is_clean=not (self._lives or self._unremoved))
        if self._engine is not None:
            self._engine.close()

    def _opened(self) -> DockerSession:
        if self._nest is None:
            raise NotReady("the spawner is not open")
        return self._nest

    async def _gpu(self, accelerator: AcceleratorSettings, engine: DockerClient) -> str | None:
        if accelerator.share is not None and not self._said_no_sharing:
            self._said_no_sharing = True
            reason = "a container cannot reach the CUDA MPS daemon of its machine"
            log.warning("accelerator.share has no effect", extra={"reason": reason})
        has_gpu = engine.offers_gpus and await run_in_daemon_thread(nvml.is_there)
        try:
            return devices.container_gpu(accelerator, os.environ, has_gpu=has_gpu)
        except AcceleratorUnavailable as error:
            raise ReplicaStartFailed("load", f"accelerator.device is cuda: {error}") from error

    # The life of a container

    def _begin(self, replica: ContainerReplica, engine: DockerClient) -> None:
        self._replicas[replica.worker] = replica
        life = asyncio.create_task(self._live(replica, engine), name=f"container {replica.worker}")
        self._lives.add(life)
        life.add_done_callback(self._lives.discard)

    async def _live(self, replica: ContainerReplica, engine: DockerClient) -> None:
        ended = NEVER_STARTED
        try:
            ended = await replica.run()
        except Exception as error:  # any error ends it, and it is removed
            if not isinstance(error, DockerError):
                log.exception("a container hit an error")
            ended = ExitStatus(reason="crash", text=str(error))
        finally:
            del self._replicas[replica.worker]
            replica.usage()
            replica.ended.set_result(ended)
        await self._remove(replica.spec.name, engine)
        shutil.rmtree(replica.spec.socket_folder, ignore_errors=True)

    async def _remove(self, name: str, engine: DockerClient) -> None:
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
    await run_in_daemon_thread(manager.cleanup_stale)
    try:
        for name in await run_in_daemon_thread(containers.cleanup_stale):
            log.info("removed what a killed gateway left behind", extra={"container": name})
    except DockerError as error:  # harmless
        log.warning("what a killed gateway left behind stays", extra={"error": str(error)})
