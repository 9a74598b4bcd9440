"""What may happen while a home of containers is taken over: it is refused, and nothing is left."""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import docker
import pytest

from serving import owner
from serving.errors import NotReady
from serving.homes import Homes
from serving.replica.as_container import ContainerHome
from serving.replica.container_engine import ContainerEngine, EngineError
from serving.state.nests import Nests
from serving.values import ModelCard
from tests.fakes.docker_engine import needs_docker
from tests.fakes.engine_relay import EngineRelay

pytestmark = needs_docker
WAIT_S = 30.0
CARD = ModelCard(name="m", version="1", kind="echo", path=None)
LIMITS = {"cpu": None, "memory_mb": None, "ready_timeout_s": WAIT_S}
KILLED = """
import asyncio, json, pathlib, sys
from serving.replica.as_container import ContainerHome
from serving.state.nests import Nests
from serving.values import ModelCard

async def main():
    home = ContainerHome(note=Nests(pathlib.Path(sys.argv[1])).note)
    await home.open("echo")
    limits = {"cpu": 0.5, "memory_mb": 128, "ready_timeout_s": 30}
    card = ModelCard(name="m", version="1", kind="echo", path=None)
    await home.start(1, **limits, card=card)
    for worker in (2, 3):
        await home.start(worker, **limits, card=None, kept={"takeover_s": float(sys.argv[2])})
    print(json.dumps({"directory": str(home._nest.directory)}), flush=True)
    await asyncio.sleep(120)

asyncio.run(main())
"""


@pytest.fixture(name="folder", autouse=True)
def _folder(monkeypatch):
    with tempfile.TemporaryDirectory() as short:
        (pathlib.Path(short) / "tmp").mkdir()
        monkeypatch.setattr(tempfile, "tempdir", f"{short}/tmp")
        monkeypatch.setenv("TMPDIR", f"{short}/tmp")
        yield pathlib.Path(short)


@pytest.fixture(name="running")
def _running():
    """`running()`: how many containers of this file's homes there are."""
    client = docker.from_env()  # before a relay: past it
    names = []

    def count(name=None):
        if name is not None:
            names.append(name)
        filters = [{"label": f"luthier.owner={one}"} for one in names]
        return sum(
            len(client.containers.list(all=True, filters=one, ignore_removed=True))
            for one in filters
        )

    yield count
    client.close()


