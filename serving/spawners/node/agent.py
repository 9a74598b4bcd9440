"""Node agent: one gateway's replicas on this machine, behind one port.

    python -m serving.spawners.node.agent

Whoever starts it holds its control channel, sends {"credentials", "host", "spawner", "image",
"timeout_s", "folder"} as the first frame, and is answered {"port", "certificate"} or {"error"}. The agent ends
with the channel, and so do its replicas. They also end with the gateway's control connection: a
gateway that comes back starts new ones, as on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import logging
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import uvloop

from serving import __version__, wire
from serving.errors import ServingError
from serving.spawners.base_replica import BaseReplica
from serving.spawners.docker.spawner import DockerSpawner
from serving.spawners.node import files, link
from serving.spawners.node.agent_session import AgentSession, AnySpawner
from serving.spawners.node.artefacts import ArtefactStore
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.link import Link, Refused
from serving.spawners.node.relay import relay
from serving.spawners.process.spawner import ProcessSpawner
from serving.system.control_channel import Closed, ControlChannel
from serving.system.end_with_parent import ignore_requests_to_end
from serving.system.log_lines import log_lines
from serving.system.private_folder import cache_folder

log = logging.getLogger(__name__)

_BACKLOG = 128
_MOST_GREETED = 64
"""Connections that have not yet shown a token or a ticket; further ones wait."""


class Agent:
    """The port of a node agent."""

    def __init__(
        self,
        credentials: Credentials,
        make: Callable[[], AnySpawner],
        store: ArtefactStore,
        *,
        timeout_s: float,
    ) -> None:
        self._credentials = credentials
        self._context = credentials.context(server=True)
        self._make = make
        self._store = store
        self._timeout_s = timeout_s
        self._session: AgentSession | None = None
        self._changing = asyncio.Lock()
        self._greeted = asyncio.Semaphore(_MOST_GREETED)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, listener: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._greeted.acquire()
                try:
                    sock, _ = await loop.sock_accept(listener)
                except OSError as error:  # no descriptor left
                    self._greeted.release()
                    log.warning("a connection is not accepted", extra={"error": str(error)})
                    await asyncio.sleep(0.1)
                    continue
                task = asyncio.create_task(self._greet(sock))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._session is not None:
                await self._session.close()

    async def _greet(self, sock: socket.socket) -> None:
        try:
            try:
                serve = await self._admit(sock)
            finally:
                self._greeted.release()
            await serve
        except (OSError, ServingError) as error:
            log.warning("a connection is refused", extra={"error": str(error) or repr(error)})

    async def _admit(self, sock: socket.socket) -> Coroutine[Any, Any, None]:
        """Return what serves a connection that shows the right token or ticket.

        Raises:
            Refused, OSError: it shows another one, or none in time, and is ended.
        """
        try:
            sock.setblocking(False)
            async with asyncio.timeout(link.CONNECT_S):
                words = (await link.read_line(sock)).split(" ")
            if words[0] != "luthier":
                raise Refused("this is the port of a node agent of Luthier")
            if words[1:2] != [str(link.VERSION)]:
                raise Refused(f"this agent speaks version {link.VERSION}, Luthier {__version__}")
            purpose, ticket = [*words[2:], "", ""][:2]
            if purpose not in {"control", "files", "replica"}:
                raise Refused("expected control, files or replica")
            link.set_timeouts(sock, purpose, self._timeout_s)
            if purpose == "replica":
                replica = None if self._session is None else self._session.take(ticket)
                if replica is None:
                    raise Refused("the ticket is unknown or was used")
                return self._hand_over(sock, replica)
        except (OSError, Refused) as error:
            await link.answer(sock, str(error) if isinstance(error, Refused) else "it is malformed")
            raise
        opened = await self._open(sock)
        return files.receive(opened, self._store) if purpose == "files" else self._control(opened)

    async def _open(self, sock: socket.socket) -> Link:
        await link.answer(sock)
        opened = await link.open_link(sock, self._context, server=True)
        try:
            async with asyncio.timeout(link.CONNECT_S):
                first, _ = await opened.receive(link.FIRST_BYTES)
            token = str(first.get("token", ""))
            if not hmac.compare_digest(token.encode(), self._credentials.token.encode()):
                raise Refused("the token is wrong")
        except BaseException:
            opened.abort()
            raise
        return opened

    async def _control(self, opened: Link) -> None:
        async with self._changing:
            if self._session is not None:  # the gateway has come back
                await self._session.close()
            self._session = session = AgentSession(opened, self._make, self._store)
            facts = {"version": __version__, "cores": os.cpu_count(), "pid": os.getpid()}
            opened.send({"event": "hello", **facts})
        await session.run()

    async def _hand_over(self, sock: socket.socket, replica: BaseReplica) -> None:
        await link.answer(sock)
        if replica.moves:
            _, *pair_and_peer = self._credentials
            move = wire.MoveMessage(*pair_and_peer)
            with sock, replica.sock:
                _send_all(replica.sock, wire.encode_move(move), sock)
            return
        opened = await link.open_streams(sock, self._context, server=True)
        await relay(opened, await link.open_unix(replica.sock))


def _send_all(to: socket.socket, message: bytes, sock: socket.socket) -> None:
    """Send a message with a descriptor; both fit the empty buffer of a Unix socket."""
    sent = socket.send_fds(to, [message], [sock.fileno()])
    if sent != len(message):
        raise Refused("the replica's socket is full")


async def _serve(control: ControlChannel, first: Mapping[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    make: Callable[[], AnySpawner] = ProcessSpawner
    if first["spawner"] == "docker":
        make = functools.partial(DockerSpawner, first["image"])
    folder = pathlib.Path(first.get("folder") or cache_folder() / "artefacts")
    credentials = Credentials.answering(first["credentials"])
    agent = Agent(
        credentials,
        make,
        ArtefactStore(folder),
        timeout_s=float(first["timeout_s"]),
    )
    family = socket.AF_INET6 if ":" in first["host"] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((first["host"], int(first.get("port", 0))))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        ended = asyncio.Event()
        loop.add_reader(control.sock, functools.partial(_look, control, ended))
        serving = asyncio.create_task(agent.run(listener), name="accept")
        port = listener.getsockname()[1]
        control.send({"port": port, "pid": os.getpid(), "certificate": credentials.certificate})
        await ended.wait()
        loop.remove_reader(control.sock)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


def _look(control: ControlChannel, ended: asyncio.Event) -> None:
    try:
        control.receive_all()
    except Closed:
        ended.set()


def main() -> int:
    """Run a node agent."""
    log_lines(logging.INFO)
    ignore_requests_to_end()
    control = ControlChannel.to_parent()
    try:
        first, _ = control.receive()
        uvloop.run(_serve(control, first))
    except Closed:
        return 0
    except (OSError, ServingError) as error:
        with contextlib.suppress(Closed):
            control.send({"error": str(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
