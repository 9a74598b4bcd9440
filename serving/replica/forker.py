"""The gateway's end of one template process: starts it, or takes over one that a killed gateway left; gives it
orders, hears its reports.

In: a kind of model, a runtime directory and control groups, all of which the template removes when it ends.
Out: its events, by a callback in the event loop; the last one is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import pathlib
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from serving import __version__, owner
from serving.errors import NotReady, ReplicaStartFailed
from serving.models import runtime_of
from serving.replica import predecessor
from serving.replica.template import SOCKET
from serving.secret_variables import without_secrets
from serving.values import Program

log = logging.getLogger(__name__)

_END_S = 10.0
_LAST_S = 2.0
"""Longest wait for the end of a process that has closed all its files, which is its next step."""
_RETRY_S = 0.005
_STDERR = 2
_READ_BYTES = 65_536
_OF_ONE_START = frozenset(
    {"_", "SHLVL", "OLDPWD", "LINES", "COLUMNS"}
    | {"INVOCATION_ID", "JOURNAL_STREAM", "SYSTEMD_EXEC_PID", "WATCHDOG_PID", "LISTEN_PID"}
)
"""Variables of shells and of systemd that differ from one start of the same to the next."""
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """What a template needs: no pools of threads before it forks, no telemetry, GPUs in NVML's order, no secrets."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **without_secrets(base),
        **dict.fromkeys(_THREAD_VARIABLES, "1"),
        "ORT_DISABLE_TELEMETRY": "1",
    }


def program_of(kind: str) -> dict[str, str]:
    """What a template that is started now runs; one that runs anything else is not taken over.

    Of the environment, and the folder in which modules are found, a digest: they may hold other people's secrets. Our
    own are not in it, so that a new token keeps nobody from a take-over.
    """
    seen = {name: text for name, text in os.environ.items() if name not in _OF_ONE_START}
    whole = json.dumps([_folder(), sorted(environment(seen).items())])
    return {
        "version": __version__,
        "interpreter": sys.executable,
        "runtime": runtime_of(kind),
        "environment": hashlib.sha256(whole.encode()).hexdigest()[:16],
    }


class LeftWorker(NamedTuple):
    """A living replica of a template."""

    worker: int
    pid: int
    kept: Mapping[str, Any]
    """What it was started with."""
    cpu: float | None
    memory_mb: int | None
    """Its limits."""


class Left(NamedTuple):
    """What a template has kept for the next gateway."""

    limits: Mapping[str, Any]
    """As `Limits.as_json` has them."""
    last: int
    """The highest worker number that it has seen."""
    workers: Sequence[LeftWorker]
    """Its living replicas."""


