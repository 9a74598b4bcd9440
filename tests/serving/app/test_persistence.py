"""What management changes is there again at the next start, as far as the start does not say otherwise."""

import asyncio
import contextlib
import json
import logging
import sqlite3

import pytest

from serving.api.clipper import management
from serving.api.triton.repository_service import RepositoryService
from serving.app.bootstrap import build
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.errors import NotReady, ServingError, UnknownModel
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state.records import RecordKey, SqliteRecords
from serving.values import ModelId
from tests.fakes.replicas import FakeHome
from tests.fakes.running import retired
from tests.serving.engine.test_repository import put

ECHO = ModelSpec(name="echo", version="1", kind="echo", path=None)


def version(number, **more):
    return ModelSpec(name="m", version=number, kind="echo", path=None, **more)


class Site:
    """A folder of the state, and servers over it, one after another."""

    def __init__(self, folder):
        self.folder = folder

    @contextlib.asynccontextmanager
    async def server(self, *cards, values=None, root=None, home=None):
        """One life of a server; it ends without a word, as a killed one does."""
        settings = ServingSettings().with_changes(values or {})
        home = home or FakeHome()
        core = build(cards, settings, SpawnerRegistry(lambda: home), root=root, folder=self.folder)
        try:
            await core.open()
            yield core
        finally:
            await core.engine.close()
            core.close()

    def record(self):
        """What is on the disk now, as a process that comes later reads it."""
        records = SqliteRecords(self.folder / "records.db")
        try:
            return records.load()
        finally:
            records.close()


