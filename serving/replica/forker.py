"""The gateway's end of one template process: starts it, gives it orders, hears its reports.

In: a kind of model, a runtime directory and directories of control groups, all of which the template
removes when it ends. Out: its events, by a callback in the event loop; the last one is the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.errors import ReplicaStartFailed
from serving.secret_variables import without_secrets
from serving.values import Program

log = logging.getLogger(__name__)

_END_S = 10.0
_STDERR = 2
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


class Forker:
    """One template process. All methods belong to the event loop's thread."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_event: Callable[[Forker, Mapping[str, Any]], None],
    ) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._on_event = on_event
        self._reading: asyncio.Task[None] | None = None
        self.is_alive = True
        self.forks = True
        """Whether replicas are forks; False: its runtime started threads, each start is an import."""

    @property
    def pid(self) -> int:
        """The template's process."""
        return self._process.pid

    @classmethod
    async def started(
        cls,
        kind: str,
        directory: pathlib.Path,
        groups: Sequence[pathlib.Path],
        *,
        on_event: Callable[[Forker, Mapping[str, Any]], None],
        timeout_s: float,
    ) -> Forker:
        """Start a template and wait until it has imported the runtime. If that fails, it is ended.

        Args:
            kind: the kind of model whose runtime it imports.
            directory: removed by the template when it ends.
            groups: directories of control groups, removed likewise.
            on_event: gets "started", "ended" and at last {"event": "closed"}.
            timeout_s: longest wait.

        Raises:
            ReplicaStartFailed: it ended, or is not warm in time.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "serving.replica.template",
                str(theirs.fileno()),
                kind,
                str(directory),
                *map(str, groups),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=_STDERR,  # stdout belongs to the gateway
                pass_fds=(theirs.fileno(),),
                env=environment(os.environ),
                start_new_session=True,
            )
        ours.setblocking(False)
        forker = cls(process, await asyncio.open_unix_connection(sock=ours), on_event)
        await forker._warm(kind, timeout_s)
        return forker

    async def _warm(self, kind: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._reader.readline()
        except TimeoutError:
            await self._kill()
            text = f"the process that imports the runtime of kind {kind!r} was not ready after "
            raise ReplicaStartFailed("timeout", f"{text}{timeout_s:g} s") from None
        except asyncio.CancelledError:
            await self._kill()
            raise
        if not line:
            code = await self._process.wait()
            await self.close()
            text = f"the process that imports the runtime of kind {kind!r} ended with code {code}"
            raise ReplicaStartFailed("crash", f"{text}; its error output has the reason")
        self.forks = bool(json.loads(line)["forks"])
        self._reading = asyncio.create_task(self._read(), name="hear the template")

    def start(
        self,
        worker: int,
        *,
        path: pathlib.Path,
        procs: Sequence[pathlib.Path],
        environment: Mapping[str, str],
        program: Program | None = None,
    ) -> None:
        """Order a replica that joins groups by their procs files and connects to a socket's path.

        `environment` is what differs from the template's, there before a runtime looks at it. With a
        program, that is the replica; else it is a host for models of this template's kind.
        """
        order: dict[str, object] = {
            "do": "start",
            "worker": worker,
            "socket": str(path),
            "procs": list(map(str, procs)),
            "environment": dict(environment),
        }
        if program is not None:
            order |= {"program": program.words, "folder": str(program.folder)}
        self._order(order)

    def kill(self, worker: int) -> None:
        """Order the end of a replica; unknown ones are ignored.

        The template does it, for only who has not reaped a process can be sure of its number.
        """
        self._order({"do": "kill", "worker": worker})

    async def close(self) -> None:
        """End the template, and with it its replicas; its groups and directory are removed by it."""
        self.is_alive = False  # it is given no more orders
        self._writer.close()
        try:
            async with asyncio.timeout(_END_S):
                await self._process.wait()
        except TimeoutError:
            await self._kill()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        if self._reading is not None:
            await self._reading

    async def _kill(self) -> None:
        """Kill the template, and with it its replicas; it removes nothing."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._writer.close()
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
