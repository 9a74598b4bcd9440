"""Node agents on this machine: what they refuse, and what their end takes along."""

import asyncio
import contextlib
import itertools
import os
import pathlib
import signal
import socket
import ssl
import struct

import pytest
import pytest_asyncio

from serving.model_spec import ModelSpec
from serving.spawners.node import agent, link
from serving.spawners.node.agent import Agent
from serving.spawners.node.artefacts import ArtefactStore
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.link import Refused
from serving.spawners.node.spawner import Machines, NodeSpawner
from serving.spawners.process.spawner import ProcessSpawner
from tests.fakes.local_cluster import LocalCluster

WAIT_S = 30.0
ECHO = ModelSpec(name="e", version="1", kind="echo", path=None)

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Bench:
    """A spawner over two agents."""

    def __init__(self, folder):
        self.credentials = Credentials.make(tls=True)
        self.cluster = LocalCluster(self.credentials, folder, count=2)
        self.spawner = NodeSpawner(Machines(self.cluster, self.credentials, timeout_s=2.0))
        self._numbers = itertools.count(1)

    async def start(self):
        return await self.spawner.start(
            next(self._numbers), cpu=None, memory_mb=None, ready_timeout_s=WAIT_S, spec=ECHO
        )

    @property
    def port(self):
        return self.cluster.seats[0].address.port

    def client(self, credentials, **changed):
        """A context of somebody with these credentials, who knows the agent's certificate."""
        known = {"peer": self.cluster.seats[0].address.certificate, **changed}
        return credentials._replace(**known).context(server=False)


@pytest_asyncio.fixture(name="bench", scope="module", loop_scope="module")
async def _bench(tmp_path_factory):
    bench = Bench(tmp_path_factory.mktemp("artefacts"))
    await bench.spawner.open("echo")
    yield bench
    await bench.spawner.close()


async def _answers(replica):
    """Whether the replica is attached and lives: TLS is up, and nothing ends it."""
    protocol = asyncio.Protocol()
    await replica.attach(lambda: protocol)
    await asyncio.sleep(0.05)
    return not replica.ended.done()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "the port of a node agent of Luthier"),
        (b"\0" * 1000, "the port of a node agent of Luthier"),
        (b"luthier 2 control\n", "speaks version 1"),
        (b"luthier 1 shell\n", "expected control, files or replica"),
        (b"luthier 1 replica made-up\n", "the ticket is unknown"),
        (b"luthier 1 replica\n", "the ticket is unknown"),
    ],
    ids=["http", "zeros", "version", "purpose", "ticket", "no ticket"],
)
async def test_what_is_no_gateway_is_refused_with_one_line(bench, line, text):
    """The replicas of the gateway do not notice."""
    replica = await bench.start()

    def ask():
        with socket.create_connection(("127.0.0.1", bench.port), timeout=WAIT_S) as sock:
            sock.sendall(line)
            answer = b""
            while data := sock.recv(1000):
                answer += data
            return answer

    answer = await asyncio.to_thread(ask)
    assert answer.startswith(b"refused: ")
    assert text in answer.decode()
    assert answer.count(b"\n") == 1
    assert await _answers(replica)
    replica.kill()
    await replica.ended


async def test_a_ticket_holds_once(bench):
    """Who has seen it on the way can do nothing with it."""
    replica = await bench.start()
    seen = replica.sock.getpeername()[1]
    with pytest.raises(Refused, match="ticket"):
        await link.dial("127.0.0.1", seen, "replica x", timeout_s=1.0)
    assert await _answers(replica)
    replica.kill()
    await replica.ended


def _holders(port, pids):
    """Which of some processes hold the other side of the connection from a port."""
    rows = map(str.split, pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:])
    inodes = {row[9] for row in rows if row[2] == f"0100007F:{port:04X}"}

    def holds(pid):
        links = []
        for each in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                links.append(str(each.readlink()))
        return any(f"socket:[{inode}]" in links for inode in inodes)

    return [pid for pid in pids if holds(pid)]


async def test_requests_go_straight_to_a_process(bench):
    """The agent keeps nothing of the connection."""
    replica = await bench.start()
    pids = [replica.pid, *(each.process.pid for each in bench.cluster.agents)]
    port = replica.sock.getsockname()[1]
    await replica.attach(asyncio.Protocol)
    assert _holders(port, pids) == [replica.pid]
    replica.kill()
    await replica.ended


