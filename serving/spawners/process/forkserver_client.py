"""Gateway-side client of one fork server: starts it, sends orders, receives events."""

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
from serving.model_spec import Program
from serving.system.secret_variables import without_secrets

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
    """Return its environment: single-threaded, no telemetry, GPUs in NVML's order, no secrets."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **without_secrets(base),
        **dict.fromkeys(_THREAD_VARIABLES, "1"),
        "ORT_DISABLE_TELEMETRY": "1",
    }


class ForkServerClient:
    """One fork server. All methods belong to the event loop's thread."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        on_event: Callable[[ForkServerClient, Mapping[str, Any]], None],
    ) -> None:
        self._process = process
        self._reader, self._writer = streams
        self._on_event = on_event
        self._reading: asyncio.Task[None] | None = None
        self.is_alive = True
        self.forks = True
        """False if the runtime started threads, so that each start imports it."""

    @property
    def pid(self) -> int:
        """Pid of the fork server."""
        return self._process.pid

    @classmethod
    async def started(
        cls,
        kind: str,
        directory: pathlib.Path,
        groups: Sequence[pathlib.Path],
        *,
        on_event: Callable[[ForkServerClient, Mapping[str, Any]], None],
        timeout_s: float,
    ) -> ForkServerClient:
        """Start a fork server and wait until it has imported the runtime of a model kind.

        The fork server removes `directory` and `groups` at its end. `on_event` gets "started",
        "ended" and at last {"event": "closed"}.

        Raises:
            ReplicaStartFailed: it ended, or was not ready in time.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "serving.replica.forkserver",
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
            text = f"the fork server of kind {kind!r} was not ready after "
            raise ReplicaStartFailed("timeout", f"{text}{timeout_s:g} s") from None
        except asyncio.CancelledError:
            await self._kill()
            raise
        if not line:
            code = await self._process.wait()
            await self.close()
            text = f"the fork server of kind {kind!r} ended with code {code}"
            raise ReplicaStartFailed("crash", f"{text}; its error output has the reason")
        self.forks = bool(json.loads(line)["forks"])
        self._reading = asyncio.create_task(self._read(), name="read the fork server")

    def start(
        self,
        worker: int,
        *,
        path: pathlib.Path,
        procs: Sequence[pathlib.Path],
        environment: Mapping[str, str],
        program: Program | None = None,
    ) -> None:
        """Order a replica that joins groups by their procs files.

        `environment` holds what differs from the fork server's. A program becomes the replica.
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
        """Order the end of a replica, if it exists.

        Only the process that reaps a child can trust its pid.
        """
        self._order({"do": "kill", "worker": worker})

    async def close(self) -> None:
        """End the fork server with its replicas; it cleans up."""
        self.is_alive = False  # no more orders
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
        """Kill the fork server with its replicas, without clean-up."""
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
        except Exception:  # one lost replica must not hide the ends of others
            log.exception("a report of the fork server hit an error")

    async def _read(self) -> None:
        with contextlib.suppress(OSError):
            while line := await self._reader.readline():
                self._report(line)
        self.is_alive = False
        self._writer.close()
        self._on_event(self, {"event": "closed"})
