"""Handshake of a replica: it connects to the gateway's Unix socket and sends HELLO."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from serving import wire
from serving.errors import ReplicaStartFailed
from serving.spawners.exit_status import ExitStatus

T = TypeVar("T")
_MAX_HELLO_BYTES = 65_536


@contextlib.contextmanager
def listen(path: pathlib.Path, *, mode: int | None = None) -> Iterator[socket.socket]:
    """Listen for one connection on a Unix socket; remove its file at the end.

    `mode` is the file's mode; None: by umask.

    Raises:
        ReplicaStartFailed: the socket cannot be created.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
            if mode is not None:
                path.chmod(mode)
        except OSError as error:
            raise ReplicaStartFailed(
                "crash", f"no socket can be created at {path} ({error}); set a short TMPDIR"
            ) from error
        listener.listen(1)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


async def while_alive(ended: asyncio.Future[ExitStatus], work: Coroutine[Any, Any, T]) -> T:
    """Await work that needs a living replica.

    Raises:
        ReplicaStartFailed: the replica ended first, or does not speak the wire.
    """
    task = asyncio.ensure_future(work)
    waited: set[asyncio.Future[Any]] = {task, ended}
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            how = ended.result()
            text = f"a replica ended before it was ready: {how.text}"
            raise ReplicaStartFailed(how.reason, text)
        return task.result()
    except wire.WireError as error:
        text = f"a replica does not speak the wire: {error}"
        raise ReplicaStartFailed("crash", text) from error
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def accept(listener: socket.socket) -> socket.socket:
    """Accept a connection, non-blocking.

    `loop.sock_accept` leaks it if the task is cancelled just after the accept.
    """
    loop = asyncio.get_running_loop()
    while True:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            is_ready = asyncio.Event()
            loop.add_reader(listener, is_ready.set)
            try:
                await is_ready.wait()
            finally:
                loop.remove_reader(listener)
        else:
            sock.setblocking(False)
            return sock


async def greet(
    ended: asyncio.Future[ExitStatus],
    listener: socket.socket,
    connected: Callable[[socket.socket], None],
) -> wire.HelloMessage | None:
    """Accept a replica's connection, pass it on and read HELLO; None: the replica has ended.

    Raises:
        WireError: another message.
    """
    sock = await accept(listener)
    connected(sock)
    hello = await _hello_of(sock)
    if hello is None:  # ending; `ended` has the reason
        await asyncio.shield(ended)
    return hello


async def _hello_of(sock: socket.socket) -> wire.HelloMessage | None:
    """Read exactly HELLO from a non-blocking socket; None: it was closed.

    Raises:
        WireError: another message.
    """
    loop = asyncio.get_running_loop()
    parser = wire.MessageParser(_MAX_HELLO_BYTES)
    messages: list[tuple[wire.MessageType, memoryview]] = []
    while not messages:
        data = await loop.sock_recv(sock, parser.missing_bytes)
        if not data:
            return None
        messages = parser.feed(data)
    kind, body = messages[0]
    if kind is not wire.MessageType.HELLO:
        raise wire.WireError(f"it began with a {kind.name}, expected HELLO")
    return wire.parse_hello(body)
