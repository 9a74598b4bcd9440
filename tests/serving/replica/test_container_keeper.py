"""A keeper of containers without an engine: it ends with its gateway's word, and what is no keeper is told apart."""

import asyncio
import json
import os
import pathlib
import signal

import pytest

from serving.errors import NotReady
from serving.replica.container_engine import (
    KEPT_LABEL,
    OWNER_LABEL,
    WORKER_LABEL,
    ContainerEngine,
    EngineError,
    Found,
)
from serving.replica.container_keeper import SOCKET, Keeper, remove_others

FACTS = {"version": "1", "engine": "unix:///x"}
LISTED = {"Id": "abc", "ImageID": "sha256:1", "Names": ["/luthier-1"], "State": "running"}


async def _refused(directory, told):
    """Why a keeper is not taken over that tells so, and what it hears."""
    heard = asyncio.get_running_loop().create_future()

    async def met(reader, writer):
        await reader.readexactly(1)  # beside it comes the error output
        writer.write(json.dumps(told).encode() + b"\n")
        heard.set_result(await reader.readline())
        writer.close()

    async with await asyncio.start_unix_server(met, str(directory / SOCKET)):
        with pytest.raises(NotReady) as caught:
            await Keeper.taken_over(directory, FACTS, timeout_s=10)
        return str(caught.value), await heard


@pytest.mark.parametrize("name", FACTS)
def test_a_keeper_of_other_containers_removes_them_at_once(directory, name):
    """Of another version, or of another engine: nobody will use them."""
    told = {"event": "left", "facts": FACTS | {name: "other"}}
    reason, heard = asyncio.run(_refused(directory, told))
    assert f"is of {name} other, this is {FACTS[name]}" in reason
    assert json.loads(heard) == {"do": "end", "clean": False}


@pytest.mark.parametrize("told", [[], 1, None, {}, {"facts": 1}, {"facts": None}])
def test_a_keeper_that_talks_nonsense(directory, told):
    """The server starts without it."""
    reason, _ = asyncio.run(_refused(directory, told))
    assert "no keeper answers" in reason


def test_a_keeper_of_which_nothing_is_left(directory):
    """As it is after its time."""

    async def scenario():
        with pytest.raises(NotReady, match="no keeper answers"):
            await Keeper.taken_over(directory, FACTS, timeout_s=10)

    asyncio.run(scenario())


@pytest.mark.parametrize("is_killed", [False, True])
def test_an_end_is_told_where_nobody_asked_for_it(directory, is_killed):
    """What is clean is not touched by it, nor any engine asked."""

    async def scenario():
        ended = asyncio.Event()
        keeper = await Keeper.started()
        keeper.listen(ended.set)
        keeper.own([directory.name], directory, FACTS)
        keeper.keep(20.0)
        async with asyncio.timeout(20):
            while not (directory / SOCKET).exists():
                await asyncio.sleep(0.01)
            if is_killed:
                os.kill(keeper.pid, signal.SIGKILL)
                await ended.wait()
            await keeper.close(is_clean=True)
            while _runs(keeper.pid):
                await asyncio.sleep(0.01)
        return ended.is_set()

    assert asyncio.run(scenario()) is is_killed
    assert directory.is_dir()


class Engine:
    """Two containers, of which one is kept; a gateway may come at a word of it."""

    def __init__(self, comes=None):
        self.comes = comes
        self.is_met = False
        self.removed = []

    def _asked(self, what):
        self.is_met = self.is_met or what == self.comes

    def of_owner(self, name):
        self._asked("list")
        labels = [{KEPT_LABEL: '{"takeover_s": 5}'}, {}, {}]
        listed = [LISTED | {"Id": f"{name}{n}", "Labels": one} for n, one in enumerate(labels)]
        return [Found.listed(one) for one in listed]

    def remove(self, container):
        self._asked("remove")
        self.removed.append(container)
        raise EngineError("busy")

    def close(self):
        pass


@pytest.mark.parametrize(
    ("comes", "removed"), [(None, ["a1", "a2"]), ("list", []), ("remove", ["a1"])]
)
def test_what_the_next_gateway_may_have_made_is_not_removed(monkeypatch, comes, removed):
    """It has containers that are not kept as well, under the same name: what is listed late may be one of these."""
    engine = Engine(comes)
    monkeypatch.setattr(ContainerEngine, "connect", lambda: engine)
    remove_others(["a"], lambda: engine.is_met)
    assert engine.removed == removed


def _runs(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


@pytest.mark.parametrize(
    ("labels", "state", "worker", "kept"),
    [
        ({WORKER_LABEL: "3", KEPT_LABEL: '{"takeover_s": 5}'}, "running", 3, {"takeover_s": 5}),
        ({WORKER_LABEL: "3", KEPT_LABEL: '{"takeover_s": 5}'}, "exited", 3, None),
        ({WORKER_LABEL: "3"}, "running", 3, None),
        ({WORKER_LABEL: "x", KEPT_LABEL: "{"}, "running", 0, None),
        ({KEPT_LABEL: "[1]"}, "running", 0, None),
        (None, "running", 0, None),
    ],
)
def test_what_a_label_tells(labels, state, worker, kept):
    """A container that has ended is of no use, and what makes no sense is nothing: people may write labels."""
    found = Found.listed(
        LISTED | {"Labels": labels and {OWNER_LABEL: "luthier-1", **labels}, "State": state}
    )
    assert (found.container, found.name, found.image) == ("abc", "luthier-1", "sha256:1")
    assert (found.worker, found.kept) == (worker, kept)
