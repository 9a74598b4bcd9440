"""Life of the server: listen, load, serve, drain, stop. Only this module handles signals.

On SIGTERM or SIGINT the server is no longer ready, answers in-flight requests within
`server.drain_s`, and ends replicas and spawners; a second signal ends the wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import json
import logging
import os
import pathlib
import random
import signal
import socket
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Protocol

from serving import form, zoo
from serving.accelerator import clocks
from serving.api import admin_token, credentials
from serving.api.admin.port import AdminListener
from serving.api.admin.routes import HTTP_LOG, AdminRoutes
from serving.api.clipper.routes import ClipperRoutes
from serving.api.credentials import Tls
from serving.api.grpc.listener import GrpcListener
from serving.api.grpc.routes import GrpcRoutes
from serving.api.http.access import Access, Token
from serving.api.http.listener import HttpListener, Routes
from serving.api.http.middleware import Middleware
from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.tensorflow import grpc_routes as grpc_tfs
from serving.api.tensorflow.grpc_routes import TensorFlowGrpcRoutes
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.api.transport.acceptor import Acceptor
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.api.triton.repository_service import RepositoryService
from serving.api.triton.routes import TritonRoutes
from serving.app.bootstrap import ServerComponents, build
from serving.deployment import spawner_registry
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine.engine import Engine
from serving.errors import NotReady, ServingError
from serving.metrics.clipper_metrics import Registry
from serving.metrics.exposition import Exposition
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.settings.server import ServerSettings
from serving.state.folder import lock_folder
from serving.system import malloc, open_files, secret_variables

log = logging.getLogger(__name__)

_BACKLOG = 1024
_ADMIN_CONNECTIONS = 64
"""Maximum admin connections; part of `open_files.RESERVE`, so keep it well below."""
_IDLE_S = 120.0
_REQUEST_S = 30.0
_SWEEP_S = 5.0
_MUCH_BYTES = malloc.LARGE_BYTES
"""Decrease of buffered bytes after which a sweep returns heap memory."""
_HANDSHAKE_S = 10.0
"""TLS handshake timeout."""
_TLS_END_S = 3600.0
"""Maximum time to close a TLS connection with a response in flight; sweeps end slow clients."""
_GRPC_BESIDE = {8000: 8001, 0: 0}
"""Inference port -> default gRPC port."""
_ADMIN_END_S = 1.0
"""Time for admin commands after the inference ports have closed; loads are cancelled."""


def bind(host: str, port: int, name: str) -> socket.socket:
    """Return a bound socket that does not listen yet.

    Raises:
        NotReady: the port is in use, or the address is not local.
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


def bind_grpc(settings: ServerSettings) -> socket.socket | None:
    """Return the gRPC port's bound socket; None: off, or the default port is in use.

    Raises:
        NotReady: the configured port is in use, or the address is not local.
    """
    port = settings.grpc_port
    if port is None:
        return None
    if port != "auto":
        return bind(settings.host, port, "set server.grpc_port")
    if settings.port not in _GRPC_BESIDE:
        return None
    try:
        return bind(settings.host, _GRPC_BESIDE[settings.port], "set server.grpc_port")
    except NotReady as error:
        log.warning("served without gRPC", extra={"reason": str(error)})
        return None


class SweptListener(Protocol):
    """A listener whose connections are checked periodically."""

    def sweep(self, now_s: float) -> None:
        """Close connections idle or incomplete for too long."""
        ...


