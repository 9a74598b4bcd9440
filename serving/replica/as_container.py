"""Replicas as containers of this machine's Docker engine: their home, on the gateway's side.

In: worker numbers, limits, models. Out: `ContainerReplica`s that are alive, limited, connected and greeted,
and whose `ended` says how they ended. The same contract as `as_process`, the same wire, over a Unix socket in a
folder that is mounted into the container, which has no network.

A container imports its runtime when it starts. This runs without the CPU quota, which is set when it has
greeted: a start takes no longer under a small quota than under none, and whatever the model does is under the
quota. The memory limit holds from the beginning.

What a container has mounted is settled when it is made: the files of one model, or, where models come and go, a
folder on which the files of those that are lent are laid (`shelf`).

Containers are removed when they end and at `close` by this file; after a `kill -9` of the gateway by the keeper
(`container_keeper`), and after one of both by the next home that opens.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
import logging
import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from serving import __version__, owner
from serving.accelerator import devices, nvml
from serving.errors import AcceleratorUnavailable, LimitsUnavailable, NotReady, ReplicaStartFailed
from serving.replica import blocking, container_engine, greeting, limits, wire
from serving.replica.container import ContainerReplica
from serving.replica.container_engine import (
    FILES_FOLDER,
    SOCKET_FOLDER,
    ContainerEngine,
    ContainerGone,
    ContainerSpec,
    EngineError,
)
from serving.replica.container_keeper import Keeper
from serving.replica.ended import Ended
from serving.replica.forker import environment
from serving.replica.shelf import Shelf
from serving.settings import AcceleratorSettings
from serving.values import ModelCard

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")

_IMAGE = "luthier-replica"
_OWN_IMAGES = ("sklearn", "torch", "tensorflow")
"""Kinds whose runtime is too large for the image of the others."""
_SOCKET = "gateway.sock"
_SHELF = "files"
_END_S = 10.0
_RETRY_S = 0.5
_UNHEARD_S = 10.0
"""A container that was told to end, and of whose end the engine does not tell for so long, is given up."""


def image_of(kind: str) -> str:
    """The image, as `make images` names it, of replicas that run models of a kind."""
    return f"{_IMAGE}:{__version__}" + (f"-{kind}" if kind in _OWN_IMAGES else "")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Nest:
    """What the containers of a home have in common while it is open."""

    name: str
    """Of their owner."""
    directory: pathlib.Path
    """With their sockets, and with the files that are lent to them; of this user alone."""
    shelf: Shelf
    keeper: Keeper

    def folder_of(self, worker: int) -> pathlib.Path:
        """Where the socket of a container is."""
        return self.directory / str(worker)


class ContainerHome:
    """All replicas of one gateway and kind. All methods belong to the event loop's thread."""

    def __init__(self, image: str | None = None) -> None:
        """Nothing is asked of the engine yet.

        Args:
            image: of all replicas; None: the project's own, by the kind of model.
        """
        self._image = image
        self._said_no_sharing = False
        self._kind: str | None = None
        self._engine: ContainerEngine | None = None
        self._nest: _Nest | None = None
        self._replicas: dict[int, ContainerReplica] = {}
        self._lives: set[asyncio.Task[None]] = set()
        self._unremoved: set[str] = set()
        """Names of containers that the engine did not remove when it was asked."""
        self._limits_text = "not enforced: the home of the replicas is not open"
        self.software = ""
        """The id of the image, once it is open."""

    @property
    def limits_text(self) -> str:
        """The word "enforced", or "not enforced: " and why."""
        return self._limits_text

    async def open(self, kind: str) -> None:
        """Make ready for replicas that run models of a kind; cleans up after homes that were killed.

        Raises:
            ReplicaStartFailed: there is no engine that can be used, or not the image.
        """
        image = self._image = self._image or image_of(kind)
        try:
            engine = self._engine = await _asked(ContainerEngine.connect)
            self._limits_text = engine.limits_text
            image_id = await _asked(engine.image_id, image)
        except EngineError as error:
            raise ReplicaStartFailed("engine", str(error)) from error
        if image_id is None:
            raise ReplicaStartFailed(
                "engine",
                f"the Docker engine has no image {image}; `make images` builds it (docker/README.md), "
                f"replica.image names another one",
            )
        self.software = image_id
        if engine.limits_text != "enforced":
            log.warning("limits are not enforced", extra={"reason": engine.limits_text})
        await _clean_up()
        self._nest = _new_nest()
        self._kind = kind

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        card: ModelCard | None,
        accelerator: AcceleratorSettings | None = None,
    ) -> ContainerReplica:
        """Start a replica: alive, limited, connected and greeted. If cancelled, it is ended.

        Args:
            worker: a number that this home has not seen before.
            cpu: cores, None: no limit.
            memory_mb: MiB, None: no limit.
            ready_timeout_s: longest wait.
            card: the model that it will be asked to load, whose files are mounted, read-only; None: models that
                are lent.
            accelerator: what it sees of the GPU; None: the first one, where the engine offers GPUs.

        Raises:
            ReplicaStartFailed: it ended, or was not there in time.
            LimitsUnavailable: the engine refuses these limits.
        """
        accelerator = accelerator or AcceleratorSettings()
        gpu = await self._gpu(accelerator)
        kind, nest, engine = self._kind, self._nest, self._engine
        if kind is None or engine is None or nest is None:
            raise NotReady("the home of the replicas is not open")
        folder = nest.folder_of(worker)
        folder.mkdir()
        # The container's user is not this one; the folder above keeps others out.
        folder.chmod(0o711)
        replica = ContainerReplica(worker, engine, self._kill)
        try:
            with greeting.listening(folder / _SOCKET, mode=0o666) as listener:
                spec = self._spec(worker, nest, memory_mb, card, kind, accelerator, gpu)
                self._replicas[worker] = replica
                life = asyncio.create_task(
                    self._live(replica, spec, engine), name=f"container {worker}"
                )
                self._lives.add(life)
                life.add_done_callback(self._lives.discard)
                async with asyncio.timeout(ready_timeout_s):
                    await greeting.while_alive(replica.ended, _greet(replica, listener))
                    if cpu is not None:
                        await replica.set_limits(cpu=cpu, memory_mb=memory_mb)
        except TimeoutError:
            replica.abandon()
            raise ReplicaStartFailed(
                "timeout",
                f"a container did not connect within {ready_timeout_s:g} s (replica.ready_timeout_s)",
            ) from None
        except LimitsUnavailable:
            replica.abandon()
            if replica.ended.done():  # no wonder then
                how = replica.ended.result()
                text = f"a replica ended before it was ready: {how.text}"
                raise ReplicaStartFailed(how.reason, text) from None
            raise
        except BaseException:
            replica.abandon()
            raise
        return replica

    async def lend(self, card: ModelCard) -> pathlib.Path | None:
        """Let replicas that were started without a card read a model's files.

        Returns:
            Below which folder of theirs the files are.

        Raises:
            ReplicaStartFailed: they cannot be laid out.
            NotReady: the home is not open.
        """
        if self._kind is None or self._nest is None:
            raise NotReady("the home of the replicas is not open")
        try:
            return await _laid_out(self._nest.shelf, card.files)
        except OSError as error:
            text = f"the files of {card.label} cannot be laid out for containers that run already: {error}"
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                text += "; set TMPDIR to a folder on the file system of the models: there they take no room"
            raise ReplicaStartFailed("load", text) from error

    async def take_back(self, root: pathlib.Path | None) -> None:
        """What `lend` returned is needed no more."""
        if root is not None and self._nest is not None:
            await _asked(self._nest.shelf.remove, root)

    async def close(self) -> None:
        """End all replicas and remove all traces. May be called again."""
        self._kind = None
        for replica in self._replicas.values():
            replica.kill()
        if self._lives:
            await asyncio.wait(self._lives, timeout=_END_S)
        nest, self._nest = self._nest, None
        if nest is not None:
            closing = _asked(nest.shelf.close)  # who copies files gives up
            await asyncio.wait({closing}, timeout=_END_S)
            shutil.rmtree(nest.directory, ignore_errors=True)
            await nest.keeper.close(is_clean=not (self._lives or self._unremoved))
        if self._engine is not None:
            self._engine.close()

    def _spec(
        self,
        worker: int,
        nest: _Nest,
        memory_mb: int | None,
        card: ModelCard | None,
        kind: str,
        accelerator: AcceleratorSettings,
        gpu: str | None,
    ) -> ContainerSpec:
        assert self._image is not None
        program = None if card is None else card.program
        words = () if program is None else (str(program.folder), *program.words)
        if card is None:  # what it is mounted cannot change, but what lies there can
            files = {FILES_FOLDER: nest.shelf.folder}
        else:
            files = {f"{FILES_FOLDER}{file}": file for file in card.files}
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
        """The GPU that a replica is given."""
        if accelerator.share is not None and not self._said_no_sharing:
            self._said_no_sharing = True
            reason = "a container has no way to the CUDA MPS daemon of its machine"
            log.warning("accelerator.share does nothing", extra={"reason": reason})
        offers_gpus = self._engine is not None and self._engine.offers_gpus
        has_gpu = offers_gpus and await _asked(nvml.is_there)
        try:
            return devices.container_gpu(accelerator, os.environ, has_gpu=has_gpu)
        except AcceleratorUnavailable as error:
            raise ReplicaStartFailed("load", f"accelerator.device is cuda: {error}") from error

    # The life of a container

    async def _live(
        self, replica: ContainerReplica, spec: ContainerSpec, engine: ContainerEngine
    ) -> None:
        """From nothing to its removal; sets `ended` when it runs no more."""
        ended = Ended(reason="crash", text="it was never started")
        try:
            container = await _asked(engine.create, spec)
            replica.made(spec.memory_mb)
            if not replica.ending.is_set():
                pid = await _asked(engine.start, container)
                replica.runs(container, pid, limits.group_of(pid) if pid else None)
                ended = await self._end_of(replica, container, engine)
        except Exception as error:  # whatever it is, it ends here, and what was made is removed
            if not isinstance(error, EngineError):
                log.exception("a container met a fault")
            ended = Ended(reason="crash", text=str(error))
        finally:
            del self._replicas[replica.worker]
            replica.usage()
            replica.ended.set_result(ended)
        await self._remove(spec.name, engine)
        shutil.rmtree(spec.socket_folder, ignore_errors=True)

    async def _end_of(
        self, replica: ContainerReplica, container: str, engine: ContainerEngine
    ) -> Ended:
        """Wait for the end. An engine that is away takes no container from us until it was told to end."""
        told = asyncio.create_task(_told_end(replica, container, engine))
        ending = asyncio.create_task(replica.ending.wait())
        try:
            await asyncio.wait({told, ending}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({told}, timeout=_UNHEARD_S)
            return told.result() if told.done() else replica.unheard(_UNHEARD_S)
        finally:
            told.cancel()
            ending.cancel()

    async def _remove(self, name: str, engine: ContainerEngine) -> None:
        """Remove a container if it was made, and those that could not be removed before.

        By its name: an engine may have made it whose answer did not come.
        """
        for one in [name, *self._unremoved]:
            try:
                await _asked(engine.remove, one)
            except EngineError as error:
                self._unremoved.add(one)
                facts = {"container": one, "error": str(error)}
                log.warning("a container is left for later", extra=facts)
                return
            self._unremoved.discard(one)

    def _kill(self, container: str) -> None:
        """Ask for the end of a container; that it came, its life tells."""
        assert self._engine is not None
        engine = self._engine

        def kill() -> None:
            try:
                engine.kill(container)
            except EngineError as error:  # it will be removed
                facts = {"container": container, "error": str(error)}
                log.warning("a container was not ended", extra=facts)

        blocking.asked(kill)


def _asked(request: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[R]:
    return blocking.asked(functools.partial(request, *args, **kwargs))


def _new_nest() -> _Nest:
    """A directory and who removes it after a kill.

    Raises:
        OSError: there can be none.
    """
    name = owner.this_process().new_name()
    directory = pathlib.Path(tempfile.gettempdir(), name)
    directory.mkdir(mode=0o700)
    try:
        shelf = Shelf(directory / _SHELF)
        return _Nest(name=name, directory=directory, shelf=shelf, keeper=Keeper(name, directory))
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise


async def _clean_up() -> None:
    """After homes that were killed, of any gateway."""
    await _asked(limits.cleanup_stale)
    try:
        for name in await _asked(container_engine.cleanup_stale):
            log.info("removed what a killed gateway left", extra={"container": name})
    except EngineError as error:  # it is in nobody's way
        log.warning("what a killed gateway left stays", extra={"error": str(error)})


async def _laid_out(shelf: Shelf, files: Sequence[pathlib.Path]) -> pathlib.Path:
    """Lay out files on a shelf; if cancelled, they are removed."""
    lending = _asked(shelf.add, files)
    try:
        return await asyncio.shield(lending)
    except asyncio.CancelledError:  # nobody gets to know where they are
        lending.add_done_callback(functools.partial(_removed, shelf))
        raise


def _removed(shelf: Shelf, lent: asyncio.Future[pathlib.Path]) -> None:
    """Remove what nobody waited for."""
    if not lent.cancelled() and lent.exception() is None:
        blocking.asked(functools.partial(shelf.remove, lent.result()))


async def _told_end(replica: ContainerReplica, container: str, engine: ContainerEngine) -> Ended:
    """How it ended, as soon as the engine tells."""
    while True:
        try:
            found = await _asked(engine.wait, container)
        except ContainerGone:
            return Ended(reason="crash", text="somebody removed its container")
        except EngineError:  # its socket tells whether it lives
            await asyncio.sleep(_RETRY_S)
        else:
            if found is not None:
                return replica.ended_by(found)


async def _greet(replica: ContainerReplica, listener: socket.socket) -> None:
    """Accept the container's connection and read HELLO, and not a byte more.

    Its HELLO tells the process's number inside the container, which means nothing here.

    Raises:
        ReplicaStartFailed: it says something else.
    """
    sock = await greeting.accept(listener)
    replica.connected(sock)
    try:
        hello = await greeting.hello_of(sock)
    except wire.WireError as error:
        raise greeting.not_the_wire(error) from error
    if hello is None:  # it is ending; how, its end will tell
        await asyncio.shield(replica.ended)
        return
    replica.features = hello.features
