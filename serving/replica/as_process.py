"""Replicas as processes of this machine: their home, on the gateway's side.

In: worker numbers and limits. Out: `Replica`s that are alive, limited, connected and greeted, and whose
`ended` says how they ended. A model is not loaded here: that is an action on the wire.

One template process forks the replicas (`template`); should it die, its replicas die with it, and the
next start makes a new one. Traces are removed in any case: at `close` by this file, after a `kill -9` of
the gateway by the template, after one of both by the next home that opens.

Replicas that are started with something to be kept outlive a killed gateway for a while, with their template: a home
that takes it over has them again (`left`).
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import pathlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from serving import owner
from serving.accelerator import devices, mps
from serving.errors import LimitsUnavailable, NotReady, ReplicaStartFailed
from serving.replica import error_output, greeting, wire
from serving.replica.cgroups import Group, Usage
from serving.replica.ended import Ended
from serving.replica.forker import Forker, LeftWorker
from serving.replica.left import LeftReplica
from serving.replica.limits import Limits, LimitSupport, cleanup_stale
from serving.replica.process import Replica
from serving.settings import AcceleratorSettings
from serving.values import ModelCard, Program

__all__ = ["Ended", "ProcessHome", "Replica", "Usage"]

log = logging.getLogger(__name__)

WARM_TIMEOUT_S = 60.0
"""Longest time to import a runtime."""
_TAKE_OVER_S = 5.0
"""Longest wait for the answer of a template that was left: it has nothing else to do."""
_END_S = 5.0
_REMOVAL_S = 2.0
_RETRY_S = 0.005


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Nest:
    """What lives and ends with one template process."""

    kind: str
    forker: Forker
    directory: pathlib.Path
    limits: Limits


class ProcessHome:
    """All replicas of one gateway. All methods belong to the event loop's thread."""

    def __init__(
        self,
        *,
        warm_timeout_s: float = WARM_TIMEOUT_S,
        note: Callable[[str, pathlib.Path | None], None] | None = None,
    ) -> None:
        """Nothing runs yet.

        Args:
            warm_timeout_s: longest time to import a runtime.
            note: told a kind and the directory in which the next gateway finds what is kept of it, then None
                instead when nothing is left there. None: nobody would find it, so nothing is kept.
        """
        self._warm_timeout_s = warm_timeout_s
        self._note = note
        self._noted: pathlib.Path | None = None
        self._kind: str | None = None
        self._nest: _Nest | None = None
        self._making = asyncio.Lock()
        self._support = LimitSupport(kind=None, reason="the home of the replicas is not open")
        self._replicas: dict[int, Replica] = {}
        self._finishing: set[asyncio.Task[None]] = set()
        self._said_no_sharing = False
        self.left: list[LeftReplica] = []
        """Replicas of a gateway that was killed, for whoever takes them out of this list."""
        self.software = ""
        """They run what this process runs."""
        self.lends = False
        """They find all files where they are."""

    @property
    def limits_text(self) -> str:
        """The word "enforced", or "not enforced: " and why."""
        return self._support.text

    async def open(self, kind: str) -> None:
        """Make ready for replicas that run models of a kind; cleans up after homes that were killed.

        Args:
            kind: the template imports its runtime.

        Raises:
            ReplicaStartFailed: the template process does not become ready.
        """
        _clean_up()
        self._kind = kind
        await self._living_nest()
        if self._support.kind is None:
            log.warning("limits are not enforced", extra={"reason": self._support.reason})

    async def take_over(self, kind: str, directory: pathlib.Path) -> int:
        """Go on where a gateway was killed, instead of `open`: its template is this home's, its replicas are `left`.

        Args:
            kind: of the models.
            directory: as it was noted.

        Returns:
            The highest number of a worker so far; the next ones need higher ones.

        Raises:
            NotReady: nothing is left there that can be taken over.
        """
        _clean_up()
        forker, told = await Forker.taken_over(
            kind, directory, on_event=self._heard, timeout_s=_TAKE_OVER_S
        )
        try:
            workers = [one.worker for one in told.workers]
            limits = Limits.taken_over(directory.name, told.limits, workers)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            await forker.close()
            raise NotReady(f"the template in {directory} has no groups ({error!r})") from error
        nest = _Nest(kind=kind, forker=forker, directory=directory, limits=limits)
        self._kind, self._nest, self._support = kind, nest, limits.support
        self._noted = directory
        for one in told.workers:
            self._take(one, nest)
        return told.last

    def _take(self, told: LeftWorker, nest: _Nest) -> None:
        """A replica that is left is one of this home, and will be greeted as it comes back."""
        replica = Replica(told.worker, nest.forker, nest.limits.existing(told.worker))
        replica.started.set_result(told.pid)
        replica.ordered = True
        self._replicas[replica.worker] = replica
        try:
            replica.limit(
                cpu=told.cpu, memory_mb=told.memory_mb
            )  # as they are: can it be done here?
        except LimitsUnavailable as error:
            log.warning("a replica cannot be taken over", extra={"error": str(error)})
            replica.kill()
            return
        path = nest.directory / f"{replica.worker}.sock"
        path.unlink(missing_ok=True)  # of a gateway that was killed while it listened
        greet = asyncio.create_task(_greet_again(replica, path), name="greet a replica again")
        self.left.append(LeftReplica(replica, told.kept, greet))

    async def settle(self) -> None:
        """End what was left and nobody has taken."""
        left, self.left = self.left, []
        await asyncio.gather(*(one.end() for one in left))

    async def start(
        self,
        worker: int,
        *,
        cpu: float | None,
        memory_mb: int | None,
        ready_timeout_s: float,
        card: ModelCard | None,
        beside: Mapping[pathlib.Path, bool] | None = None,  # noqa: ARG002
        accelerator: AcceleratorSettings | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> Replica:
        """Start a replica: alive, in its groups, connected and greeted. If cancelled, it is ended.

        Args:
            worker: a number that this home has not seen before.
            cpu: cores, None: no limit.
            memory_mb: MiB, None: no limit.
            ready_timeout_s: longest wait.
            card: the model that it will be asked to load, of the kind command the program that it becomes; None:
                models that are lent.
            beside: nothing is to be done: replicas find all folders where they are.
            accelerator: what it sees of the GPU; None: all that this process sees.
            kept: what the next gateway is to know of it, where this one is killed, as plain data; "takeover_s" in
                it is for how long it then stays. None: it ends with this gateway.

        Raises:
            ReplicaStartFailed: it ended, or was not there in time.
            LimitsUnavailable: the kernel refuses these limits.
        """
        nest = await self._living_nest()
        environment = self._environment(accelerator or AcceleratorSettings())
        group = nest.limits.group(worker)
        replica = Replica(worker, nest.forker, group)
        try:
            replica.limit(cpu=cpu, memory_mb=memory_mb)
        except BaseException:
            if group is not None:
                nest.limits.remove(group)
            raise
        self._replicas[worker] = replica
        try:
            async with asyncio.timeout(ready_timeout_s):
                program = None if card is None else card.program
                await self._connect(replica, nest, environment, program, kept)
        except TimeoutError:
            replica.abandon()
            raise ReplicaStartFailed(
                "timeout",
                f"a replica did not connect within {ready_timeout_s:g} s (replica.ready_timeout_s)",
            ) from None
        except BaseException:
            replica.abandon()
            if not replica.ordered:
                self._finish(replica, Ended(reason="crash", text="it was never started"))
            raise
        return replica

    async def lend(
        self, _card: ModelCard, _beside: pathlib.Path | None = None
    ) -> pathlib.Path | None:
        """Nothing is to be done: replicas find all files where they are."""
        return None

    def stays_lent(self, _root: pathlib.Path) -> bool:
        """Nothing was lent."""
        return False

    async def take_back(self, _root: pathlib.Path | None) -> None:
        """Nothing was lent."""

    async def close(self) -> None:
        """End all replicas and the template and remove all traces. May be called again."""
        self._kind = None
        async with self._making:
            for replica in self._replicas.values():
                replica.kill()
            endings = [replica.ended for replica in self._replicas.values()]
            if endings:
                await asyncio.wait(endings, timeout=_END_S)
            await self._remove_nest()

    # The template

    async def _living_nest(self) -> _Nest:
        """The nest with a living template; a new one where there is none."""
        async with self._making:
            if self._kind is None:
                raise NotReady("the home of the replicas is not open")
            if self._nest is None or not self._nest.forker.is_alive:
                await self._remove_nest()
                self._nest = await self._new_nest(self._kind)
            return self._nest

    async def _new_nest(self, kind: str) -> _Nest:
        forker = await Forker.started(kind, on_event=self._heard)
        # What it makes is the template's, which may outlive this process.
        name = owner.of_process(forker.pid).new_name()
        limits = Limits(name)
        directory: pathlib.Path | None = None
        try:
            directory = _private_directory(name)
            self._support = limits.open()
            await forker.warm(kind, directory, limits.as_json(), timeout_s=self._warm_timeout_s)
        except BaseException:
            await forker.abandon()
            limits.close()
            if directory is not None:
                shutil.rmtree(directory, ignore_errors=True)
            raise
        if not forker.forks:
            log.warning("replicas start slowly: their runtime starts threads when it is imported")
        return _Nest(kind=kind, forker=forker, directory=directory, limits=limits)

    async def _remove_nest(self) -> None:
        """End the template if it lives, and remove what it did not."""
        nest, self._nest = self._nest, None
        if nest is None:
            return
        await self.settle()
        await nest.forker.close()
        if self._note is not None and self._noted == nest.directory:
            self._note(nest.kind, None)
        if self._finishing:
            await asyncio.wait(self._finishing, timeout=_END_S)
        if not await asyncio.to_thread(nest.limits.close):
            log.warning("control groups are left", extra={"path": str(nest.limits.directories)})
        shutil.rmtree(nest.directory, ignore_errors=True)

    # A start

    def _environment(self, accelerator: AcceleratorSettings) -> dict[str, str]:
        """What the replica's environment has beside this process's own."""
        lacking = None if accelerator.share is None else mps.lacking(os.environ)
        if lacking is not None and not self._said_no_sharing:
            self._said_no_sharing = True
            log.warning("accelerator.share does nothing", extra={"reason": lacking})
        return devices.replica_environment(accelerator, shares=lacking is None)

    async def _connect(
        self,
        replica: Replica,
        nest: _Nest,
        environment: Mapping[str, str],
        program: Program | None,
        kept: Mapping[str, Any] | None,
    ) -> None:
        if kept is not None and not self._is_noted(nest):
            kept = None
        path = nest.directory / f"{replica.worker}.sock"
        with greeting.listening(path) as listener:
            procs = replica.group.procs_files if replica.group is not None else ()
            nest.forker.start(
                replica.worker,
                path=path,
                procs=procs,
                environment=environment,
                cpu=replica.cpu,
                memory_mb=replica.memory_mb,
                program=program,
                kept=kept,
            )
            replica.ordered = True
            greet = _greet(replica, listener, greeting.MAX_HELLO_BYTES)
            await greeting.while_alive(replica.ended, greet)

    def _is_noted(self, nest: _Nest) -> bool:
        """Whether the next gateway will find what is kept there."""
        if self._note is not None and self._noted != nest.directory:
            self._noted = nest.directory
            self._note(nest.kind, nest.directory)
        return self._note is not None

    # What the template says

    def _heard(self, forker: Forker, event: Mapping[str, Any]) -> None:
        if event["event"] == "closed":
            ended = Ended(reason="crash", text="its template process ended, and it ended with it")
            for replica in list(self._replicas.values()):
                if replica.forker is forker:
                    self._finish(replica, ended)
            return
        worker, has_ended = event["worker"], event["event"] == "ended"
        if has_ended and worker not in self._replicas:
            # It was ending when its template was taken over.
            if self._nest is not None and self._nest.forker is forker:
                group = self._nest.limits.existing(worker)
                self._while_open(self._remove_group(worker, group))
            return
        replica = self._replicas[worker]
        if has_ended:
            self._finish(replica, replica.ended_by(event))
        else:
            replica.started.set_result(event["pid"])

    def _finish(self, replica: Replica, ended: Ended) -> None:
        """Note the last usage and remove the groups; then the replica has ended."""
        del self._replicas[replica.worker]
        replica.usage()
        self._while_open(self._finished(replica, ended))

    def _while_open(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that the end of the nest waits for."""
        task = asyncio.ensure_future(work)
        self._finishing.add(task)
        task.add_done_callback(self._finishing.discard)

    async def _finished(self, replica: Replica, ended: Ended) -> None:
        await self._remove_group(replica.worker, replica.group)
        replica.ended.set_result(ended)

    async def _remove_group(self, worker: int, group: Group | None) -> None:
        nest = self._nest
        if group is not None and nest is not None:
            until_s = asyncio.get_running_loop().time() + _REMOVAL_S
            while not nest.limits.clear(group):
                if asyncio.get_running_loop().time() > until_s:
                    log.warning("a control group is left", extra={"worker": worker})
                    break
                await asyncio.sleep(_RETRY_S)


def _clean_up() -> None:
    for path in cleanup_stale():
        log.info("removed what a killed gateway left", extra={"path": str(path)})


def _private_directory(name: str) -> pathlib.Path:
    directory = pathlib.Path(tempfile.gettempdir(), name)
    directory.mkdir(mode=0o700)
    return directory


async def _greet(
    replica: Replica, listener: socket.socket, most_bytes: int, *, again: bool = False
) -> wire.HelloMessage | None:
    """Accept the replica's connection and read HELLO, and not a byte more; None where it ends instead.

    Args:
        replica: which was ordered, or left.
        listener: to which it connects.
        most_bytes: of HELLO.
        again: whether another gateway started it, whose error output it has.

    Raises:
        OSError: it closes the connection meanwhile.
        ReplicaStartFailed: it says something else.
    """
    replica.pid = await asyncio.shield(replica.started)
    sock = await greeting.accept(listener)
    replica.connected(sock)
    if again:
        error_output.send(sock)
    try:
        hello = await greeting.hello_of(sock, most_bytes=most_bytes)
        if hello is None:  # it is ending; how, its end will tell
            await asyncio.shield(replica.ended)
            return None
        if hello.pid != replica.pid:
            raise wire.WireError(
                f"its HELLO is of process {hello.pid}, started was {replica.pid}; "
                "a script that starts a program must `exec` it"
            )
        replica.features = hello.features
    except wire.WireError as error:
        raise greeting.not_the_wire(error) from error
    return hello


async def _greet_again(replica: Replica, path: pathlib.Path) -> wire.HelloMessage | None:
    """As `_greet`, of a replica that lives and looks for its next gateway at a path."""
    with greeting.listening(path) as listener:
        greet = _greet(replica, listener, greeting.MAX_HELLO_OF_LEFT_BYTES, again=True)
        return await greeting.while_alive(replica.ended, greet)