class InferenceListener(SweptListener, Protocol):
    """Interface of an inference port's listener, for any protocol."""

    @property
    def connections(self) -> Collection[object]:
        """Open connections."""
        ...

    def protocol(self) -> asyncio.Protocol:
        """Factory of connections for the event loop's server."""
        ...

    def drain(self) -> None:
        """Close each connection once its requests are answered."""
        ...

    def close(self) -> None:
        """Close all connections now."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Protocols:
    """Handlers behind the inference ports; REST has a middleware."""

    gate: Middleware
    triton: TritonRoutes
    calls: GrpcRoutes

    async def close(self) -> None:
        """Stop their remaining work."""
        self.gate.close()
        await asyncio.gather(self.triton.close(), self.calls.close())


class Server:
    """One engine behind its listeners."""

    def __init__(
        self,
        cards: Sequence[ModelSpec],
        settings: ServingSettings,
        *,
        repository: pathlib.Path | None = None,
    ) -> None:
        """Start nothing yet."""
        self._cards = tuple(cards)
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
        """Drain and stop; a second call stops at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> None:
        """Serve until stopped.

        Raises:
            ServingError: the start failed.
        """
        malloc.lower_trim_threshold()
        settings = self._settings.server
        secrets = secret_variables.take(os.environ)
        self._token = credentials.token(settings, secrets)
        self._admin_token = credentials.admin_token(settings, secrets)
        self._admin_token_file = settings.admin_token_file
        self._tls = credentials.tls(settings)
        self._admin_tls = credentials.admin_tls(settings)
        with contextlib.ExitStack() as owns, self._signals():
            folder = None
            if settings.state_dir is not None:
                folder = owns.enter_context(lock_folder(settings.state_dir))
            query = owns.enter_context(
                contextlib.closing(bind(settings.host, settings.port, "port"))
            )
            admin = owns.enter_context(
                contextlib.closing(bind(settings.admin_host, settings.admin_port, "admin-port"))
            )
            if self._admin_token is None and settings.admin_access == "token":
                made = owns.enter_context(admin_token.generate(admin.getsockname()[1]))
                self._admin_token, self._admin_token_file = (
                    Token(made.text.encode()),
                    str(made.file),
                )
                self._has_open_metrics = True
            grpc = bind_grpc(settings)
            if grpc is not None:
                owns.enter_context(contextlib.closing(grpc))
            core = build(
                self._cards,
                self._settings,
                SpawnerRegistry(spawner_registry.spawner_factory(self._settings.replica)),
                root=self._root,
                folder=folder,
                store_password=secrets.get(secret_variables.STORE_VARIABLE),
            )
            owns.enter_context(contextlib.closing(core))
            for what in (await asyncio.to_thread(clocks.restore_stale)).done:
                log.info("restored what a killed process left", extra={"what": what})
            if not await self._opened(core):
                return
            try:
                await self._serve(core, query, admin, grpc)
            finally:
                await core.engine.close()

    async def _opened(self, core: ServerComponents) -> bool:
        """Load the models; return False if a signal came first."""
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
        door = _make_connection_limiter(self._settings.server)
        exposition = Exposition(
            lambda: dataclasses.replace(
                engine.metrics(door.inside, fresh_states=core.applications.fresh_states()),
                cut={"refused": door.refused, "stalled": door.stalled, "late": door.late},
            )
        )
        held = BufferedBytes(_max_buffered_bytes(self._settings.server))
        protocols = self._protocols(core, exposition, held)
        ports = self._query_ports(protocols, query, grpc, door, held)
        listeners = [listener for listener, _ in ports]
        administration = await self._administration(core, exposition)
        admin_context = self._admin_tls and self._admin_tls.context("http/1.1")
        admin_entrance = Acceptor(
            admin,
            admin_context,
            administration.protocol,
            door=administration.door,
            handshake_s=_HANDSHAKE_S,
            end_s=_REQUEST_S,
        )
        admin_entrance.open(_BACKLOG)
        servers = [
            await self._listen(listener, sock, door, "http/1.1" if sock is query else "h2")
            for listener, sock in ports
        ]
        swept: list[SweptListener] = [*listeners, administration]
        chores = [asyncio.create_task(_sweep(swept, door, held), name="sweep connections")]
        if repository is not None:
            chores.append(
                asyncio.create_task(repository.watch(core.keep), name="watch the repository")
            )
        try:
            self._announce(engine, query, admin, grpc)
            await self._stop.wait()
            engine.drain()
            for server in servers:
                server.close()
            for listener in listeners:
                listener.drain()
            await self._drained(engine, listeners)
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

    async def _administration(
        self, core: ServerComponents, exposition: Exposition
    ) -> AdminListener:
        """Open the admin port's listener."""
        routes = AdminRoutes(
            core.engine,
            core.repository,
            clipper=core.clipper,
            metrics=exposition.pieces,
            token=self._admin_token,
            has_open_metrics=self._has_open_metrics,
            hosts=credentials.hosts(self._settings.server, self._settings.server.admin_host),
            keep=core.keep,
            stop=self.stop,
            given=self._settings,
        )
        listener = AdminListener(
            routes.application(),
            idle_s=_IDLE_S,
            request_s=_REQUEST_S,
            door=ConnectionLimiter(_ADMIN_CONNECTIONS),
            access_log=None,
            logger=HTTP_LOG,
            shutdown_timeout=_ADMIN_END_S,
        )
        await listener.open()
        return listener

    async def _listen(
        self, listener: InferenceListener, sock: socket.socket, door: ConnectionLimiter, speaks: str
    ) -> asyncio.Server | Acceptor:
        """Accept clients on an inference port; `speaks` is its ALPN name."""
        if self._tls is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(listener.protocol, sock=sock, backlog=_BACKLOG)
        entrance = Acceptor(
            sock,
            self._tls.context(speaks),
            listener.protocol,
            door=door,
            handshake_s=_HANDSHAKE_S,
            end_s=_TLS_END_S,
        )
        entrance.open(_BACKLOG)
        return entrance

    def _protocols(
        self, core: ServerComponents, exposition: Exposition, held: BufferedBytes
    ) -> _Protocols:
        """Build the handlers behind the inference ports."""
        engine, max_json_bytes = core.engine, self._settings.server.max_json_bytes
        is_shown = self._settings.server.metrics == "query"
        hub = RepositoryService(
            engine,
            core.repository,
            cards=[*zoo.bundled_specs(), *self._cards],
            is_controlled=self._settings.server.model_control == "explicit",
            shows_statistics=is_shown,
            keep=core.keep,
        )
        triton = TritonRoutes(hub)
        rest = Router(
            oip=OpenInferenceRoutes(engine, triton, max_json_bytes),
            tfs=TensorFlowRoutes(
                engine,
                metrics=exposition.pieces if is_shown else None,
                max_json_bytes=max_json_bytes,
            ),
            otherwise=ClipperRoutes(
                core.clipper,
                metrics=Registry(random.Random()),  # noqa: S311 - it samples latencies
                shows_metrics=is_shown,
                max_json_bytes=max_json_bytes,
            ),
        )
        services = dict.fromkeys(grpc_tfs.SERVICES, TensorFlowGrpcRoutes(engine))
        return _Protocols(
            gate=self._gate(rest, held),
            triton=triton,
            calls=GrpcRoutes(engine, hub=hub, services=services),
        )

    def _gate(self, routes: Routes, held: BufferedBytes) -> Middleware:
        """Build the middleware of the inference port."""
        settings = self._settings.server
        origins = [origin.strip() for origin in (settings.cors or "").split(",")]
        return Middleware(
            routes,
            Access(
                token=self._token,
                origins=[origin for origin in origins if origin],
                hosts=credentials.hosts(settings, settings.host),
            ),
            max_body_bytes=settings.max_body_bytes,
            gzip_min_bytes=settings.gzip_min_bytes,
            is_timed=settings.timing == "header",
            held=held,
        )

    def _query_ports(
        self,
        protocols: _Protocols,
        query: socket.socket,
        grpc: socket.socket | None,
        door: ConnectionLimiter,
        held: BufferedBytes,
    ) -> list[tuple[InferenceListener, socket.socket]]:
        """Return the inference listeners with their sockets."""
        max_body_bytes = self._settings.server.max_body_bytes
        rest = HttpListener(
            protocols.gate,
            max_body_bytes=max_body_bytes,
            idle_s=_IDLE_S,
            request_s=_REQUEST_S,
            door=door,
            held=held,
            refusal=protocols.gate.refusal,
        )
        ports: list[tuple[InferenceListener, socket.socket]] = [(rest, query)]
        if grpc is not None:
            grpc_listener = GrpcListener(
                protocols.calls,
                max_body_bytes=max_body_bytes,
                idle_s=_IDLE_S,
                request_s=_REQUEST_S,
                token=self._token,
                door=door,
                held=held,
                gzip_min_bytes=self._settings.server.gzip_min_bytes,
            )
            ports.append((grpc_listener, grpc))
        return ports

    async def _drained(self, engine: Engine, listeners: Sequence[InferenceListener]) -> None:
        until_s = time.monotonic() + self._settings.server.drain_s
        log.info("draining", extra={"unfinished": engine.unfinished})
        while (
            any(listener.connections for listener in listeners)
            and time.monotonic() < until_s
            and not self._hurry.is_set()
        ):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), 0.01)
        if engine.unfinished:
            log.warning("not drained in time", extra={"unfinished": engine.unfinished})

    def _announce(
        self,
        engine: Engine,
        query: socket.socket,
        admin: socket.socket,
        grpc: socket.socket | None,
    ) -> None:
        """Print the ready line on stdout."""
        facts = {
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
            log.warning("a setting changes nothing", extra={"note": note})
        log.info(
            "ready",
            extra={
                key: facts[key] for key in ("port", "admin_port", "grpc_port", "limits", "form")
            },
        )
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


def _make_connection_limiter(settings: ServerSettings) -> ConnectionLimiter:
    """Build the connection limiter, overall and per client."""
    most = open_files.room_for(settings.max_connections)
    return ConnectionLimiter(most, settings.max_connections_of_client or max(1, most // 4))


def _max_buffered_bytes(settings: ServerSettings) -> int:
    """Return the buffer size for requests: two of the largest at least, for decompression."""
    return max(settings.max_held_mb * 1024 * 1024, 2 * settings.max_body_bytes)


async def _sweep(
    listeners: Sequence[SweptListener], door: ConnectionLimiter, held: BufferedBytes
) -> None:
    while True:
        await asyncio.sleep(_SWEEP_S)
        try:
            for listener in listeners:
                listener.sweep(time.monotonic())
            door.sweep(time.monotonic())
            now_bytes = held.bytes + held.unsent_bytes
            if held.most_seen - now_bytes >= _MUCH_BYTES:
                held.most_seen = now_bytes
                await asyncio.to_thread(malloc.trim)
        except Exception:  # one faulty connection must not stop all sweeps
            log.exception("a sweep of the connections failed")
