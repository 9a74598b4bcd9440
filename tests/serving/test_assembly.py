"""Where what policies learn is kept, as the settings say."""

import contextlib
import dataclasses
import pathlib
import tempfile

import pytest

from serving.assembly import assembled
from serving.errors import InvalidSettings, NotReady
from serving.homes import Homes
from serving.selection.application import Application
from serving.settings import ServingSettings
from serving.values import ModelCard
from tests.fakes.redis_server import started_redis
from tests.fakes.replicas import FakeHome

ECHO = ModelCard(name="echo", version="1", kind="echo", path=None)


@pytest.fixture(name="redis")
def _redis():
    with tempfile.TemporaryDirectory() as name:
        process, url = started_redis(pathlib.Path(name))
        yield process, url
        process.kill()
        process.wait(10)


@contextlib.asynccontextmanager
async def server(url, folder=None, **more):
    settings = ServingSettings().changed({"server.state_store": url})
    core = assembled([ECHO], settings, Homes(FakeHome), root=None, folder=folder, **more)
    try:
        await core.open()
        yield core
    finally:
        await core.engine.close()
        core.close()


def add(core, name):
    core.applications.add(
        Application(
            name=name, input_type="bytes", default_output="", models=("echo",), policy="exp3"
        )
    )


async def test_what_is_learnt_is_kept_in_the_redis_server_of_the_settings(redis, tmp_path):
    """It is there for the next server, and for another one beside it; no file of states is made."""
    _, url = redis
    async with server(url, tmp_path) as core:
        add(core, "app")
        contexts = core.applications._apps["app"].contexts
        state = contexts.state("")
        taught = dataclasses.replace(state, feedbacks=7) if hasattr(state, "feedbacks") else state
        text = core.applications._apps["app"].selector.stored(taught)
        core.applications._store.save("app", "", text)
        await core.keep()
    assert [file.name for file in tmp_path.iterdir() if "states" in file.name] == []
    async with server(url) as core:
        add(core, "app")
        assert core.applications._apps["app"].contexts.state("") == taught


async def test_a_server_of_states_that_is_away_ends_the_start(redis, tmp_path):
    """With one line, and nothing left open: the next start finds the record."""
    process, url = redis
    process.kill()
    process.wait(10)
    for address, error in ((url, NotReady), ("nowhere", InvalidSettings)):
        with pytest.raises(error):
            async with server(address, tmp_path):
                pass
    async with server(None, tmp_path) as core:
        assert core.engine.models() == (ECHO.id,)


async def test_a_change_needs_no_server_of_states(redis, tmp_path):
    """While it is away settings change and are kept; only to forget an application needs it."""
    process, url = redis
    async with server(url, tmp_path) as core:
        add(core, "app")
        await core.keep()
        core.applications._store.save("app", "", "{}")
        process.kill()
        process.wait(10)
        await core.engine.apply(core.engine.settings.changed({"batching.max_size": 3}))
        await core.keep()
        core.applications.delete("app")
        with pytest.raises(NotReady, match="cannot be written"):
            await core.keep()
    async with server(None, tmp_path) as core:
        assert core.engine.settings.batching.max_size == 3
