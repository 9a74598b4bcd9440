"""A keeper of containers, here without any: it ends with its gateway's word, and another one takes its place."""

import asyncio
import os
import pathlib
import signal

import pytest

from serving.spawners.docker import reaper
from serving.spawners.docker.containers import DockerClient, DockerError
from serving.spawners.docker.reaper import ReaperClient

pytestmark = pytest.mark.processes

NAME = "luthier-test"
WAIT_S = 20.0


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    """Nothing is waited for for long."""
    monkeypatch.setattr(reaper, "_RESTART_S", 0.01)
    monkeypatch.setattr(reaper, "_ROUND_S", 0.0)


def _runs(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


async def _killed(keeper):
    """Kill it, and wait until there is another one; its process."""
    pid = keeper.pid
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while keeper.pid == pid:
            await asyncio.sleep(0.001)
    return pid


@pytest.mark.asyncio
async def test_a_clean_end_removes_nothing(tmp_path):
    """Nor is any engine asked."""
    keeper = ReaperClient(NAME, tmp_path)
    assert _runs(keeper.pid)
    await keeper.close(is_clean=True)
    assert not _runs(keeper.pid)
    assert tmp_path.is_dir()


@pytest.mark.asyncio
async def test_another_one_takes_its_place(tmp_path):
    """As often as somebody kills it."""
    keeper = ReaperClient(NAME, tmp_path)
    pids = {await _killed(keeper), await _killed(keeper), keeper.pid}
    await keeper.close(is_clean=True)
    assert len(pids) == 3
    assert not any(map(_runs, pids))
    assert tmp_path.is_dir()


@pytest.mark.asyncio
async def test_one_that_cannot_be_started_is_tried_again(tmp_path, monkeypatch, caplog):
    """No process, no descriptor: that passes."""
    started, failures = reaper._start_reaper, iter([OSError("full"), OSError("full")])

    def start(words):
        for failure in failures:
            raise failure
        return started(words)

    keeper = ReaperClient(NAME, tmp_path)
    monkeypatch.setattr(reaper, "_start_reaper", start)
    await _killed(keeper)
    assert _runs(keeper.pid)
    assert caplog.text.count("there is no reaper") == 2
    await keeper.close(is_clean=True)


@pytest.mark.asyncio
async def test_an_end_while_there_is_none(tmp_path, monkeypatch, caplog):
    """It is not waited for, and none is started any more."""
    monkeypatch.setattr(reaper, "_RESTART_S", 600.0)
    keeper = ReaperClient(NAME, tmp_path)
    os.kill(keeper.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while "another one is started" not in caplog.text:
            await asyncio.sleep(0.001)
        await keeper.close(is_clean=True)
    assert not _runs(keeper.pid)


@pytest.mark.asyncio
async def test_an_end_that_is_not_clean_is_left_to_it(tmp_path, monkeypatch, caplog):
    """Where the engine is away, that takes longer than a server that ends should."""
    monkeypatch.setattr(reaper, "_END_S", 0.1)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    keeper = ReaperClient(NAME, tmp_path)
    try:
        await keeper.close(is_clean=False)
        assert "a reaper continues to remove what is left" in caplog.text
        assert _runs(keeper.pid)
    finally:
        os.kill(keeper.pid, signal.SIGKILL)


def test_what_appears_late_is_removed_as_well(monkeypatch):
    """Also where the engine is away at first."""
    listed = iter([["one", "two"], ["three"], []])
    is_away = iter([True])
    removed = []

    class Engine:
        def of_owner(self, name):
            assert name == NAME
            return next(listed)

        def remove(self, container):
            removed.append(container)

        def close(self):
            pass

    def connect():
        if next(is_away, False):
            raise DockerError("away")
        return Engine()

    monkeypatch.setattr(DockerClient, "connect", connect)
    reaper._remove_all(NAME)
    assert removed == ["one", "two", "three"]
