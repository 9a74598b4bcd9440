"""Which sockets of one port get new connections: a small program in the kernel, replaced at any time.

The sockets share the port by SO_REUSEPORT, where the kernel would choose by a hash of the addresses
among all that listen. Source: socket(7), SO_ATTACH_REUSEPORT_CBPF; linux/filter.h.
"""

from __future__ import annotations

import ctypes
import logging
import socket
import struct
from collections.abc import Sequence

log = logging.getLogger(__name__)

_SO_ATTACH_REUSEPORT_CBPF = 51
_LOAD, _MODULO, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x94, 0x15, 0x06
_RANDOM = 0xFFFFF000 + 56
"""Address from which a program loads a random number (SKF_AD_OFF + SKF_AD_RANDOM)."""


def program(open_: Sequence[int]) -> bytes:
    """Return the program that chooses one of the sockets at random; numbers count as they listened."""
    lines = [(_LOAD, 0, 0, _RANDOM), (_MODULO, 0, 0, len(open_))]
    for place, index in enumerate(open_):
        lines += [(_JUMP_IF_EQUAL, 0, 1, place), (_RETURN, 0, 0, index)]
    lines.append((_RETURN, 0, 0, open_[0]))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def steer(sock: socket.socket, open_: Sequence[int]) -> None:
    """Send new connections of the socket's port to the sockets with these numbers only.

    Where the kernel refuses, they are spread over all that listen.
    """
    text = program(open_)
    buffer = ctypes.create_string_buffer(text, len(text))
    # struct sock_fprog: number of instructions, and where they are
    given = struct.pack("HP", len(text) // 8, ctypes.addressof(buffer))
    try:
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_REUSEPORT_CBPF, given)
    except OSError as error:
        log.warning(
            "connections are spread over all gateways, also over one that is starting again",
            extra={"error": error.strerror or str(error)},
        )
