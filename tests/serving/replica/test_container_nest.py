"""A nest of containers, here without any: its keeper may be killed at any moment; its directory has an owner again."""

import asyncio
import os
import pathlib
import signal
import tempfile
import threading

import pytest
import pytest_asyncio

from serving import owner
from serving.errors import NotReady
from serving.replica import container_nest
from serving.replica.container_keeper import SOCKET, Keeper
from serving.replica.container_nest import Nest
from serving.replica.shelf import Shelf

FACTS = {"version": "1"}
KEPT = {"takeover_s": 20}
WAIT_S = 20.0


@pytest.fixture(name="folder", autouse=True)
def _folder(monkeypatch):
    """Where directories are made; a socket's path has at most some hundred letters."""
    with tempfile.TemporaryDirectory() as short:
        monkeypatch.setattr(tempfile, "tempdir", short)
        monkeypatch.setattr(container_nest, "_RETRY_S", 0.01)
        yield pathlib.Path(short)


@pytest_asyncio.fixture(name="nest")
async def _nest():
    nest = await Nest.made(FACTS)
    yield nest
    await nest.close(is_clean=True)


def _is_owned(nest):
    """Whether the directory is named after a living keeper."""
    return nest.keeper is not None and owner.of(nest.name).pid == nest.keeper.pid


async def _killed(nest):
    """Kill the keeper, and wait until there is another one."""
    keeper = nest.keeper
    os.kill(keeper.pid, signal.SIGKILL)
    async with asyncio.timeout(WAIT_S):
        while nest.keeper is keeper:
            await asyncio.sleep(0.001)
        await nest.ready(WAIT_S)


@pytest.mark.asyncio
async def test_it_goes_on_under_the_name_of_another_keeper(nest, folder):
    """As often as that is killed; who has the directory mounted is told, and the next gateway finds the new one."""
    renewed, noted = [], []
    nest.on_renewed = lambda: renewed.append(nest.name)
    nest.keep(KEPT, noted.append)
    nest.keep(KEPT, noted.append)
    names = [nest.name]
    nest.folder_of(7).mkdir()
    for _ in range(2):
        await _killed(nest)
        assert _is_owned(nest)
        assert list(folder.iterdir()) == [nest.directory]
        assert nest.workers() == [7]
        async with asyncio.timeout(WAIT_S):
            while not (nest.directory / SOCKET).exists():
                await asyncio.sleep(0.01)
        names.append(nest.name)
    assert len(set(names)) == 3
    assert renewed == names[1:]
    assert noted == [folder / name for name in names]
    nest.remove_folders(but_of=[7, 8])
    assert nest.workers() == [7]
    nest.remove_folders(but_of=[])
    assert nest.workers() == []


@pytest.mark.asyncio
async def test_an_end_removes_the_directory_and_the_note(folder):
    """Nothing is left, nor anybody."""
    noted = []
    nest = await Nest.made(FACTS)
    keeper = nest.keeper
    nest.keep(KEPT, noted.append)
    await nest.close(is_clean=True)
    assert noted[-1] is None
    assert not list(folder.iterdir())
    assert owner.of_process(keeper.pid).started_ticks == 0
    with pytest.raises(NotReady):
        await nest.ready(WAIT_S)


@pytest.mark.asyncio
async def test_a_keeper_that_cannot_be_started_is_tried_again(nest, monkeypatch, caplog):
    """No process, no descriptor: that passes."""
    started, failures = Keeper.started, iter([OSError("full"), OSError("full")])

    async def start():
        for failure in failures:
            raise failure
        return await started()

    monkeypatch.setattr(Keeper, "started", start)
    await _killed(nest)
    assert _is_owned(nest)
    assert caplog.text.count("containers are left") == 2


@pytest.mark.asyncio
async def test_a_keeper_that_is_killed_before_it_owns_anything(nest, monkeypatch, folder):
    """Another one takes its place."""
    move, victims = Shelf.move, iter([1])

    def killing(shelf, parent):
        for _ in victims:
            os.kill(owner.of(parent.name).pid, signal.SIGKILL)
        move(shelf, parent)

    monkeypatch.setattr(Shelf, "move", killing)
    await _killed(nest)
    async with asyncio.timeout(WAIT_S):
        while not _is_owned(nest) or owner.of(nest.name).is_gone():
            await asyncio.sleep(0.01)
    assert list(folder.iterdir()) == [nest.directory]


@pytest.mark.asyncio
async def test_an_end_in_the_midst_of_a_renewal(monkeypatch, folder):
    """Whoever lays out files meanwhile gives up; nothing is left."""
    nest = await Nest.made(FACTS)
    move, moving, closed = Shelf.move, threading.Event(), threading.Event()

    def slowly(shelf, parent):
        moving.set()
        assert closed.wait(WAIT_S)
        move(shelf, parent)

    def close(shelf):
        closed.set()

    monkeypatch.setattr(Shelf, "move", slowly)
    monkeypatch.setattr(Shelf, "close", close)
    os.kill(nest.keeper.pid, signal.SIGKILL)
    assert await asyncio.to_thread(moving.wait, WAIT_S)
    with pytest.raises(NotReady):
        await nest.ready(0.01)
    await nest.close(is_clean=True)
    assert not list(folder.iterdir())
    assert nest.keeper is None