class Forker:
    """One template process. All methods belong to the event loop's thread."""

    def __init__(
        self,
        pid: int,
        process: asyncio.subprocess.Process | None,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_event: Callable[[Forker, Mapping[str, Any]], None],
    ) -> None:
        self.pid = pid
        """The template's process."""
        self._process = process
        self._owner = owner.of_process(pid)
        self._reader, self._writer = streams
        self._on_event = on_event
        self._reading: asyncio.Task[None] | None = None
        self.is_alive = True
        self.forks = True
        """Whether replicas are forks; False: its runtime started threads, each start is an import."""

    @classmethod
    async def started(
        cls, kind: str, *, on_event: Callable[[Forker, Mapping[str, Any]], None]
    ) -> Forker:
        """Start a template, which owns nothing yet; `warm` follows, or `close`.

        Args:
            kind: the kind of model whose runtime it imports.
            on_event: gets "started", "ended" and at last {"event": "closed"}.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "serving.replica.template",
                str(theirs.fileno()),
                kind,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,  # stdout belongs to the gateway
                pass_fds=(theirs.fileno(),),
                env=environment(os.environ),
                start_new_session=True,
            )
        ours.setblocking(False)
        streams = await asyncio.open_unix_connection(sock=ours)
        return cls(process.pid, process, streams, on_event)

    async def warm(
        self, kind: str, directory: pathlib.Path, limits: Mapping[str, Any], *, timeout_s: float
    ) -> None:
        """Wait until it has imported the runtime. If that fails, it is ended.

        Args:
            kind: with which it was started.
            directory: removed by the template when it ends.
            limits: control groups, removed likewise; see `Limits.as_json`.
            timeout_s: longest wait.

        Raises:
            ReplicaStartFailed: it ended, or is not warm in time.
        """
        owned = {"directory": str(directory), "limits": dict(limits), "program": program_of(kind)}
        self._order({"do": "own", **owned})
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._reader.readline()
        except TimeoutError:
            await self.abandon()
            text = f"the process that imports the runtime of kind {kind!r} was not ready after "
            raise ReplicaStartFailed("timeout", f"{text}{timeout_s:g} s") from None
        except asyncio.CancelledError:
            await self.abandon()
            raise
        if not line:
            code = await self._process.wait() if self._process is not None else None
            await self.close()
            text = f"the process that imports the runtime of kind {kind!r} ended with code {code}"
            raise ReplicaStartFailed("crash", f"{text}; its error output has the reason")
        self.forks = bool(json.loads(line)["forks"])
        self._listen()

    @classmethod
    async def taken_over(
        cls,
        kind: str,
        directory: pathlib.Path,
        *,
        on_event: Callable[[Forker, Mapping[str, Any]], None],
        timeout_s: float,
    ) -> tuple[Forker, Left]:
        """Take over a template whose gateway was killed.

        Args:
            kind: whose runtime it is to have imported.
            directory: which it owns.
            on_event: as of `started`.
            timeout_s: longest wait.

        Raises:
            NotReady: there is none, it is not this user's own, or runs another program than one of this server.
        """
        pid, streams, told = await predecessor.reached(
            directory, SOCKET, "template", timeout_s=timeout_s
        )
        forker = cls(pid, None, streams, on_event)
        try:
            program, forker.forks = dict(told["program"]), bool(told["forks"])
            workers = [LeftWorker(**one) for one in told["workers"]]
            left = Left(dict(told["limits"]), int(told["last"]), workers)
        except (ValueError, KeyError, TypeError) as error:
            streams[1].close()
            raise predecessor.unanswered(directory, "template", error) from error
        try:
            predecessor.check_facts(program, program_of(kind), directory, "template")
        except NotReady:
            await forker.close()
            raise
        forker._listen()
        return forker, left

    def _listen(self) -> None:
        self._reading = asyncio.create_task(self._read(), name="hear the template")

    def start(
        self,
        worker: int,
        *,
        path: pathlib.Path,
        procs: Sequence[pathlib.Path],
        environment: Mapping[str, str],
        cpu: float | None,
        memory_mb: int | None,
        program: Program | None = None,
        kept: Mapping[str, Any] | None = None,
    ) -> None:
        """Order a replica that joins groups by their procs files and connects to a socket's path.

        `environment` is what differs from the template's, there before a runtime looks at it. With a
        program, that is the replica; else it is a host for models of this template's kind. `cpu` and
        `memory_mb` are the limits of its groups, told to the next gateway with what is to be `kept` for it.
        """
        order: dict[str, object] = {
            "do": "start",
            "worker": worker,
            "socket": str(path),
            "procs": list(map(str, procs)),
            "environment": dict(environment),
            "cpu": cpu,
            "memory_mb": memory_mb,
            "kept": kept,
        }
        if program is not None:
            order |= {"program": program.words, "folder": str(program.folder)}
        self._order(order)

    def kill(self, worker: int) -> None:
        """Order the end of a replica; unknown ones are ignored.

        The template does it, for only who has not reaped a process can be sure of its number.
        """
        self._order({"do": "kill", "worker": worker})

    def limit(self, worker: int, *, cpu: float | None, memory_mb: int | None) -> None:
        """Tell the limits that a replica has from now on."""
        self._order({"do": "limit", "worker": worker, "cpu": cpu, "memory_mb": memory_mb})

    async def close(self) -> None:
        """End the template, and with it its replicas; its groups and directory are removed by it."""
        self._order({"do": "end"})
        try:
            async with asyncio.timeout(_END_S):
                await self._gone()
        except TimeoutError:
            await self.abandon()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        if self._reading is not None:
            await self._reading

    async def _gone(self) -> None:
        """Wait for its end. One that was taken over closes its end of the socket, and is gone shortly after."""
        if self._process is not None:
            await self._process.wait()
            return
        if self._reading is not None:
            await asyncio.shield(self._reading)
        else:
            while await self._reader.read(_READ_BYTES):
                pass
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_S):
                while not self._owner.is_gone():
                    await asyncio.sleep(_RETRY_S)

    async def abandon(self) -> None:
        """Kill the template, and with it its replicas; it removes nothing."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.kill()
            elif self.is_alive:  # it holds its end of the socket: the number is still its own
                os.kill(self.pid, signal.SIGKILL)
        self._writer.close()
        if self._process is not None:
            await self._process.wait()

    def _order(self, order: Mapping[str, object]) -> None:
        if self.is_alive:
            self._writer.write(json.dumps(order).encode() + b"\n")

    def _report(self, line: bytes) -> None:
        try:
            self._on_event(self, json.loads(line))
        except Exception:  # one lost replica must not leave the ends of all others unheard
            log.exception("a report of the template met a fault")

    async def _read(self) -> None:
        with contextlib.suppress(OSError):
            while line := await self._reader.readline():
                self._report(line)
        self.is_alive = False
        self._writer.close()
        self._on_event(self, {"event": "closed"})


def _folder() -> str:
    """The working directory; empty where it was removed."""
    try:
        return str(pathlib.Path.cwd())
    except OSError:
        return ""
