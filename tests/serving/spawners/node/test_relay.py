"""Programs on another machine, which are not trusted with the gateway's connection: their bytes are copied."""

import asyncio
import os
import sys

import pytest

from serving.model_spec import ModelSpec, Program
from tests.fakes.local_cluster import node_spawner

WAIT_S = 30.0
PROGRAM = """#!{python}
import os, socket, sys
from serving import wire

sock = socket.socket(socket.AF_UNIX)
sock.connect(sys.argv[-1])
sock.sendall(wire.encode_hello(pid=os.getpid(), monotonic_ns=0, features=["moves"]))
while data := sock.recv(1 << 16):
    sock.sendall(data)
"""


class Client(asyncio.Protocol):
    """Collects what comes."""

    def __init__(self):
        self.received = bytearray()
        self.heard = asyncio.Event()
        self.lost = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.received += data
        self.heard.set()

    def connection_lost(self, _error):
        self.lost.set()


@pytest.mark.parametrize("tls", [True, False])
async def test_bytes_are_copied_both_ways_until_one_side_ends(tmp_path, tls):
    """Large messages come whole, and the program's end is seen; it gets no key, whatever it promises."""
    folder = tmp_path / "program"
    folder.mkdir()
    file = folder / "program"
    file.write_text(PROGRAM.format(python=sys.executable))
    file.chmod(0o755)
    spec = ModelSpec(
        name="m", version="1", kind="command", path=None, program=Program((str(file),), folder)
    )
    spawner = node_spawner(tmp_path / "artefacts", tls=tls)
    await spawner.open("command")
    try:
        replica = await spawner.start(
            1, cpu=None, memory_mb=None, ready_timeout_s=WAIT_S, spec=spec
        )
        assert replica.features == ("moves",)
        client = Client()
        await replica.attach(lambda: client)
        sent = os.urandom(3 << 20)
        client.transport.write(sent)
        async with asyncio.timeout(WAIT_S):
            while len(client.received) < len(sent):
                client.heard.clear()
                await client.heard.wait()
        assert bytes(client.received) == sent
        replica.kill()
        await asyncio.wait_for(asyncio.gather(client.lost.wait(), replica.ended), WAIT_S)
    finally:
        await spawner.close()
