"""The first words of a replica, whatever its home: it connects to a Unix socket and says HELLO.

In: a replica that was ordered, the socket on which the gateway listens for it. Out: its connection and what
it promised, or why it cannot be used.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from serving.errors import ReplicaStartFailed
from serving.replica import wire
from serving.replica.ended import Ended

T = TypeVar("T")
_MAX_HELLO_BYTES = 65_536


@contextlib.contextmanager
def listening(path: pathlib.Path, *, mode: int | None = None) -> Iterator[socket.socket]:
    """A Unix socket that waits for one connection; its file is removed at the end.

    Args:
        path: of the file.
        mode: its rights; None: as the process makes files.

    Raises:
        ReplicaStartFailed: it cannot be made there.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            listener.bind(str(path))
            if mode is not None:
                path.chmod(mode)
        except OSError as error:
            raise ReplicaStartFailed(
                "crash", f"no socket can be made at {path} ({error}); set a short TMPDIR"
            ) from error
        listener.listen(1)
        listener.setblocking(False)
        try:
            yield listener
        finally:
            path.unlink(missing_ok=True)


async def while_alive(ended: asyncio.Future[Ended], work: Coroutine[Any, Any, T]) -> T:
    """Await work that only a living replica lets finish; returns what it does.

    Raises:
        ReplicaStartFailed: it ended first.
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
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


async def accept(listener: socket.socket) -> socket.socket:
    """The first connection to a socket, non-blocking.

    `loop.sock_accept` loses a connection, unclosed, where its task is cancelled between the accepting and its
    next step.
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


async def hello_of(sock: socket.socket) -> wire.HelloMessage | None:
    """Read HELLO and not a byte more; None where the replica closes the connection instead.

    Args:
        sock: connected, non-blocking.

    Raises:
        WireError: it says something else.
    """
    loop = asyncio.get_running_loop()
    parser = wire.Parser(_MAX_HELLO_BYTES)
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


def not_the_wire(error: wire.WireError) -> ReplicaStartFailed:
    """What a replica is refused for that does not speak the wire."""
    return ReplicaStartFailed("crash", f"a replica does not speak the wire: {error}")
