"""Connections between a gateway and a node agent.

The gateway dials the agent's one port, and says first, in one line, what the connection is for:

    luthier 1 control
    luthier 1 files
    luthier 1 replica TICKET

The agent answers `ok`, or `refused: ` and the reason. Then TLS begins, if there is any. The
connections for control and files go on with frames, of which the first holds the token:

    frame = u32 bytes of JSON, u32 bytes of the blob, JSON, blob

A connection for a replica is the replica wire (docs/replica-wire.md). Its ticket is random, holds
once, and was told on the control connection.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from serving.errors import ServingError
from serving.spawners.node.relay import Streams

VERSION = 1
CONNECT_S = 5.0
"""Seconds for a connection, its first line, the TLS handshake and the first frame, each."""
REFUSAL_S = 1.0
"""Seconds in which the other side must read a refusal."""
PIECE_BYTES = 4 << 20
"""Maximum size of a frame's blob."""
_MAX_JSON_BYTES = 8 << 20
"""Large enough for the names of 50,000 files."""
FIRST_BYTES = 4096
"""Maximum size of the first frame, which anybody may send."""
_MAX_LINE_BYTES = 256
_MAX_UNREAD_BYTES = 65_536
_LENGTHS = struct.Struct("<II")


class Refused(ServingError):
    """The other side does not accept the connection, or breaks the protocol."""


class Link:
    """Frames over a connection. Not thread-safe."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def receive(self, max_bytes: int = _MAX_JSON_BYTES) -> tuple[dict[str, Any], bytes]:
        """Return the next frame, whose parts have at most `max_bytes` each.

        Raises:
            Refused: it is malformed.
            ConnectionError: the connection has ended.
        """
        try:
            lengths = _LENGTHS.unpack(await self._reader.readexactly(_LENGTHS.size))
            if lengths[0] > max_bytes or lengths[1] > min(max_bytes, PIECE_BYTES):
                raise Refused(f"a frame of {lengths[0]} and {lengths[1]} bytes is too large")
            text = await self._reader.readexactly(lengths[0])
            blob = await self._reader.readexactly(lengths[1])
        except asyncio.IncompleteReadError as error:
            raise ConnectionResetError("the connection has ended") from error
        except OSError as error:  # a timeout of TCP, or of TLS
            raise ConnectionResetError(str(error)) from error
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused(f"a frame does not hold JSON: {error}") from error
        if not isinstance(message, dict):
            raise Refused("a frame holds no JSON object")
        return message, blob

    def send(self, message: Mapping[str, object], blob: bytes = b"") -> None:
        """Queue a frame for sending."""
        text = json.dumps(message, separators=(",", ":")).encode()
        self._writer.writelines([_LENGTHS.pack(len(text), len(blob)), text, blob])

    async def drain(self) -> None:
        """Wait until there is room for more frames, or raise ConnectionError."""
        try:
            await self._writer.drain()
        except OSError as error:
            raise ConnectionResetError(str(error)) from error

    def abort(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()


def set_timeouts(sock: socket.socket, purpose: str, timeout_s: float) -> None:
    """Let the kernel end a connection whose other side has not been heard for `timeout_s`.

    Keepalive probes do not start while data are unacknowledged, and the user timeout (RFC 5482)
    does not hold while there are none. The latter also ends a connection whose other side is there
    but does not read, as a replica that computes; so only that for control has it, with which all
    others end.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if purpose == "control":
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, int(timeout_s * 1e3)))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    period_s = max(1, round(timeout_s / 2))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, period_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, period_s)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


async def dial(host: str, port: int, purpose: str, *, timeout_s: float) -> socket.socket:
    """Connect to an agent for a purpose (`control`, `files`, `replica TICKET`).

    Raises:
        Refused: the agent refuses; its reason is the text.
        OSError: it cannot be reached, or does not answer within `CONNECT_S`.
    """
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(CONNECT_S):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            set_timeouts(sock, purpose, timeout_s)
            await loop.sock_connect(sock, address)
            await loop.sock_sendall(sock, f"luthier {VERSION} {purpose}\n".encode())
            answer = await read_line(sock)
        except BaseException:
            sock.close()
            raise
    if answer != "ok":
        sock.close()
        raise Refused(answer.removeprefix("refused: ") or "the agent closed the connection")
    return sock


async def open_streams(
    sock: socket.socket, context: ssl.SSLContext | None, *, server: bool
) -> Streams:
    """Begin TLS, if there is a context, and return the connection's two directions.

    Raises:
        OSError: the other side has no right certificate; the socket is closed.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=2 * PIECE_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    handshake_s = None if context is None else CONNECT_S
    try:
        if server:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol, sock, ssl=context, ssl_handshake_timeout=handshake_s
            )
        else:
            transport, _ = await loop.create_connection(
                lambda: protocol,
                sock=sock,
                ssl=context,
                server_hostname=None if context is None else "luthier",
                ssl_handshake_timeout=handshake_s,
            )
    except BaseException:
        sock.close()
        raise
    return Streams(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


async def open_unix(sock: socket.socket) -> Streams:
    """Return the two directions of a connected Unix socket."""
    return Streams(*await asyncio.open_unix_connection(sock=sock, limit=2 * PIECE_BYTES))


async def open_link(sock: socket.socket, context: ssl.SSLContext | None, *, server: bool) -> Link:
    """Begin TLS as `open_streams` does, and return the connection's frames."""
    return Link(*await open_streams(sock, context, server=server))


async def read_line(sock: socket.socket) -> str:
    """Return the first line of a connection, and read no byte after it; "" if there is none."""
    loop = asyncio.get_running_loop()
    line = bytearray()
    while len(line) < _MAX_LINE_BYTES:
        byte = await loop.sock_recv(sock, 1)
        if byte == b"\n":
            return line.decode("ascii", "replace")
        if not byte:
            break
        line += byte
    return ""


async def answer(sock: socket.socket, refusal: str = "") -> None:
    """Answer the first line of a connection; with a refusal, close it."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(REFUSAL_S):
            text = f"refused: {refusal}\n" if refusal else "ok\n"
            await loop.sock_sendall(sock, text.encode("ascii", "replace"))
            if refusal:  # closing with bytes unread would take the text back
                sock.shutdown(socket.SHUT_WR)
                left = _MAX_UNREAD_BYTES
                while left > 0 and (data := await loop.sock_recv(sock, left)):
                    left -= len(data)
    except (OSError, TimeoutError):
        pass  # the other side is gone, or does not end
    finally:
        if refusal:
            sock.close()
