"""Homes are made when they are needed, one per kind, and what keeps one from being made is one error."""

import asyncio
import contextlib
import errno
import json
import os
import subprocess
import sys

import pytest

from serving.errors import ReplicaStartFailed
from serving.homes import Homes
from serving.replica.as_process import ProcessHome
from serving.state.nests import Nests
from serving.values import ModelCard, Program
from tests.fakes.replicas import FakeHome


def _card(kind, program=None):
    return ModelCard(name="m", version="1", kind=kind, path=None, program=program)


def test_programs_share_a_home(tmp_path):
    """However many are deployed over the days, one template process serves them all."""

    async def scenario():
        homes = Homes(FakeHome)
        cards = [_card("command", Program((f"./{n}",), tmp_path / str(n))) for n in range(3)]
        found = [await homes.of(card) for card in [*cards, _card("echo")]]
        await homes.close()
        return found

    *programs, echo = asyncio.run(scenario())
    assert len({id(home) for home in programs}) == 1
    assert echo is not programs[0]


def test_a_home_that_finds_no_room_is_a_failed_start():
    """And the next one that is asked for is tried anew."""

    class Full(FakeHome):
        async def open(self, kind):
            raise OSError(errno.ENOSPC, "No space left on device")

    async def scenario():
        homes = Homes(iter([Full(), FakeHome()]).__next__)
        with pytest.raises(ReplicaStartFailed, match="No space left"):
            await homes.of(_card("echo"))
        await homes.of(_card("echo"))
        await homes.close()

    asyncio.run(scenario())


KILLED = """
import asyncio, json, pathlib, sys
from serving.replica.as_process import ProcessHome
from serving.state.nests import Nests

async def main():
    nests = Nests(pathlib.Path(sys.argv[1]))
    pids = {}
    for worker, kind in enumerate(("echo", "python"), 4):
        home = ProcessHome(note=nests.note)
        await home.open(kind)
        limits = {"cpu": None, "memory_mb": None, "ready_timeout_s": 20}
        replica = await home.start(worker, **limits, card=None, kept={"takeover_s": 20})
        pids[kind] = replica.pid
    print(json.dumps(pids), flush=True)
    await asyncio.sleep(120)

asyncio.run(main())
"""


@contextlib.contextmanager
def _killed(folder):
    """A server that was killed; the processes of the replicas that it left, by kind."""
    command = [sys.executable, "-c", KILLED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        pids = json.loads(server.stdout.readline())
        server.kill()
    yield pids


def _lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_homes_of_a_killed_server(tmp_path):
    """One that is asked for is the home from now on, its replicas for whoever wants them; the other ends."""

    async def scenario(pids):
        nests = Nests(tmp_path)
        homes = Homes(lambda: ProcessHome(note=nests.note), nests)
        await homes.take_over()
        try:
            assert next(homes.workers) == 6, "numbers go on after the last one"
            (echo,), (python,) = homes.left("echo"), homes.left("python")
            assert await echo.held(10) == await python.held(10) == ()
            assert (echo.replica.pid, python.replica.pid) == (pids["echo"], pids["python"])
            home = await homes.of(_card("echo"))
            homes.left("echo").remove(echo)
            echo.replica.sock.close()
            await homes.settle()
            assert (_lives(pids["echo"]), _lives(pids["python"])) == (True, False)
            assert await homes.of(_card("echo")) is home
            assert await homes.of(_card("python")) is not python
        finally:
            await homes.close()

    with _killed(tmp_path) as pids:
        asyncio.run(scenario(pids))
    assert not any(map(_lives, pids.values()))
    assert Nests(tmp_path).taken() == {}


def test_homes_that_the_settings_want_no_more(tmp_path):
    """As containers do, after processes: what was left ends at once."""

    async def scenario(pids):
        homes = Homes(FakeHome, Nests(tmp_path))
        await homes.take_over()
        assert not any(map(_lives, pids.values()))
        assert homes.left("echo") == []
        assert isinstance(await homes.of(_card("echo")), FakeHome)
        await homes.settle()
        await homes.close()

    with _killed(tmp_path) as pids:
        asyncio.run(scenario(pids))
