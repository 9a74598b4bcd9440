"""The server's ports: sockets, accepting, limits, and sweeps of connections."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import time
from collections.abc import Sequence

from serving.api.admin.port import AdminListener
from serving.api.credentials import Tls
from serving.api.grpc.listener import GrpcListener
from serving.api.http.listener import HttpListener
from serving.api.transport.acceptor import Acceptor
from serving.api.transport.buffered_bytes import BufferedBytes
from serving.api.transport.connection_limiter import ConnectionLimiter
from serving.errors import InvalidSettings, NotReady
from serving.settings.server import ServerSettings
from serving.system import malloc, open_files

log = logging.getLogger(__name__)

InferenceListener = HttpListener | GrpcListener

BACKLOG = 1024
IDLE_S = 120.0
REQUEST_S = 30.0
_SWEEP_S = 5.0
_MUCH_BYTES = malloc.LARGE_BYTES
"""Decrease in buffered bytes after which a sweep returns heap memory."""
HANDSHAKE_S = 10.0
_TLS_END_S = 3600.0
"""Maximum time to close a TLS connection that is still sending; sweeps end stalled ones sooner."""
_GRPC_BESIDE = {8000: 8001, 0: 0}
"""Inference port -> default gRPC port."""


def check_distinct(settings: ServerSettings) -> None:
    """Raise InvalidSettings if two ports have the same number, whatever their addresses."""
    grpc = _GRPC_BESIDE.get(settings.port) if settings.grpc_port == "auto" else settings.grpc_port
    ports = {
        "--port": settings.port,
        "--admin-port": settings.admin_port,
        "server.grpc_port": grpc,
    }
    for (one, port), (other, same) in itertools.combinations(ports.items(), 2):
        if port and port == same:
            off = " (null switches gRPC off)" if other == "server.grpc_port" else ""
            raise InvalidSettings(
                f"port {port} is both {one} and {other}; choose different ports{off}"
            )


def bind(host: str, port: int, name: str, *, joins: bool = False) -> socket.socket:
    """Return a bound socket that does not listen yet.

    With `joins`, further sockets of this server may share its port.

    Raises:
        NotReady: the port is in use, or the address is not local.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if joins:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((host, port))
    except (OSError, OverflowError) as error:
        sock.close()
        if getattr(error, "errno", None) == errno.EADDRINUSE:
            raise NotReady(
                f"port {port} on {host} is in use; choose another with --{name} (0: a free port)"
            ) from error
        raise NotReady(
            f"cannot listen on {host}:{port} ({error}); --host must be an address of this machine"
        ) from error
    return sock


def bind_grpc(settings: ServerSettings) -> socket.socket | None:
    """Return the gRPC port's bound socket, or None if off or if the default port is in use.

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


def make_connection_limiter(settings: ServerSettings) -> ConnectionLimiter:
    """Build the limiter of connections, in total and per client."""
    most = open_files.room_for(settings.max_connections)
    return ConnectionLimiter(most, settings.max_connections_per_client or max(1, most // 4))


async def listen(
    listener: InferenceListener,
    sock: socket.socket,
    tls: Tls | None,
    door: ConnectionLimiter,
    speaks: str,
) -> asyncio.Server | Acceptor:
    """Accept clients on an inference port; `speaks` is its protocol's ALPN name."""
    if tls is None:
        loop = asyncio.get_running_loop()
        return await loop.create_server(listener.protocol, sock=sock, backlog=BACKLOG)
    entrance = Acceptor(
        sock,
        tls.context(speaks),
        listener.protocol,
        door=door,
        handshake_s=HANDSHAKE_S,
        end_s=_TLS_END_S,
    )
    entrance.open(BACKLOG)
    return entrance


async def sweep(
    listeners: Sequence[InferenceListener | AdminListener],
    door: ConnectionLimiter,
    held: BufferedBytes,
) -> None:
    """Close idle and stalled connections periodically, and return heap memory to the system."""
    while True:
        await asyncio.sleep(_SWEEP_S)
        try:
            for listener in listeners:
                listener.sweep(time.monotonic())
            door.sweep(time.monotonic())
            now_bytes = held.bytes + held.unsent_bytes
            if held.peak_bytes - now_bytes >= _MUCH_BYTES:
                held.peak_bytes = now_bytes
                await asyncio.to_thread(malloc.trim)
        except Exception:  # one faulty connection must not stop all sweeps
            log.exception("a sweep of the connections failed")