@contextlib.contextmanager
def _killed(folder, running, takeover_s=60.0):
    """A gateway that was killed with three containers, of which two are kept; where they are."""
    words = [sys.executable, "-c", KILLED, str(folder), str(takeover_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        directory = pathlib.Path(json.loads(process.stdout.readline())["directory"])
        assert running(directory.name) == 3
        process.kill()
    yield directory


async def _until(done):
    async with asyncio.timeout(WAIT_S):
        while not await asyncio.to_thread(done):
            await asyncio.sleep(0.05)


async def test_replicas_come_back_and_what_is_not_kept_does_not(folder, running):
    """Under the limits that they have; the next one has a number and a folder of its own."""
    with _killed(folder, running) as directory:
        home = ContainerHome()
        assert await home.take_over("echo", directory) == 3
        try:
            left = {one.replica.worker: one for one in home.left}
            assert set(left) == {2, 3}
            assert [await one.held(WAIT_S) for one in left.values()] == [(), ()]
            assert [(one.replica.cpu, one.replica.memory_mb) for one in left.values()] == [
                (0.5, 128),
                (0.5, 128),
            ]
            await _until(lambda: running() == 2)
            home.left.remove(left[2])
            await home.settle()
            async with asyncio.timeout(WAIT_S):
                await left[3].replica.ended
            assert not left[2].replica.ended.done()
            another = await home.start(4, **LIMITS, card=CARD)
            await _until(lambda: home._nest.workers() == [2, 4])
            another.sock.close()
            left[2].replica.sock.close()
        finally:
            await home.close()
    assert not running()
    assert not directory.exists()


@pytest.mark.parametrize("moment", ["at the first", "at the last"])
async def test_a_keeper_that_is_killed_meanwhile(folder, running, monkeypatch, moment):
    """What has its name would be anybody's leavings: it is not taken over."""
    take, taken = ContainerHome._take, []

    async def killing(home, found, nest, engine):
        if len(taken) == (0 if moment == "at the first" else 2):
            keeper = nest.keeper.pid
            os.kill(keeper, signal.SIGKILL)
            await _until(lambda: not nest.keeper or nest.keeper.pid != keeper)
        taken.append(found)
        await take(home, found, nest, engine)

    monkeypatch.setattr(ContainerHome, "_take", killing)
    with _killed(folder, running) as directory:
        home = ContainerHome()
        try:
            with pytest.raises(NotReady, match="has ended meanwhile"):
                await home.take_over("echo", directory)
        finally:
            await home.close()
        await _until(lambda: not running())
        await _until(lambda: not list((folder / "tmp").iterdir()))


async def test_an_engine_that_goes_away_meanwhile(folder, running, monkeypatch):
    """The server starts with others; what is left is removed when the engine is back."""
    relay = EngineRelay(folder / "engine.sock")
    relay.open()
    monkeypatch.setenv("DOCKER_HOST", relay.address)
    of_owner = ContainerEngine.of_owner

    def away(engine, name):
        relay.cut()
        return of_owner(engine, name)

    try:
        with _killed(folder, running) as directory:
            await _until(lambda: running() == 2)  # the keeper has done what it had to
            monkeypatch.setattr(ContainerEngine, "of_owner", away)
            nests = Nests(folder)
            homes = Homes(lambda: ContainerHome(note=nests.note), nests)
            await homes.take_over()
            assert homes.left("echo") == []
            assert nests.taken() == {}
            assert running() == 2
            relay.open()
            await _until(lambda: not running() and not directory.exists())
            await _until(owner.of(directory.name).is_gone)
            await homes.close()
    finally:
        relay.cut()


async def test_a_start_that_is_given_up_meanwhile(folder, running, monkeypatch):
    """As by SIGTERM: nothing stays for the time that it was kept for."""
    begun = asyncio.Event()

    async def wait(home, found, nest, engine):
        begun.set()
        await asyncio.Event().wait()

    with _killed(folder, running) as directory:
        monkeypatch.setattr(ContainerHome, "_take", wait)
        homes = Homes(ContainerHome, Nests(folder))
        taking = asyncio.create_task(homes.take_over())
        await begun.wait()
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking
        await _until(lambda: not running() and not directory.exists())
        await homes.close()


async def test_one_that_cannot_be_removed_costs_only_itself(folder, running, monkeypatch):
    """Whoever removes later takes it along."""
    remove, refusals = ContainerEngine.remove, []

    def refuse(engine, container):
        if not refusals:
            refusals.append(container)
            raise EngineError("busy")
        remove(engine, container)

    with _killed(folder, running, 2.0) as directory:
        monkeypatch.setattr(ContainerEngine, "remove", refuse)
        home = ContainerHome()
        await home.take_over("echo", directory)
        assert [await one.held(WAIT_S) for one in home.left] == [(), ()]
        await home.close()
    assert refusals
    await _until(lambda: not running() and not directory.exists())


def _said_and_killed(text, folder):
    """The first line of a program, which is killed then."""
    with subprocess.Popen(
        [sys.executable, "-c", text, str(folder)], stdout=subprocess.PIPE
    ) as process:
        line = process.stdout.readline()
        process.kill()
    return line


async def test_the_third_gateway(folder, running):
    """The second one was killed while it took over: the keeper waits again."""
    with _killed(folder, running) as directory:
        text = KILLED[: KILLED.index("    limits")].replace(
            'home.open("echo")', f'home.take_over("echo", pathlib.Path({str(directory)!r}))'
        )
        text += "    print(len(home.left), flush=True)\n"
        text += "    await asyncio.sleep(120)\n\nasyncio.run(main())\n"
        assert await asyncio.to_thread(_said_and_killed, text, folder) == b"2\n"
        home = ContainerHome()
        await home.take_over("echo", directory)
        assert [await one.held(WAIT_S) for one in home.left] == [(), ()]
        await home.close()
    assert not running()
    assert not directory.exists()