@pytest.fixture(name="site")
def _site(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir()
    return Site(folder)


async def command(core, verb, /, **data):
    """One of Clipper's commands, and what the admin port does after it."""
    path, body = f"/admin/{verb}", json.dumps(data).encode()
    status, text = await management.execute(core.clipper, path, body)
    assert status == 200, text
    await core.keep()


def in_force(core):
    """Everything that management can see."""
    return {
        "models": {served.id: served.spec for served in core.engine.deployments()},
        "entries": {
            id_.name: core.engine.catalogue.entry(id_.name).as_json()
            for id_ in core.engine.models()
        },
        "settings": core.engine.settings.flat(),
        "applications": core.applications.all(),
        "registered": core.clipper.models(),
        "current": core.clipper.current_versions(),
        "replicas": {
            served.id: served.placement.ready_count for served in core.engine.deployments()
        },
    }


async def test_all_of_it_comes_back(site):
    """Versions, labels, split, shadow, settings, replica counts, applications, links, Clipper's records."""
    async with site.server(ECHO) as core:
        for number in ("1", "2", "3"):
            await core.engine.deploy(version(number, quality={"n": 3}), current=number == "1")
        core.engine.catalogue.set_current("m", "2")
        core.engine.catalogue.set_label("m", "canary", "3")
        core.engine.catalogue.set_shares("m", {"canary": 0.25})
        core.engine.catalogue.set_shadow("m", "1")
        named = {"model_name": "c", "input_type": "bytes", "container_name": "echo"}
        for number in ("9", "1"):
            await command(
                core,
                "start_containers",
                **named,
                model_version=number,
                num_replicas=2,
                batch_size=4,
            )
            more = {"labels": ["x"], "model_data_path": "", "batch_size": 4}
            await command(core, "add_model", **named, **more, model_version=number)
        await command(core, "set_model_version", model_name="c", model_version="9")
        app = {"input_type": "bytes", "default_output": "no", "latency_slo_micros": 50_000}
        await command(
            core, "add_app", name="a", **app, policy="exp3", options={"learning_rate": 0.2}
        )
        await command(core, "add_app", name="b", **app)
        await command(core, "add_model_links", app_name="a", model_names=["c"])
        await core.engine.apply(core.engine.settings.with_changes({"cache.capacity_mb": 3}))
        await core.keep()
        before = in_force(core)
    assert before["replicas"][ModelId("c", "9")] == 2
    async with site.server(ECHO) as core:
        assert in_force(core) == before


async def test_what_is_taken_away_stays_away(site):
    """A version, a label, a link, an application with what its policy has learnt."""
    async with site.server(ECHO) as core:
        for number in ("1", "2"):
            await core.engine.deploy(version(number))
            core.engine.catalogue.set_label("m", f"l{number}", number)
        app = {"input_type": "bytes", "default_output": "no", "latency_slo_micros": 50_000}
        await command(core, "add_app", name="a", **app)
    async with site.server(ECHO) as core:
        core.engine.catalogue.set_label("m", "l2", None)
        await retired(core.engine, "m", "1", within_s=1)
        await command(core, "delete_app", name="a")
    async with site.server(ECHO) as core:
        entry = core.engine.catalogue.entry("m").as_json()
        assert (entry["labels"], entry["versions"]) == ({}, ["2"])
        assert core.applications.all() == ()


async def test_a_live_setting_holds_until_the_start_says_something_else(site):
    """Not said, or said as before: the live one. Said anew: that one, and the live one is removed."""
    name = "batching.max_size"
    async with site.server(ECHO, values={name: 16}) as core:
        await core.engine.apply(
            core.engine.settings.with_changes({name: 8, "models.echo.replica.count": 2})
        )
        await core.keep()
    async with site.server(ECHO, values={name: 16}) as core:
        assert core.engine.settings.batching.max_size == 8
        assert core.engine.settings.of("echo").replica.count == 2
    async with site.server(ECHO, values={name: 64}) as core:
        assert core.engine.settings.batching.max_size == 64
    async with site.server(ECHO, values={name: 16}) as core:
        assert core.engine.settings.batching.max_size == 16
        assert core.engine.settings.of("echo").replica.count == 2


async def test_a_model_of_the_command_line_that_was_unloaded_stays_out(site, caplog):
    """Until somebody loads it, or the command line names another file."""
    async with site.server(ECHO) as core:
        hub = RepositoryService(core.engine, None, specs=[ECHO], is_controlled=True, keep=core.keep)
        await hub.unload("echo")
    with caplog.at_level(logging.WARNING):
        async with site.server(ECHO) as core:
            assert core.engine.models() == ()
    assert "taken out of service manually" in caplog.text
    other = ModelSpec(name="echo", version="1", kind="echo", path=site.folder)
    async with site.server(other) as core:
        assert core.engine.models() == (ECHO.id,)
    async with site.server(ECHO) as core:
        hub = RepositoryService(core.engine, None, specs=[ECHO], is_controlled=True, keep=core.keep)
        await hub.unload("echo")
        await hub.load("echo", {"max_batch_size": 5})
    async with site.server(ECHO) as core:
        assert core.engine.models() == (ECHO.id,)
        assert core.engine.settings.of("echo").batching.max_size == 5


async def test_a_version_of_the_command_line_wins_over_a_recorded_one(site):
    """Of the same name and version; a new version of it becomes the current one."""
    async with site.server(version("1")) as core:
        await core.engine.deploy(version("2"))
        await core.keep()
    mine = version("2", description="mine")
    async with site.server(mine) as core:
        assert [served.spec for served in core.engine.deployments()] == [mine]
        assert core.engine.catalogue.entry("m").current == "2"
    async with site.server(version("3")) as core:
        assert core.engine.catalogue.entry("m").current == "3"


async def test_what_cannot_be_loaded_any_more_is_told_and_left_out(site, caplog):
    """One line each; the rest serves; when it can be loaded again, all is as it was."""

    class Broken(FakeHome):
        async def start(self, worker, **limits):
            self.load_error = "no such file" if self.replicas else None
            return await super().start(worker, **limits)

    async with site.server(ECHO) as core:
        for number in ("1", "2"):
            await core.engine.deploy(version(number))
        core.engine.catalogue.set_label("m", "canary", "2")
        await core.keep()
        before = in_force(core)
    with caplog.at_level(logging.ERROR):
        async with site.server(ECHO, home=Broken()) as core:
            assert core.engine.models() == (ECHO.id,)
            assert core.engine.states()[ModelId("m", "2")][0] == "failed"
            await command(
                core,
                "add_app",
                name="a",
                input_type="bytes",
                default_output="",
                latency_slo_micros=1,
            )
            await command(core, "delete_app", name="a")
    told = [one for one in caplog.records if "left out" in one.message]
    assert [one.what for one in told] == ["version m 1", "version m 2"]
    assert "no such file" in told[0].error
    async with site.server(ECHO) as core:
        assert in_force(core) == before
    async with site.server(ECHO, home=Broken()) as core:
        await retired(core.engine, "m", "2", within_s=1)
        await core.keep()
    async with site.server(ECHO) as core:
        assert core.engine.catalogue.entry("m").as_json()["versions"] == ["1"]


async def test_decisions_about_a_version_that_fails_once_are_not_lost(site):
    """The one before it answers meanwhile; when it is back it is current again."""

    class Once(FakeHome):
        async def start(self, worker, **limits):
            self.load_error = "disk away" if len(self.replicas) == 2 else None
            return await super().start(worker, **limits)

    async with site.server(ECHO) as core:
        for number in ("1", "2"):
            await core.engine.deploy(version(number))
        await core.keep()
    async with site.server(ECHO, home=Once()) as core:
        assert core.engine.catalogue.entry("m").current == "1"
    async with site.server(ECHO) as core:
        assert core.engine.catalogue.entry("m").current == "2"


async def test_a_folder_of_models_and_the_record(site, tmp_path):
    """A version set by hand comes back, one unloaded by hand does not; a new one in the folder is newer."""
    root = tmp_path / "models"
    for number in ("1", "2"):
        put(root, "f", number)
    put(root, "g", "1")
    async with site.server(root=root) as core:
        await core.repository.set_version("f", "1")
        await core.repository.unload("g")
        await core.keep()
    async with site.server(root=root) as core:
        assert core.engine.catalogue.entry("f").current == "1"
        assert ModelId("g", "1") not in core.engine.models()
        with pytest.raises(UnknownModel):
            core.engine.catalogue.entry("g")
    put(root, "f", "3")
    put(root, "g", "1", text="name: any\nversion: 1\nkind: echo\ndescription: anew\n")
    async with site.server(root=root) as core:
        assert core.engine.catalogue.entry("f").as_json()["versions"] == ["3"]
        assert core.engine.versions("g") == ("1",)
    async with site.server(ECHO) as core:
        assert core.engine.models() == (ECHO.id,), "another start without the folder has none of it"


async def test_a_change_is_on_the_disk_when_it_is_answered(site):
    """Changes at the same time, too."""
    async with site.server(ECHO) as core:

        async def label(number):
            core.engine.catalogue.set_label("echo", f"l{number}", "1")
            await core.keep()
            assert f"l{number}" in json.loads(site.record()[RecordKey("model", "echo")])["labels"]

        await asyncio.gather(*map(label, range(5)))


async def test_a_record_that_cannot_be_written_is_told_and_made_up_for(site):
    """The change is in force; the next one writes both."""
    async with site.server(ECHO) as core:
        disk = sqlite3.connect(site.folder / "records.db", isolation_level=None)
        disk.execute(
            "CREATE TRIGGER t BEFORE UPDATE ON records BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
        core.engine.catalogue.set_label("echo", "x", "1")
        with pytest.raises(NotReady, match=r"is in effect, but .*disk full"):
            await core.keep()
        disk.execute("DROP TRIGGER t")
        disk.close()
        core.engine.catalogue.set_label("echo", "y", "1")
        await core.keep()
        assert json.loads(site.record()[RecordKey("model", "echo")])["labels"] == {
            "x": "1",
            "y": "1",
        }


async def test_a_start_that_fails_leaves_the_record_alone(site):
    """A command line with a broken model ends the server, and changes nothing of what was kept."""
    async with site.server(ECHO) as core:
        await core.engine.deploy(version("1"))
        await core.keep()
    before = site.record()
    home = FakeHome()
    home.load_error = "broken"
    with pytest.raises(ServingError):
        async with site.server(ECHO, home=home):
            pass
    assert site.record() == before


NONSENSE = [
    "{",
    "null",
    "7",
    '{"value": [1], "name": "a", "card": {}}',
    '{"name": "a", "latency_slo_s": "x"}',
]


@pytest.mark.parametrize("nonsense", NONSENSE)
async def test_rows_edited_to_nonsense_keep_nothing_down(site, caplog, nonsense):
    """Each is one line that names it; the rest is in force, and the row stays, until it is mended."""
    async with site.server(ECHO) as core:
        await core.engine.deploy(version("1"))
        await core.engine.deploy(version("2"))
        core.engine.catalogue.set_label("m", "canary", "1")
        named = {"model_name": "c", "model_version": "1", "input_type": "bytes"}
        more = {"container_name": "echo", "labels": [], "model_data_path": "", "batch_size": 4}
        await command(core, "add_model", **named, **more)
        app = {"input_type": "bytes", "default_output": "no", "latency_slo_micros": 50_000}
        await command(core, "add_app", name="a", **app)
        await command(core, "add_app", name="b", **app)
        changed = {"batching.max_size": 16, "cache.capacity_mb": 3}
        await core.engine.apply(core.engine.settings.with_changes(changed))
        await core.keep()
        before = in_force(core)
    whole = site.record()
    edited = [
        RecordKey("setting", "batching.max_size"),
        RecordKey("version", "m", "2"),
        RecordKey("application", "a"),
        RecordKey("registered", "c", "1"),
        RecordKey("model", "echo"),
    ]
    records = SqliteRecords(site.folder / "records.db")
    records.write(dict.fromkeys(edited, nonsense))
    records.close()
    with caplog.at_level(logging.ERROR):
        async with site.server(ECHO) as core:
            after = in_force(core)
            assert core.engine.states()[ModelId("m", "2")][0] == "failed"
            core.engine.catalogue.set_label("m", "other", "1")
            await core.keep()
    told = [one.what for one in caplog.records if "left out" in one.message]
    assert sorted(told) == sorted(" ".join(filter(None, key)) for key in edited)
    assert after["settings"]["cache.capacity_mb"] == 3
    assert after["settings"]["batching.max_size"] == ServingSettings().batching.max_size
    assert list(after["models"]) == [ECHO.id, ModelId("m", "1")]
    assert after["entries"]["m"]["labels"] == {"canary": "1"}
    assert [one.name for one in after["applications"]] == ["b"]
    left = site.record()
    assert [left[key] for key in edited] == [nonsense] * len(edited)
    records = SqliteRecords(site.folder / "records.db")
    records.write({key: whole[key] for key in edited})
    records.write({RecordKey("model", "m"): whole[RecordKey("model", "m")]})
    records.close()
    async with site.server(ECHO) as core:
        assert in_force(core) == before


async def test_a_setting_that_cannot_be_restored_stays_in_the_record(site, caplog):
    """Out of range for this version, say: left out, told, and there at the next start; a new one replaces it."""
    key, text = RecordKey("setting", "batching.max_size"), '{"value":-3,"instead_of":8}'
    records = SqliteRecords(site.folder / "records.db")
    records.write({key: text, RecordKey("setting", "no.such"): '{"value":1}'})
    records.close()
    for _ in range(2):
        caplog.clear()
        async with site.server(ECHO) as core:
            await core.keep()
        told = [one.what for one in caplog.records if "left out" in one.message]
        assert told == ["setting batching.max_size", "setting no.such"]
    async with site.server(ECHO) as core:
        await core.engine.apply(core.engine.settings.with_changes({"batching.max_size": 16}))
        await core.keep()
    assert json.loads(site.record()[key]) == {"value": 16, "instead_of": 8}


async def test_what_is_said_of_a_model_that_no_start_names_is_told_and_forgotten(site, caplog):
    """One line, and no row that nobody could take away."""
    records = SqliteRecords(site.folder / "records.db")
    entry = {"current": "1", "previous": None, "labels": {}, "shares": {}, "shadow": None}
    records.write({RecordKey("model", "gone"): json.dumps({**entry, "versions": ["1"]})})
    records.close()
    async with site.server(ECHO):
        pass
    told = [one.what for one in caplog.records if "is removed" in one.message]
    assert told == ["model gone"]
    assert RecordKey("model", "gone") not in site.record()
