"""The gateway's way to a process that keeps what a killed gateway left: it is found by its directory, and believed only
where that is this user's alone and the process is the one after which the directory is named.

In: a directory, and the name of the socket in it. Out: a connection over which that process has told what it keeps.
"""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving import owner
from serving.errors import NotReady
from serving.replica import error_output

_LONGEST_LINE_BYTES = 2**24
"""Of a report that tells of all replicas."""
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED tells: pid, user, group."""


class Reached(NamedTuple):
    """A process that keeps something, and waits for orders from now on."""

    pid: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]
    told: dict[str, Any]
    """What it keeps."""


async def reached(directory: pathlib.Path, name: str, what: str, *, timeout_s: float) -> Reached:
    """Connect, hand over the error output, and hear what is kept.

    Args:
        directory: which the process owns.
        name: of its socket there.
        what: it is, for people: `template`, `keeper`.
        timeout_s: longest wait for each word.

    Raises:
        NotReady: there is none, it is not this user's own, or it talks nonsense.
    """
    maker = _maker_of(directory, what)
    try:
        async with asyncio.timeout(timeout_s):
            streams = await _connected(directory / name, maker, what)
    except (OSError, TimeoutError) as error:
        raise unanswered(directory, what, error) from error
    try:
        async with asyncio.timeout(timeout_s):
            told = json.loads(await streams[0].readline())
        if not isinstance(told, dict):
            raise TypeError(f"it says {told!r}")
    except BaseException as error:
        streams[1].close()
        if isinstance(error, OSError | TimeoutError | ValueError | TypeError):
            raise unanswered(directory, what, error) from error
        raise
    return Reached(maker.pid, streams, told)


def unanswered(directory: pathlib.Path, what: str, error: Exception) -> NotReady:
    """What is to be said of a process that cannot be understood."""
    return NotReady(f"no {what} answers in {directory} ({error!r})")


def check_facts(there: object, here: Mapping[str, str], directory: pathlib.Path, what: str) -> None:
    """What is kept must be as this gateway would have made it.

    Raises:
        NotReady: some of it is not, or nothing is told of it.
    """
    if not isinstance(there, dict):
        raise unanswered(directory, what, TypeError(f"it says {there!r}"))
    for name, fact in here.items():
        if there.get(name) != fact:
            raise NotReady(
                f"the {what} in {directory} is of {name} {there.get(name)}, this is {fact}"
            )


def _maker_of(directory: pathlib.Path, what: str) -> owner.Owner:
    """The living process that a directory of this user alone is named after.

    Whoever may write where it lies could have made it anew when that process had ended.

    Raises:
        NotReady: it is no such directory.
    """
    maker = owner.of(directory.name)
    if maker is None:
        raise NotReady(f"{directory} is no {what}'s")
    try:
        seen = directory.lstat()
    except OSError as error:
        raise NotReady(f"no {what} is left in {directory} ({error!r})") from error
    if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & _OTHERS:
        raise NotReady(f"{directory} is no {what}'s: it is not a directory of this user alone")
    if maker.is_gone():
        raise NotReady(f"no {what} is left in {directory}: its process {maker.pid} has ended")
    return maker


async def _connected(
    path: pathlib.Path, maker: owner.Owner, what: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and hand over the error output.

    Raises:
        OSError: nobody listens.
        NotReady: somebody else does.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, str(path))
        pid = _peer_of(sock)
        if pid not in {maker.pid, None}:
            raise NotReady(f"no {what} answers in {path.parent}: process {pid} does")
        error_output.send(sock)
        return await asyncio.open_unix_connection(sock=sock, limit=_LONGEST_LINE_BYTES)
    except BaseException:
        sock.close()
        raise


def _peer_of(sock: socket.socket) -> int | None:
    """The process that listened where a socket is connected; None where the system does not tell."""
    if sys.platform != "linux":
        return None
    told = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(told)[0]
    return pid
