"""The error output of a replica is its gateway's: the next gateway hands over its own, for the last one's may be gone.

In: a connected Unix socket, on which one byte and a descriptor go from the gateway to a process that it takes over,
before anything else is said; to a container the byte alone. A pipe that nobody reads any more would fail whatever
prints.
"""

from __future__ import annotations

import contextlib
import os
import socket

_STDOUT, _STDERR = 1, 2
_BYTE = b"\n"


def send(sock: socket.socket) -> None:
    """Hand over this process's error output.

    Args:
        sock: on which nothing was sent yet; may be non-blocking.

    Raises:
        OSError: the other side has gone.
    """
    socket.send_fds(sock, [_BYTE], [_STDERR])


def send_none(sock: socket.socket) -> None:
    """Begin without one: what a container prints is its engine's to keep.

    Args:
        sock: on which nothing was sent yet; may be non-blocking.

    Raises:
        OSError: the other side has gone.
    """
    sock.send(_BYTE)


def take(sock: socket.socket) -> bool:
    """Write to the other side's error output from now on, whatever is printed too; False where it has gone.

    Args:
        sock: blocking, with a time limit where one is wanted: when it is over, that is False as well.
    """
    try:
        said, descriptors, _, _ = socket.recv_fds(sock, len(_BYTE), 1)
    except OSError:
        return False
    for descriptor in descriptors:
        for own in (_STDOUT, _STDERR):
            with contextlib.suppress(OSError):
                os.dup2(descriptor, own)
        os.close(descriptor)
    return bool(said)
