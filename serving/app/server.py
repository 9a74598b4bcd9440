"""The server's life: listen, load, serve, drain, stop. Only this module handles signals.

On SIGTERM or SIGINT, the server reports that it is not ready, goes on accepting requests for
`server.drain_delay_s`, answers in-flight ones for up to `server.drain_s`, and ends replicas and
spawners; a second signal ends the waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import pathlib
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from serving import form
from serving.accelerator import clocks
from serving.api import admin_token, credentials
from serving.api.admin.port import AdminListener
from serving.api.admin.routes import HTTP_LOG, AdminRoutes
from serving.api.credentials import Tls
from serving.api.http.access import Token
from serving.api.transport.acceptor import Acceptor
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.app.bootstrap import ServerComponents, build
from serving.app.placement import Placement
from serving.app.ports import (
    BACKLOG,
    HANDSHAKE_S,
    IDLE_S,
    REQUEST_S,
    InferenceListener,
    bind,
    bind_grpc,
    check_distinct,
    listen,
    make_connection_limiter,
    sweep,
)
from serving.app.protocols import build_protocols
from serving.deployment import spawner_registry
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine.engine import Engine
from serving.engine.facts import snapshot
from serving.errors import ServingError
from serving.metrics import exposition
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state.folder import lock_folder
from serving.system import malloc, secret_variables

log = logging.getLogger(__name__)

_ADMIN_CONNECTIONS = 64
"""Maximum number of admin connections, which must stay well below `open_files.RESERVE`."""
_LEAVE_S = 0.05
"""Seconds in which a parent takes a gateway that leaves out of the choice for new connections."""
_ADMIN_END_S = 1.0
"""Seconds that admin commands get after the inference ports have closed."""


def _print_line(facts: dict[str, Any]) -> None:
    if facts["event"] == "ready":
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()


class Server:
    """An engine behind its listeners."""

    def __init__(
        self,
        specs: Sequence[ModelSpec],
        settings: ServingSettings,
        *,
        repository: pathlib.Path | None = None,
        placement: Placement | None = None,
    ) -> None:
        """Start nothing yet; without a `placement`, the server is the only gateway."""
        self._specs = tuple(specs)
        self._placement = placement
        self._tell = _print_line if placement is None else placement.tell
        self._stops = 0
        self._root = repository
        self._settings = settings
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._token: Token | None = None
        self._admin_token: Token | None = None
        self._admin_token_file: str | None = None
        self._has_open_metrics = False
        self._admin_tls: Tls | None = None
        self._tls: Tls | None = None

    def stop(self) -> None:
        """Drain, then stop; a second call stops at once."""
        self._stops += 1
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    def _stop_server(self) -> None:
        """Stop as `stop`, or have the parent stop all gateways."""
        if self._placement is None:
            self.stop()
        else:
            self._tell({"event": "stop"})

    def stop_up_to(self, times: int) -> None:
        """Call `stop` until it was called so many times, by whomever."""
        while self._stops < times:
            self.stop()

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            ServingError: the server could not start.
        """
        malloc.lower_trim_threshold()
        settings = self._settings.server
        check_distinct(settings)
        secrets = secret_variables.take(os.environ)
        self._token = credentials.token(settings, secrets)
        self._admin_token = credentials.admin_token(settings, secrets)
        self._admin_token_file = settings.admin_token_file
        self._tls = credentials.tls(settings)
        self._admin_tls = credentials.admin_tls(settings)
        with contextlib.ExitStack() as owns, self._signals():
            placement = self._placement
            folder = None
            if placement is not None:
                folder, query = placement.folder, placement.query
            else:
                if settings.state_dir is not None:
                    folder = owns.enter_context(lock_folder(settings.state_dir))
                query = bind(settings.host, settings.port, "port")
            owns.enter_context(contextlib.closing(query))
            admin = owns.enter_context(
                contextlib.closing(bind(settings.admin_host, settings.admin_port, "admin-port"))
            )
            if self._admin_token is None and settings.admin_access == "token":
                place = None if placement is None else placement.token
                made = owns.enter_context(admin_token.generate(admin.getsockname()[1], place=place))
                self._admin_token, self._admin_token_file = (
                    Token(made.text.encode()),
                    str(made.file),
                )
                self._has_open_metrics = True
            grpc = bind_grpc(settings) if placement is None else placement.grpc
            if grpc is not None:
                owns.enter_context(contextlib.closing(grpc))
            core = build(
                self._specs,
                self._settings,
                SpawnerRegistry(spawner_registry.spawner_factory(self._settings)),
                root=self._root,
                folder=folder,
                store_password=secrets.get(secret_variables.STORE_VARIABLE),
                share=None if placement is None else placement.share,
            )
            owns.enter_context(contextlib.closing(core))
            for what in (await asyncio.to_thread(clocks.restore_stale)).done:
                log.info("removed what a killed process left behind", extra={"what": what})
            if not await self._load_models(core):
                return
            try:
                await self._serve(core, query, admin, grpc)
            finally:
                await core.engine.close()

    async def _load_models(self, core: ServerComponents) -> bool:
        opening = asyncio.create_task(core.open(), name="open engine")
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
        core: ServerComponents,
        query: socket.socket,
        admin: socket.socket,
        grpc: socket.socket | None,
    ) -> None:
        engine, repository = core.engine, core.repository
        settings = self._settings.server
        door = make_connection_limiter(settings)
        # Room for at least two of the largest bodies, for decompression.
        max_bytes = max(settings.max_buffered_mb * 1024 * 1024, 2 * settings.max_body_bytes)
        held = BufferedBytes(max_bytes)
        metrics = functools.partial(_metrics, core, door)
        protocols = build_protocols(core, self._specs, settings, self._token, metrics, door, held)
        listeners: list[InferenceListener] = [protocols.rest, protocols.grpc]
        administration = await self._administration(core, metrics)
        admin_context = self._admin_tls and self._admin_tls.context("http/1.1")
        admin_entrance = Acceptor(
            admin,
            admin_context,
            administration.protocol,
            door=administration.door,
            handshake_s=HANDSHAKE_S,
            end_s=REQUEST_S,
        )
        admin_entrance.open(BACKLOG)
        servers = [await listen(protocols.rest, query, self._tls, door, "http/1.1")]
        if grpc is not None:
            servers.append(await listen(protocols.grpc, grpc, self._tls, door, "h2"))
        swept = sweep([*listeners, administration], door, held)
        chores = [asyncio.create_task(swept, name="sweep connections")]
        chores.append(asyncio.create_task(core.applications.exchange(), name="exchange feedback"))
        if core.keeper is not None and core.keeper.is_shared:
            chores.append(asyncio.create_task(core.keeper.watch(), name="follow the record"))
        if repository is not None:
            chores.append(
                asyncio.create_task(repository.watch(core.keep), name="watch the repository")
            )
        try:
            self._announce(engine, query, admin, grpc)
            await self._stop.wait()
            engine.drain()
            self._tell({"event": "leaving"})
            await self._let_balancers_look()
            for server in servers:
                server.close()
            self._tell({"event": "closed"})
            for listener in listeners:
                listener.drain()
            await self._drain(engine, listeners)
        finally:
            for chore in chores:
                chore.cancel()
            for server in servers:
                server.close()
            for listener in listeners:
                listener.close()
            door.close()
            for server in servers:
                if isinstance(server, Acceptor):
                    await server.wait_closed()
            await protocols.close()
            admin_entrance.close()
            await admin_entrance.wait_closed()
            await administration.end()
            await core.applications.finish_exchange()

    async def _administration(
        self, core: ServerComponents, metrics: Callable[[], Iterator[bytes]]
    ) -> AdminListener:
        keeper = core.keeper
        routes = AdminRoutes(
            core.engine,
            core.repository,
            clipper=core.clipper,
            metrics=metrics,
            token=self._admin_token,
            has_open_metrics=self._has_open_metrics,
            hosts=credentials.hosts(self._settings.server, self._settings.server.admin_host),
            changing=core.changing,
            revision=None if keeper is None else lambda: keeper.revision,
            stop=self._stop_server,
            given=self._settings,
        )
        listener = AdminListener(
            routes.application(),
            idle_s=IDLE_S,
            request_s=REQUEST_S,
            door=ConnectionLimiter(_ADMIN_CONNECTIONS),
            access_log=None,
            logger=HTTP_LOG,
            shutdown_timeout=_ADMIN_END_S,
        )
        await listener.open()
        return listener

    async def _let_balancers_look(self) -> None:
        """Go on accepting while balancers, and a parent, send new clients elsewhere."""
        least_s = 0.0 if self._placement is None else _LEAVE_S
        delay_s = max(self._settings.server.drain_delay_s, least_s)
        if delay_s:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), delay_s)

    async def _drain(self, engine: Engine, listeners: Sequence[InferenceListener]) -> None:
        until_s = time.monotonic() + self._settings.server.drain_s
        log.info("draining", extra={"unfinished": engine.inflight_count})
        while (
            any(listener.connections for listener in listeners)
            and time.monotonic() < until_s
            and not self._hurry.is_set()
        ):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), 0.01)
        if engine.inflight_count:
            log.warning("not drained in time", extra={"unfinished": engine.inflight_count})

    def _announce(
        self,
        engine: Engine,
        query: socket.socket,
        admin: socket.socket,
        grpc: socket.socket | None,
    ) -> None:
        facts: dict[str, Any] = {
            "event": "ready",
            "host": self._settings.server.host,
            "port": query.getsockname()[1],
            "admin_port": admin.getsockname()[1],
            "admin_token_file": self._admin_token_file,
            "grpc_port": None if grpc is None else grpc.getsockname()[1],
            "pid": os.getpid(),
            "models": [served.name for served in engine.models()],
            "limits": engine.limits,
            "form": form(),
        }
        for note in engine.notes():
            log.warning("a setting has no effect", extra={"note": note})
        log.info(
            "ready",
            extra={
                key: facts[key] for key in ("port", "admin_port", "grpc_port", "limits", "form")
            },
        )
        self._tell(facts)

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


def _metrics(core: ServerComponents, door: ConnectionLimiter) -> Iterator[bytes]:
    now = snapshot(
        core.engine,
        connections=door.active,
        cut={"refused": door.refused, "stalled": door.stalled, "late": door.late},
        state_misses=core.applications.state_misses(),
    )
    return exposition.pieces(now)
