"""An engine that is away or hangs: it takes no replica that serves, keeps nobody from ending, and nothing is left."""

import asyncio
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import docker
import pytest
import pytest_asyncio

from serving.model_spec import ModelSpec
from serving.spawners.docker import reaper
from serving.spawners.docker import replica as container_replica
from serving.spawners.docker.containers import OWNER_LABEL, REQUEST_TIMEOUT_S, DockerClient
from serving.spawners.docker.spawner import DockerSpawner
from tests.fakes.docker_engine import needs_docker
from tests.fakes.engine_relay import EngineRelay

ROOT = pathlib.Path(__file__).parents[2]
WAIT_S = 30.0
UNHEARD_S = 0.3
CARD = ModelSpec(name="m", version="1", kind="echo", path=None)


@pytest.fixture(name="relay")
def _relay(tmp_path, monkeypatch):
    relay = EngineRelay(tmp_path / "engine.sock")
    relay.open()
    monkeypatch.setenv("DOCKER_HOST", relay.address)
    monkeypatch.setattr(container_replica, "_UNHEARD_S", UNHEARD_S)
    monkeypatch.setattr(reaper, "_END_S", UNHEARD_S)
    yield relay
    relay.cut()


@pytest.fixture(name="client")
def _client():
    client = docker.from_env()  # before the relay: past it
    yield client
    client.close()


@pytest_asyncio.fixture(name="home")
async def _home(client, relay):
    home = DockerSpawner()
    await home.open("echo")
    yield home
    await home.close()


async def _started(home):
    return await home.start(1, cpu=0.5, memory_mb=128, ready_timeout_s=WAIT_S, spec=CARD)


def _of(client, name):
    return client.containers.list(
        all=True, filters={"label": f"{OWNER_LABEL}={name}"}, ignore_removed=True
    )


async def _until(done):
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(done):
            await asyncio.sleep(0.1)


@needs_docker
@pytest.mark.asyncio
async def test_an_engine_may_answer_later_than_the_replica(home, monkeypatch):
    """It is ready once both have: the limit of its cores is set on its container."""
    start = DockerClient.start

    def late(self, container):
        pid = start(self, container)
        time.sleep(2.0)  # it connects meanwhile
        return pid

    monkeypatch.setattr(DockerClient, "start", late)
    replica = await _started(home)
    assert replica.container
    replica.sock.close()


@needs_docker
@pytest.mark.asyncio
async def test_a_replica_outlives_an_engine_that_is_away(home, relay):
    """Its socket tells that it lives; when the engine is back, it tells of the end again."""
    replica = await _started(home)
    relay.cut()
    await asyncio.sleep(2 * UNHEARD_S + container_replica._RETRY_S)
    assert not replica.ended.done()
    relay.open()
    replica.kill()
    async with asyncio.timeout(WAIT_S):
        assert (await replica.ended).reason == "killed"
    replica.sock.close()


@needs_docker
@pytest.mark.asyncio
async def test_what_an_engine_that_is_away_does_not_end_is_given_up_and_removed_later(
    client, home, relay
):
    """Nobody waits for it, and the next removal takes it along."""
    replica = await _started(home)
    relay.cut()
    replica.kill()
    async with asyncio.timeout(WAIT_S):
        ended = await replica.ended
    assert ended.reason == "killed"
    assert "the engine did not report" in ended.text
    replica.sock.close()
    await _until(lambda: not home._lives)
    relay.open()
    assert len(_of(client, home._nest.name)) == 1
    another = await home.start(2, cpu=None, memory_mb=None, ready_timeout_s=WAIT_S, spec=CARD)
    another.sock.close()
    await _until(lambda: not _of(client, home._nest.name))


@needs_docker
@pytest.mark.asyncio
async def test_an_end_while_the_engine_is_away_leaves_the_rest_to_the_keeper(client, home, relay):
    """The home is closed at once; the keeper asks until the engine is back."""
    replica = await _started(home)
    nest, keeper = home._nest, home._nest.keeper
    relay.cut()
    await home.close()
    replica.sock.close()
    assert len(_of(client, nest.name)) == 1
    relay.open()
    await _until(lambda: keeper._child.process.poll() is not None)
    assert not _of(client, nest.name)


def test_a_signal_ends_a_server_whose_engine_does_not_answer(tmp_path):
    """An engine that takes connections and says nothing does not keep a server that is starting."""
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(path))
        engine.listen()
        engine.settimeout(WAIT_S)
        words = ("--model", "echo", "--port", "0", "--set", "replica.spawner=docker")
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DOCKER_HOST": f"unix://{path}",
        }
        with subprocess.Popen(
            [sys.executable, "-m", "serving", *words], cwd=ROOT, env=environment
        ) as server:
            asked, _ = engine.accept()
            with asked:
                server.send_signal(signal.SIGINT)
                assert server.wait(REQUEST_TIMEOUT_S / 2) == 0
