"""Where what policies learn is kept, as the settings say."""

import asyncio
import contextlib
import functools
import pathlib
import tempfile

import pytest

from serving.api.clipper.inputs import ApplicationInput
from serving.app import bootstrap
from serving.app.bootstrap import build
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.errors import InvalidSettings, NotReady
from serving.model_spec import ModelSpec
from serving.selection.application import Application
from serving.selection.stores.redis_shared import RedisShared
from serving.settings import ServingSettings
from tests.fakes.redis_server import running_redis
from tests.fakes.replicas import FakeHome

ECHO = ModelSpec(name="echo", version="1", kind="echo", path=None)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """A load waits for a server that a busy machine keeps from answering."""
    monkeypatch.setattr(bootstrap, "RedisShared", functools.partial(RedisShared, patience_s=5.0))


@pytest.fixture(name="redis")
def _redis():
    with tempfile.TemporaryDirectory() as name, running_redis(pathlib.Path(name)) as running:
        yield running


@contextlib.asynccontextmanager
async def server(url, folder=None, **more):
    settings = ServingSettings().with_changes({"server.state_store": url})
    core = build([ECHO], settings, SpawnerRegistry(FakeHome), root=None, folder=folder, **more)
    try:
        await core.open()
        yield core
    finally:
        await core.engine.close()
        await core.applications.finish_exchange()
        core.close()


class Asker:
    def __init__(self):
        self.result = asyncio.get_running_loop().create_future()

    def on_response(self, result):
        self.result.set_result(result)


async def teach(core):
    """A query of one user, and feedback that its answer was wrong."""
    asker = Asker()
    asked = ApplicationInput("integers", [4])
    core.applications.ask("app", asked, asker.on_response, user="anna")
    result = await asyncio.wait_for(asker.result, 5)
    assert core.applications.feedback(
        "app", 5, user="anna", input_key=asked.key, query_id=result.query_id
    )


def add(core):
    application = Application(
        name="app", input_type="integers", default_output="", models=("echo",),
        policy="thompson", contexts="user",
    )  # fmt: skip
    core.applications.add(application)


async def test_what_is_learnt_is_kept_in_the_redis_server_of_the_settings(redis, tmp_path):
    """It is there for the next server, with a folder of its own or without; no file of states is made."""
    _, url = redis
    async with server(url, tmp_path) as core:
        add(core)
        new = core.applications.state("app", "anna")["state"]
        await teach(core)
        learnt = core.applications.state("app", "anna")["state"]
        assert learnt != new
    assert [file.name for file in tmp_path.iterdir() if "states" in file.name] == []
    async with server(url) as core:
        add(core)
        assert core.applications.state("app", "anna")["state"] == learnt


async def test_a_server_of_states_that_is_away_ends_the_start(redis, tmp_path):
    """With one line, and nothing left open: the next start finds the record."""
    process, url = redis
    process.kill()
    process.wait(10)
    for address, error in ((url, NotReady), ("nowhere", InvalidSettings)):
        with pytest.raises(error, match=r"server\.state_store") as told:
            async with server(address, tmp_path):
                pass
        assert "\n" not in str(told.value)
    async with server(None, tmp_path) as core:
        assert core.engine.models() == (ECHO.id,)


async def test_a_change_needs_no_server_of_states(redis, tmp_path):
    """While it is away settings change and are kept; only to forget an application needs it."""
    process, url = redis
    async with server(url, tmp_path) as core:
        add(core)
        await core.keep()
        core.applications.state("app", "anna")
        process.kill()
        process.wait(10)
        await teach(core)
        await core.engine.apply(core.engine.settings.with_changes({"batching.max_size": 3}))
        await core.keep()
        core.applications.delete("app")
        with pytest.raises(NotReady, match="does not answer"):
            await core.keep()
    async with server(None, tmp_path) as core:
        assert core.engine.settings.batching.max_size == 3
