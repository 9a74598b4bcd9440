"""Handshake with a replica, which connects to the gateway's Unix socket and sends HELLO."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from serving import wire
from serving.errors import ReplicaStartFailed
from serving.spawners.base_replica import BaseReplica
from serving.spawners.exit_status import ExitStatus

_MAX_HELLO_BYTES = 65_536


@contextlib.contextmanager
def listen(path: pathlib.Path, *, mode: int | None = None) -> Iterator[socket.socket]:
    """Listen for one connection on a Unix socket; remove its file at the end.

    `mode` is the file's mode; None leaves it to the umask. Raises ReplicaStartFailed on failure.
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


@contextlib.asynccontextmanager
async def ready_within(replica: BaseReplica, timeout_s: float) -> AsyncIterator[None]:
    """Abandon a replica if its start fails; if it takes too long, also raise ReplicaStartFailed."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError:
        replica.abandon()
        text = f"a replica did not connect within {timeout_s:g} s (replica.ready_timeout_s)"
        raise ReplicaStartFailed("timeout", text) from None
    except BaseException:
        replica.abandon()
        raise


async def while_alive(replica: BaseReplica, work: Coroutine[Any, Any, object]) -> None:
    """Await work that needs a living replica, or raise ReplicaStartFailed if it ends first."""
    task = asyncio.ensure_future(work)
    try:
        waited: set[asyncio.Future[Any]] = {task, replica.ended}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if replica.ended.done():
            raise end_as_failure(replica.ended.result())
        task.result()  # raises what it raised
    except wire.WireError as error:
        text = f"a replica does not speak the wire: {error}"
        raise ReplicaStartFailed("crash", text) from error
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def end_as_failure(ended: ExitStatus) -> ReplicaStartFailed:
    """Return the error for a replica that ended too early."""
    text = f"a replica ended before it was ready: {ended.text}"
    return ReplicaStartFailed(ended.reason, text)


async def accept(listener: socket.socket) -> socket.socket:
    """Accept a connection and make it non-blocking.

    `loop.sock_accept` leaks the connection if the task is cancelled just after the accept.
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


async def greet(replica: BaseReplica, listener: socket.socket) -> int | None:
    """Accept a connection and read only HELLO; return its pid, or None if the replica has ended.

    Raises WireError for any other message.
    """
    sock = await accept(listener)
    replica.set_socket(sock)
    loop = asyncio.get_running_loop()
    parser = wire.MessageParser(_MAX_HELLO_BYTES)
    messages: list[tuple[wire.MessageType, memoryview]] = []
    while not messages:
        data = await loop.sock_recv(sock, parser.missing_bytes)
        if not data:  # ending; `ended` has the reason
            await asyncio.shield(replica.ended)
            return None
        messages = parser.feed(data)
    kind, body = messages[0]
    if kind is not wire.MessageType.HELLO:
        raise wire.WireError(f"it began with a {kind.name}, expected HELLO")
    hello = wire.parse_hello(body)
    replica.features = hello.features
    return hello.pid
