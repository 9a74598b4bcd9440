"""Moving of a replica to another connection, which a node agent hands over with MOVE.

The agent of another machine accepts the gateway's connections, so that a machine has one port. It
gives a replica its connection as a descriptor over their Unix socket; from then on, the replica
talks to the gateway without a detour, and ends TLS itself.
"""

from __future__ import annotations

import os
import socket
import ssl

from serving import wire
from serving.replica.message_socket import MessageSocket, TlsMessageSocket
from serving.wire import MessageType

_MAX_BYTES = 65_536
_HANDSHAKE_S = 5.0


def moved(sock: socket.socket, max_message_bytes: int) -> MessageSocket:
    """Wait for the gateway's first message; return where it and all others are read.

    Args:
        sock: connected, blocking socket on which HELLO was sent.
        max_message_bytes: limit of a message.

    Raises:
        OSError: the connection that was handed over cannot be secured.
        WireError: the first message is malformed.
    """
    head = sock.recv(wire.HEAD.size, socket.MSG_PEEK | socket.MSG_WAITALL)
    if len(head) < wire.HEAD.size:
        return MessageSocket(sock, max_message_bytes)
    kind, length = wire.parse_head(head, 0, max_message_bytes)
    if kind is not MessageType.MOVE:
        return MessageSocket(sock, max_message_bytes)
    if length > _MAX_BYTES:
        raise wire.WireError(f"MOVE has {length} bytes, at most {_MAX_BYTES} are read")
    data, descriptors, _, _ = socket.recv_fds(sock, wire.HEAD.size + length, 1)
    while len(data) < wire.HEAD.size + length and (more := sock.recv(_MAX_BYTES)):
        data += more
    if not descriptors:
        raise wire.WireError("MOVE came without a connection")
    other = socket.socket(fileno=descriptors[0])
    other.setblocking(True)
    move = wire.parse_move(memoryview(data)[wire.HEAD.size :])
    if move.certificate is None or move.key is None or move.peer is None:
        return MessageSocket(other, max_message_bytes)
    other.settimeout(_HANDSHAKE_S)
    try:
        secured = _context(move.certificate, move.key, move.peer).wrap_socket(
            other, server_side=True
        )
    except ssl.SSLEOFError as error:
        raise ConnectionResetError("the gateway closed the connection") from error
    secured.settimeout(None)
    return TlsMessageSocket(secured, max_message_bytes)


def _context(certificate: str, key: str, peer: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=peer)
    pair = os.memfd_create("certificate")  # the module reads files only; this one has no name
    try:
        os.write(pair, f"{certificate}\n{key}".encode())
        context.load_cert_chain(f"/proc/self/fd/{pair}")
    finally:
        os.close(pair)
    return context
