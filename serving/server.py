"""The server's life: listen, load, serve, drain, stop. The only place of `serving` that handles
signals.

In: model cards and settings. Out: an exit code. SIGTERM or SIGINT: not ready at once, idle
connections closed, what was taken is answered within `server.drain_s`, replicas and their home
ended; a second signal ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import logging
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence

from aiohttp import web

from serving.engine import Engine
from serving.errors import NotReady, ServingError
from serving.homes import Homes
from serving.metrics.exposition import Exposition
from serving.protocol.admin import AdminRoutes
from serving.protocol.http import Listener
from serving.protocol.routes import OipRoutes
from serving.repository import Repository
from serving.settings import ServingSettings
from serving.values import ModelCard

log = logging.getLogger(__name__)

_BACKLOG = 1024
_IDLE_S = 120.0
_REQUEST_S = 30.0
_SWEEP_S = 5.0


def bind(host: str, port: int, name: str) -> socket.socket:
    """A socket bound to an address, not yet listening.

    Raises:
        NotReady: the port is taken or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise NotReady(
                f"port {port} on {host} is in use; choose another with --{name} (0 takes a free one)"
            ) from error
        raise NotReady(
            f"cannot listen on {host}:{port} ({error}); --host takes an address of this machine"
        ) from error
    return sock


class Server:
    """One engine behind its listeners."""

    def __init__(
        self,
        cards: Sequence[ModelCard],
        settings: ServingSettings,
        *,
        repository: pathlib.Path | None = None,
    ) -> None:
        """Nothing is started yet.

        Args:
            cards: the models to serve.
            settings: all settings.
            repository: a folder of models beside them, watched for new versions.
        """
        self._cards = tuple(cards)
        self._root = repository
        self._settings = settings
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()

    def stop(self) -> None:
        """Drain and end; called again: end now."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            ServingError: it could not start.
        """
        settings = self._settings.server
        with contextlib.ExitStack() as sockets, self._signals():
            query = sockets.enter_context(
                contextlib.closing(bind(settings.host, settings.port, "port"))
            )
            admin = sockets.enter_context(
                contextlib.closing(bind(settings.admin_host, settings.admin_port, "admin-port"))
            )
            engine = Engine(self._cards, self._settings, Homes())
            repository = None
            if self._root is not None:
                repository = Repository(
                    self._root,
                    engine,
                    kept=settings.repository_kept,
                    poll_s=settings.repository_poll_s,
                )
            if not await self._opened(engine, repository):
                return
            try:
                await self._serve(engine, repository, query, admin)
            finally:
                await engine.close()

    async def _opened(self, engine: Engine, repository: Repository | None) -> bool:
        """Load the models; False when a signal came first."""
        opening = asyncio.create_task(_open(engine, repository), name="open engine")
        stopping = asyncio.create_task(self._stop.wait(), name="wait for a signal")
        await asyncio.wait({opening, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if opening.done():
            opening.result()
            return True
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError, ServingError):
            await opening
        return False

    async def _serve(
        self,
        engine: Engine,
        repository: Repository | None,
        query: socket.socket,
        admin: socket.socket,
    ) -> None:
        loop = asyncio.get_running_loop()
        listener = Listener(
            OipRoutes(engine),
            max_body_bytes=self._settings.server.max_body_bytes,
            idle_s=_IDLE_S,
            request_s=_REQUEST_S,
        )
        exposition = Exposition(lambda: engine.metrics(len(listener.connections)))
        runner = web.AppRunner(
            AdminRoutes(engine, repository, metrics=exposition.text).application(), access_log=None
        )
        await runner.setup()
        await web.SockSite(runner, admin).start()
        server = await loop.create_server(listener.protocol, sock=query, backlog=_BACKLOG)
        chores = [asyncio.create_task(_sweep(listener), name="sweep connections")]
        if repository is not None:
            chores.append(asyncio.create_task(repository.watch(), name="watch the repository"))
        try:
            self._announce(engine, query, admin)
            await self._stop.wait()
            engine.drain()
            server.close()
            listener.drain()
            await self._drained(engine, listener)
        finally:
            for chore in chores:
                chore.cancel()
            server.close()
            listener.close()
            await runner.cleanup()

    async def _drained(self, engine: Engine, listener: Listener) -> None:
        until_s = time.monotonic() + self._settings.server.drain_s
        log.info("draining", extra={"unfinished": engine.unfinished})
        while listener.connections and time.monotonic() < until_s and not self._hurry.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), 0.01)
        if engine.unfinished:
            log.warning("not drained in time", extra={"unfinished": engine.unfinished})

    def _announce(self, engine: Engine, query: socket.socket, admin: socket.socket) -> None:
        """One line on stdout: ready, and where."""
        facts = {
            "event": "ready",
            "host": self._settings.server.host,
            "port": query.getsockname()[1],
            "admin_port": admin.getsockname()[1],
            "pid": os.getpid(),
            "models": [served.name for served in engine.models()],
            "limits": engine.limits,
        }
        log.info("ready", extra={key: facts[key] for key in ("port", "admin_port", "limits")})
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

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


async def _open(engine: Engine, repository: Repository | None) -> None:
    await engine.open()
    if repository is not None:
        try:
            await repository.open()
        except BaseException:
            await engine.close()
            raise


async def _sweep(listener: Listener) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        listener.sweep(time.monotonic())
