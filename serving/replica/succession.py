"""A process that keeps what a killed gateway left waits for the next one, on a socket in the directory that it owns.

In: the directory. Out: the next gateway's connection, whose error output is this process's from then on. The other end
is `predecessor`.
"""

from __future__ import annotations

import pathlib
import socket

from serving.replica import error_output

_FIRST_WORD_S = 5.0
"""Longest wait for a gateway that has connected: it says at once that it takes this over."""


def listener_in(directory: str, name: str) -> socket.socket:
    """A socket on which the next gateway will find this process; non-blocking.

    Raises:
        OSError: it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(pathlib.Path(directory, name)))
        listener.listen(1)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


def met(listener: socket.socket) -> socket.socket | None:
    """The connection of a gateway that has come, blocking; None where it went again, or says nothing."""
    try:
        sock, _ = listener.accept()
    except OSError:  # it went before it was met
        return None
    sock.settimeout(_FIRST_WORD_S)
    if not error_output.take(sock):
        sock.close()
        return None
    sock.setblocking(True)
    return sock
