"""Several gateways of one machine under one parent, which serves nothing itself.

    sockets listen -> gateways started -> all ready -> `ready` line -> SIGTERM -> drain

Each gateway has a socket of its own on each inference port. The parent holds them all, so that
connections that wait in the socket of a gateway that ends are not reset: the next one takes them.
New connections go to gateways that are ready only. A gateway that ends is started again, after a
back-off if it did not become ready; when the parent ends, however, gateways drain and end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from serving.api import admin_token
from serving.api.admin_token import TokenPlace
from serving.app import steering
from serving.app.ports import BACKLOG, bind, bind_grpc, check_distinct
from serving.errors import InvalidSettings, NotReady, ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state.folder import lock_folder
from serving.system import process_identity
from serving.system.control_channel import Closed, ControlledProcess
from serving.zoo import model_specs

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
_SEND_S = 5.0
_KILL_S = 30.0
"""Seconds after the time to drain in which a gateway must have ended its replicas and itself."""


class _Gateway:
    """One place among the gateways, and the process in it, if any."""

    def __init__(self, index: int, admin_port: int) -> None:
        self.index = index
        self.admin_port = admin_port
        """0 until the first process has taken a free one."""
        self.process: ControlledProcess | None = None
        self.facts: dict[str, Any] | None = None
        """What the process said when it became ready; None before, and once it leaves."""
        self.is_closed = False
        """Whether the process accepts no connections any more."""


class Gateways:
    """The parent of a server's gateways."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        settings: ServingSettings,
        repository: pathlib.Path | None,
        *,
        level: str,
    ) -> None:
        """Start nothing yet; `level` is that of the gateways' logs."""
        self._specs = tuple(specs)
        # Metrics of one gateway, on a port of all, would jump from one gateway's to another's.
        self._settings = settings.with_changes({"server.metrics": "admin"})
        self._repository = repository
        self._level = level
        first = settings.server.admin_port
        self._gateways = [
            _Gateway(index, first and first + index) for index in range(settings.server.gateways)
        ]
        self._stops = 0
        self._stopping = asyncio.Event()
        self._ended: asyncio.Future[None]
        self._query: list[socket.socket] = []
        self._grpc: list[socket.socket] = []
        self._folder: pathlib.Path | None = None
        self._token: TokenPlace | None = None
        self._is_announced = False

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            ServingError: the server could not start.
        """
        self._ended = asyncio.get_running_loop().create_future()
        with contextlib.ExitStack() as owns, self._signals():
            self._bind(owns)
            self._folder = owns.enter_context(self._state_folder())
            with contextlib.suppress(NotReady):  # a gateway says it, if it needs a token at all
                self._token = owns.enter_context(admin_token.make_place())
            keepers = [asyncio.create_task(self._keep(one)) for one in self._gateways]
            try:
                await self._ended
            finally:
                await self._end(keepers)

    # Sockets

    def _bind(self, owns: contextlib.ExitStack) -> None:
        settings = self._settings.server
        check_distinct(settings)
        ports = [one.admin_port for one in self._gateways if one.admin_port]
        if ports and ports[-1] > 65_535:
            raise InvalidSettings(
                f"server.admin_port {ports[0]}: the admin ports of {len(ports)} gateways would end "
                f"at {ports[-1]}, expected at most 65535"
            )
        first = bind(settings.host, settings.port, "port")
        self._query = [owns.enter_context(contextlib.closing(first))]
        grpc = bind_grpc(settings)
        if grpc is not None:
            self._grpc = [owns.enter_context(contextlib.closing(grpc))]
        for sockets, name in ((self._query, "port"), (self._grpc, "set server.grpc_port")):
            for sock in sockets:
                port = sock.getsockname()[1]
                if port in ports:
                    raise InvalidSettings(
                        f"port {port} is both --{name} and the admin port of a gateway (they have "
                        f"{ports[0]} to {ports[-1]}); choose another --admin-port"
                    )
            if sockets:  # only now others may join: nobody else has the port
                sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                port = sockets[0].getsockname()[1]
                for _ in self._gateways[1:]:
                    sock = bind(settings.host, port, name, joins=True)
                    sockets.append(owns.enter_context(contextlib.closing(sock)))
            # The kernel numbers them in the order in which they listen, so all do before a gateway
            # does; what connects before it is ready waits.
            for sock in sockets:
                sock.listen(BACKLOG)

    def _steer(self) -> None:
        """Let the sockets of ready gateways, and no others, get new connections."""
        ready = [one.index for one in self._gateways if one.facts is not None]
        if ready:
            for sockets in (self._query, self._grpc):
                if sockets:
                    steering.steer(sockets[0], ready)

    def _announce(self) -> None:
        """Say that all are ready for the first time."""
        self._is_announced = True
        told = [one.facts for one in self._gateways if one.facts is not None]
        apart = ("pid", "admin_port", "admin_token_file")
        facts = {
            **told[0],
            "pid": os.getpid(),
            "gateways": [{key: one[key] for key in apart} for one in told],
        }
        log.info("ready", extra={"gateways": len(told), "port": facts["port"]})
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    # Gateways

    async def _keep(self, gateway: _Gateway) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                process = gateway.process = self._start(gateway)
            except OSError as error:
                log.error("a gateway cannot be started", extra={"error": str(error)})
            else:
                began_s = time.monotonic()
                gateway.is_closed = False
                was_ready = await self._follow(gateway, process)
                if self._stopping.is_set():
                    return
                if was_ready and time.monotonic() - began_s > MAX_BACKOFF_S:
                    failures = 0
                facts = {"index": gateway.index, "exit_code": process.process.returncode}
                log.error("a gateway ended and is started again", extra=facts)
            delay_s = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures, 16))
            failures += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    def _start(self, gateway: _Gateway) -> ControlledProcess:
        at = gateway.index
        query, grpc = self._query[at], self._grpc[at] if self._grpc else None
        mine = [sock.fileno() for sock in (query, grpc) if sock is not None]
        return ControlledProcess.start("serving.app.gateway", descriptors=mine)

    def _command(self, gateway: _Gateway, process: ControlledProcess) -> None:
        at = gateway.index
        query, grpc = self._query[at], self._grpc[at] if self._grpc else None
        settings = self._settings.with_changes({"server.admin_port": gateway.admin_port})
        process.send(
            {
                "index": at,
                "gateways": len(self._gateways),
                "folder": None if self._folder is None else str(self._folder),
                "query": query.fileno(),
                "grpc": None if grpc is None else grpc.fileno(),
                "token": None
                if self._token is None
                else [self._token.text, str(self._token.folder)],
                "repository": None if self._repository is None else str(self._repository),
                "specs": [model_specs.as_json(spec) for spec in self._specs],
                "settings": settings.as_nested(),
                "log_level": self._level,
            },
            timeout_s=_SEND_S,
        )
        if self._stops:
            self._send_stop(process)

    async def _follow(self, gateway: _Gateway, process: ControlledProcess) -> bool:
        """Command and hear a gateway until it has ended; return whether it was ready."""
        loop = asyncio.get_running_loop()
        heard, was_ready, within_s = asyncio.Event(), False, 0.0
        loop.add_reader(process.sock, heard.set)
        try:
            self._command(gateway, process)
            within_s = _KILL_S
            while True:
                await heard.wait()
                heard.clear()
                for message in process.receive_all():
                    was_ready |= message["event"] == "ready"
                    self._hear(gateway, message)
        except (Closed, TimeoutError):
            return was_ready
        finally:
            loop.remove_reader(process.sock)
            gateway.facts = None
            gateway.process = None
            self._steer()
            self._refuse_if_closed()
            await asyncio.to_thread(_reap, process, 0.0 if self._stops > 1 else within_s)
            if not self._is_announced:
                self._fail(NotReady(f"gateway {gateway.index} ended before it was ready"))

    def _hear(self, gateway: _Gateway, message: dict[str, Any]) -> None:
        if message["event"] == "ready":
            gateway.facts = message
            gateway.admin_port = message["admin_port"]
            self._steer()
            if not self._is_announced and None not in (one.facts for one in self._gateways):
                self._announce()
        elif message["event"] == "leaving":
            gateway.facts = None
            self._steer()
        elif message["event"] == "closed":
            gateway.is_closed = True
            self._refuse_if_closed()
        elif message["event"] == "stop":
            self.stop()
        elif not self._is_announced:
            wrong = InvalidSettings if message["code"] == 2 else NotReady
            self._fail(wrong(message["reason"]))
        else:
            log.error("a gateway cannot start", extra={"error": message["reason"]})

    def _fail(self, error: ServingError) -> None:
        if not self._ended.done():
            self._ended.set_exception(error)

    # End

    def stop(self) -> None:
        """Have all gateways drain; a second call ends them at once."""
        self._stops += 1
        self._stopping.set()
        if not self._ended.done():
            self._ended.set_result(None)
        for gateway in self._gateways:
            if gateway.process is not None:
                self._send_stop(gateway.process)

    def _refuse_if_closed(self) -> None:
        """Close the sockets if the server stops and nobody accepts: who waits in them need not."""
        if self._stops and all(one.is_closed or one.process is None for one in self._gateways):
            for sock in (*self._query, *self._grpc):
                sock.close()

    def _send_stop(self, process: ControlledProcess) -> None:
        with contextlib.suppress(Closed, TimeoutError):
            process.send({"stop": max(1, self._stops)}, timeout_s=_SEND_S)

    async def _end(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Wait until all gateways have ended, and kill those that are late."""
        settings = self._settings.server
        if not self._stops:
            self.stop()
        within_s = settings.drain_delay_s + settings.drain_s + _KILL_S
        _, late = await asyncio.wait(keepers, timeout=within_s)
        for gateway in self._gateways:
            if late and gateway.process is not None:
                log.error("a gateway did not end in time", extra={"index": gateway.index})
                gateway.process.process.kill()
        await asyncio.gather(*keepers, return_exceptions=True)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    # State

    @contextlib.contextmanager
    def _state_folder(self) -> Iterator[pathlib.Path | None]:
        """The folder of the state that gateways share; for this run, if the settings name no place."""
        given = self._settings.server.state_dir
        if given is not None:
            with lock_folder(given) as folder:
                yield folder
            return
        if self._settings.server.state_store is not None:
            yield None
            return
        # A folder of this name is removed by the next server, if this one is killed.
        folder = process_identity.make_directory(process_identity.this_process().new_name())
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _reap(process: ControlledProcess, within_s: float) -> None:
    """Wait for a process that has closed its channel; kill it if it stays."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.end(within_s)
