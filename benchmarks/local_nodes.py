"""Our server with replicas behind node agents of this machine, without an engine such as Ray.

    python benchmarks/local_nodes.py '{"tls": true, "clock_s": 86400, "way_s": 0.002}' --model echo ...

In: facts of the machines, then the arguments of `python -m serving`. Out: the server. `clock_s`: how far the
clock of the agent and its replicas is ahead (a time namespace). `way_s`: seconds that each byte takes to the agent
and from it (a relay). Knows nothing of what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NamedTuple

from serving.app import command
from serving.deployment import spawner_registry
from serving.settings import ServingSettings
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.seats import Address, Resources
from serving.spawners.node.spawner import Machines, NodeSpawner
from serving.system.control_channel import ControlChannel

START_S = 30.0
TIMEOUT_S = 2.0
_PIECE_BYTES = 1 << 18


class Facts(NamedTuple):
    """How the machines differ from this one."""

    tls: bool = True
    clock_s: float = 0.0
    way_s: float = 0.0


class LocalSeat:
    """A place on the machine; there is always room."""

    gpu = None

    def __init__(self, address: Address) -> None:
        self.address = address
        self.leaving: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def give_back(self) -> None:
        """Do nothing."""


class LocalCluster:
    """One node agent of this machine."""

    def __init__(self, credentials: Credentials, facts: Facts) -> None:
        self._credentials = credentials
        self._facts = facts
        self._address = Address("far", "127.0.0.1", 0)
        self._stack = contextlib.ExitStack()

    async def open(self) -> None:
        """Start the agent."""
        facts = self._facts
        port, certificate = self._start_agent(facts.clock_s)
        if facts.way_s:
            port = self._start_relay(port, facts.way_s)
        self._address = Address("far", "127.0.0.1", port, certificate)

    async def seat(self, wanted: Resources, on_waiting: Callable[[str], None]) -> LocalSeat:  # noqa: ARG002
        """Give a place."""
        return LocalSeat(self._address)

    def avoid(self, address: Address) -> None:
        """Do nothing."""

    def trust(self, address: Address) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """End the agent."""
        self._stack.close()

    def _start_agent(self, clock_s: float) -> tuple[int, str | None]:
        words = ["unshare", "--time", "--monotonic", str(int(clock_s)), "--fork", "--kill-child"]
        command = [sys.executable, "-m", "serving.spawners.node.agent"]
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen([*words, *command] if clock_s else command, stdin=theirs)
        self._stack.callback(process.wait, START_S)
        self._stack.callback(ours.close)
        channel = ControlChannel(ours)
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        first = {"credentials": self._credentials.public(), "host": "127.0.0.1", "image": None,
            "spawner": "process", "timeout_s": TIMEOUT_S, "folder": folder}  # fmt: skip
        channel.send(first)
        told, _ = channel.receive(timeout_s=START_S)
        return told["port"], told["certificate"]

    def _start_relay(self, port: int, way_s: float) -> int:
        words = [sys.executable, __file__, "relay", str(port), str(way_s)]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        return int(process.stdout.readline())


async def relay(port: int, way_s: float) -> None:
    """Join each connection to another port, with a delay each way; prints its own port."""
    loop = asyncio.get_running_loop()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE_BYTES):
            loop.call_later(way_s, writer.write, data)
        loop.call_later(way_s, writer.close)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        for one in (writer, far_writer):
            one.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


def factory(facts: Facts, settings: ServingSettings) -> Callable[[], NodeSpawner]:  # noqa: ARG001
    """What stands in for `spawner_registry.spawner_factory`."""
    credentials = Credentials.make(tls=facts.tls)
    machines = Machines(LocalCluster(credentials, facts), credentials, timeout_s=TIMEOUT_S)
    return functools.partial(NodeSpawner, machines)


def main() -> int:
    """Serve."""
    if sys.argv[1] == "relay":
        asyncio.run(relay(int(sys.argv[2]), float(sys.argv[3])))
    facts = Facts(**json.loads(sys.argv[1]))
    stands_in: Any = functools.partial(factory, facts)
    spawner_registry.spawner_factory = stands_in
    return command.main(sys.argv[2:])


def program(facts: Facts) -> list[str]:
    """The words that start this server, for `server_process.served`."""
    os.environ.setdefault("PYTHONPATH", str(pathlib.Path(command.__file__).parents[2]))
    return [__file__, json.dumps(facts._asdict())]


if __name__ == "__main__":
    raise SystemExit(main())
