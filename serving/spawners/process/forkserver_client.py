"""Gateway-side client of one fork server: starts it, sends orders, receives events."""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.errors import ReplicaStartFailed
from serving.model_spec import Program
from serving.system.control_channel import Closed, ControlledProcess
from serving.system.daemon_threads import run_in_daemon_thread
from serving.system.secret_variables import without_secrets

log = logging.getLogger(__name__)

_END_S = 10.0
_ORDER_S = 5.0
"""Maximum time for which a fork server may read nothing."""
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return a fork server's environment: single-threaded, without telemetry or secrets."""
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **without_secrets(base),
        **dict.fromkeys(_THREAD_VARIABLES, "1"),
        "ORT_DISABLE_TELEMETRY": "1",
    }


class ForkServerClient:
    """Client of one fork server. Not thread-safe."""

    def __init__(
        self,
        child: ControlledProcess,
        on_event: Callable[[ForkServerClient, Mapping[str, Any]], None],
    ) -> None:
        self._child = child
        self._on_event = on_event
        self._orders: collections.deque[Mapping[str, object]] = collections.deque()
        self._warmed = asyncio.Event()
        self.is_alive = True
        self.forks = True
        """Whether replicas are forked; False if the runtime starts threads when imported."""

    @property
    def pid(self) -> int:
        """Process id of the fork server."""
        return self._child.process.pid

    @classmethod
    async def launch(
        cls,
        kind: str,
        directory: pathlib.Path,
        groups: Sequence[pathlib.Path],
        *,
        on_event: Callable[[ForkServerClient, Mapping[str, Any]], None],
        timeout_s: float,
    ) -> ForkServerClient:
        """Start a fork server and wait until it has imported the runtime of a model kind.

        When it ends, the fork server removes `directory` and `groups`. `on_event` receives
        "started", "ended" and finally {"event": "closed"}. Raises ReplicaStartFailed on failure.
        """
        child = ControlledProcess.start(
            "serving.replica.forkserver",
            [kind, str(directory), *map(str, groups)],
            environment=environment(os.environ),
        )
        forker = cls(child, on_event)
        asyncio.get_running_loop().add_reader(child.sock, forker._read)
        await forker._warm(kind, timeout_s)
        return forker

    async def _warm(self, kind: str, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._warmed.wait()
        except (TimeoutError, asyncio.CancelledError) as error:
            self._child.process.kill()
            await self.close()
            if isinstance(error, asyncio.CancelledError):
                raise
            text = f"the fork server of kind {kind!r} was not ready after {timeout_s:g} s"
            raise ReplicaStartFailed("timeout", text) from None
        if not self.is_alive:
            await self.close()
            code = self._child.process.returncode
            text = f"the fork server of kind {kind!r} ended with code {code}"
            raise ReplicaStartFailed("crash", f"{text}; its error output has the reason")

    def start(
        self,
        worker: int,
        *,
        path: pathlib.Path,
        procs: Sequence[pathlib.Path],
        environment: Mapping[str, str],
        program: Program | None = None,
    ) -> None:
        """Order the start of a replica that joins control groups by their procs files.

        `environment` overrides the fork server's variables. A program, if given, becomes the
        replica.
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
        """Order the end of a replica, as only the process that reaps a child can trust its pid."""
        self._order({"do": "kill", "worker": worker})

    async def close(self) -> None:
        """End the fork server with its replicas; it cleans up after itself."""
        self.is_alive = False  # no more orders
        self._stop_listening()
        await run_in_daemon_thread(self._child.end, _END_S)
        self._on_event(self, {"event": "closed"})

    def _order(self, order: Mapping[str, object]) -> None:
        if self.is_alive:
            self._orders.append(order)
            self._send_orders()

    def _send_orders(self) -> None:
        """Send the orders that the socket takes; the loop must not wait for the fork server."""
        loop = asyncio.get_running_loop()
        try:
            while self._orders and self._child.can_send():
                self._child.send(self._orders.popleft(), timeout_s=_ORDER_S)
        except (Closed, TimeoutError):
            self._orders.clear()
            self._child.process.kill()  # `_read` sees it
        if self._orders:
            loop.add_writer(self._child.sock, self._send_orders)
        else:
            loop.remove_writer(self._child.sock)

    def _stop_listening(self) -> None:
        loop = asyncio.get_running_loop()
        self._orders.clear()
        loop.remove_writer(self._child.sock)
        loop.remove_reader(self._child.sock)

    def _read(self) -> None:
        try:
            events = self._child.receive_all()
        except Closed:
            self._stop_listening()
            self.is_alive = False
            self._warmed.set()
            events = [{"event": "closed"}]
        for event in events:
            if event["event"] == "warm":
                self.forks = event["forks"]
                self._warmed.set()
                continue
            try:
                self._on_event(self, event)
            except Exception:  # one lost replica must not hide the ends of others
                log.exception("a report of the fork server hit an error")