@pytest.mark.parametrize("purpose", ["control", "files"])
async def test_another_certificate_is_refused(bench, purpose):
    """A right first line is not enough."""
    replica = await bench.start()
    sock = await link.dial("127.0.0.1", bench.port, purpose, timeout_s=1.0)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        opened = await link.open_link(sock, bench.client(Credentials.make(tls=True)), server=False)
        async with asyncio.timeout(WAIT_S):
            await opened.receive()
    assert await _answers(replica)
    replica.kill()
    await replica.ended


async def test_another_agent_is_refused(bench):
    """The gateway talks to no port that shows another certificate."""
    replica = await bench.start()
    sock = await link.dial("127.0.0.1", bench.port, "control", timeout_s=1.0)
    other = Credentials.make(tls=True).certificate
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await link.open_link(sock, bench.client(bench.credentials, peer=other), server=False)
    assert await _answers(replica)
    replica.kill()
    await replica.ended


async def test_a_wrong_token_is_refused(bench):
    """Also with the right certificate."""
    replica = await bench.start()
    sock = await link.dial("127.0.0.1", bench.port, "control", timeout_s=1.0)
    opened = await link.open_link(sock, bench.client(bench.credentials), server=False)
    opened.send({"token": "made-up"})
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(WAIT_S):
            await opened.receive()
    assert await _answers(replica)
    replica.kill()
    await replica.ended


@contextlib.asynccontextmanager
async def _listening(folder, monkeypatch):
    """An agent in this process, which is patient and without TLS; what dials it."""
    monkeypatch.setattr(link, "CONNECT_S", 2 * WAIT_S)
    credentials = Credentials.make(tls=False)
    serves = Agent(credentials, ProcessSpawner, ArtefactStore(folder), timeout_s=2.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        running = asyncio.create_task(serves.run(listener))
        async with asyncio.timeout(WAIT_S):
            yield lambda: link.dial(*listener.getsockname(), "files", timeout_s=2.0)
        running.cancel()
        await asyncio.wait({running})


async def test_strangers_hold_a_bounded_number_of_connections(tmp_path, monkeypatch):
    """A right first line is not enough to be let off the bound; the token is."""
    monkeypatch.setattr(agent, "_MOST_GREETED", 2)
    async with _listening(tmp_path, monkeypatch) as dial:
        strangers = [await dial(), await dial()]
        third = asyncio.create_task(dial())
        assert not (await asyncio.wait({third}, timeout=0.1))[0]
        for sock in strangers:
            sock.close()
        (await third).close()


async def test_a_stranger_s_first_frame_is_small(tmp_path, monkeypatch):
    """Its announced size already ends the connection."""
    async with _listening(tmp_path, monkeypatch) as dial:
        for lengths in ((5000, 0), (2, 5000)):
            with await dial() as sock:
                await asyncio.get_running_loop().sock_sendall(sock, struct.pack("<II", *lengths))
                assert await asyncio.get_running_loop().sock_recv(sock, 1) == b""


async def test_the_replicas_of_a_lost_machine_end_together(tmp_path):
    """Those of the other machine go on; a new one starts where there is room."""
    bench = Bench(tmp_path)
    await bench.spawner.open("echo")
    try:
        replicas = [await bench.start() for _ in range(4)]
        assert bench.cluster.trusted == ["node-0", "node-1"] * 2
        os.kill(bench.cluster.agents[0].process.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            ends = await asyncio.gather(replicas[0].ended, replicas[2].ended)
        assert {ended.reason for ended in ends} == {"node"}
        assert {ended.together for ended in ends} == {(1, 3)}
        assert "node-0 is lost" in ends[0].text
        assert [seat.is_given_back for seat in bench.cluster.seats] == [True, False, True, False]
        assert not replicas[1].ended.done()
        assert await _answers(replicas[3])
        assert bench.cluster.avoided == ["node-0"]
    finally:
        await bench.spawner.close()
        for replica in replicas[:3]:
            replica.sock.close()


async def test_an_agent_that_stands_still_is_lost(tmp_path):
    """It is noticed by its silence, as a cut link is."""
    bench = Bench(tmp_path)
    await bench.spawner.open("echo")
    try:
        replica = await bench.start()
        pid = bench.cluster.agents[0].process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            async with asyncio.timeout(WAIT_S):
                ended = await replica.ended
        finally:
            os.kill(pid, signal.SIGCONT)
        assert ended.reason == "node"
        assert "did not answer within" in ended.text
        replica.sock.close()
    finally:
        await bench.spawner.close()
