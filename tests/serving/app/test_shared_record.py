"""Gateways over one record: what one changes the others do, and a change that came too late is refused."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import pathlib
import tempfile

import pytest

from serving.api.clipper import management
from serving.app.bootstrap import build
from serving.deployment.spawner_registry import SpawnerRegistry
from serving.engine.gateway_share import GatewayShare
from serving.errors import ChangeInWork, NotReady, ReplicaStartFailed, StaleRevision
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.state.records import RecordKey, Records, RevisionId, SqliteRecords
from serving.state.redis_records import RedisRecords
from serving.values import ModelId
from tests.fakes.redis_server import running_redis
from tests.fakes.replicas import FakeHome
from tests.serving.app.test_persistence import in_force
from tests.serving.engine.test_repository import put

ECHO = ModelSpec(name="echo", version="1", kind="echo", path=None)


def version(number, **more):
    return ModelSpec(name="m", version=number, kind="echo", path=None, **more)


@pytest.fixture(name="redis")
def _redis():
    with tempfile.TemporaryDirectory() as name, running_redis(pathlib.Path(name)) as running:
        yield running


@pytest.fixture(name="redis_url")
def _redis_url(redis):
    return redis[1]


@pytest.fixture(name="opened", params=["sqlite", "redis"])
def _opened(request, tmp_path):
    """Opens the same record again and again."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else None
    with contextlib.ExitStack() as closed:

        def open_() -> Records:
            made = SqliteRecords(tmp_path / "records.db") if url is None else RedisRecords(url)
            closed.callback(made.close)
            return made

        yield open_


A, B = RecordKey("model", "a"), RecordKey("model", "b", "1")


def test_a_record_has_revisions(opened):
    """Each write makes the next one; one made on an older one is refused and writes nothing."""
    one, other = opened(), opened()
    none = RevisionId(0)
    assert (one.revision(), one.snapshot()) == (none, (none, {}))
    first = one.write({A: "x", B: "ü"}, none)
    assert other.snapshot() == (first, {A: "x", B: "ü"})
    second = other.write({A: None}, first)
    with pytest.raises(StaleRevision, match="now at revision 2"):
        one.write({A: "late"}, first)
    assert one.snapshot() == (second, {B: "ü"})
    third = one.write({A: "y"})
    assert third == other.revision()
    assert list(opened().snapshot().rows) == [B, A]
    fourth = other.write({}, third, 10)
    assert [one.number for one in (first, second, third, fourth)] == [1, 2, 3, 11]


@contextlib.asynccontextmanager
async def gateways(folder, url=None, count=2, specs=(ECHO,), root=None, homes=None):
    """So many gateways over one record, without their watch: they follow when told to."""
    settings = ServingSettings().with_changes({"server.state_store": url, "replica.count": 3})
    async with contextlib.AsyncExitStack() as ends:
        cores = []
        for index in range(count):
            share = GatewayShare(index=index, gateways=count)
            where = folder if url is None else None
            home = FakeHome() if homes is None else homes[index]
            spawners = SpawnerRegistry(lambda home=home: home)
            core = build(specs, settings, spawners, root=root, folder=where, share=share)
            ends.callback(core.close)
            await core.open()
            ends.push_async_callback(core.engine.close)
            cores.append(core)
        yield cores


async def command(core, verb, /, **data):
    async with core.changing():
        path, body = f"/admin/{verb}", json.dumps(data).encode()
        status, text = await management.execute(core.clipper, path, body)
        assert status == 200, text


def seen(core):
    """What is in force, but for the replicas, which are dealt out."""
    return {key: value for key, value in in_force(core).items() if key != "replicas"}


async def deploy(core, *versions):
    async with core.changing():
        for one in versions:
            await core.engine.deploy(one)


async def change_all(one):
    """Everything that management can change."""
    await deploy(one, *(version(number) for number in "123"))
    async with one.changing():
        one.engine.catalogue.set_label("m", "canary", "3")
        one.engine.catalogue.set_current("m", "2")
        one.engine.catalogue.set_shares("m", {"canary": 0.25})
        one.engine.catalogue.set_shadow("m", "1")
    async with one.changing():
        changed = {"batching.max_size": 3, "models.m.replica.count": 5}
        await one.engine.apply(one.engine.settings.with_changes(changed))
    app = {"input_type": "bytes", "default_output": "no", "latency_slo_micros": 50_000}
    await command(one, "add_app", name="a", **app, policy="exp3", options={"learning_rate": 0.2})
    await command(one, "add_app", name="b", **app)
    named = {"model_name": "c", "input_type": "bytes", "container_name": "echo"}
    more = {"labels": ["x"], "model_data_path": "", "batch_size": 4}
    await command(one, "add_model", **named, **more, model_version="9")
    await command(one, "add_model_links", app_name="a", model_names=["c"])


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_what_one_gateway_changes_the_other_does(store, tmp_path, request):
    """Versions, labels, split, shadow, settings, applications, links; and what is taken away again."""
    url = request.getfixturevalue("redis_url") if store == "redis" else None
    async with gateways(tmp_path, url) as (one, other):
        await change_all(one)
        await other.keeper.follow()
        assert seen(other) == seen(one)
        counts = [core.engine.deployments()[-1].placement.ready_count for core in (one, other)]
        assert counts == [3, 2]
        async with other.changing():
            other.engine.catalogue.set_current("m", "1")
            other.engine.catalogue.set_label("m", "canary", None)
            for number in "23":
                await other.engine.withdraw("m", number)
        await command(other, "delete_app", name="a")
        async with other.changing():
            await other.engine.withdraw("echo", "1")
        await one.keeper.follow()
        assert seen(one) == seen(other)
        assert [id_.version for id_ in one.engine.models()] == ["1"]
    async with gateways(tmp_path, url) as (one, other):
        assert seen(one) == seen(other)
        assert [id_.name for id_ in one.engine.models()] == ["m"]


RECORD = ("luthier:records", "luthier:records:revision")


@pytest.mark.parametrize("loss", ["all", "rows", "end", "end, and another comes"])
async def test_what_redis_loses_of_the_record_is_written_again(loss, tmp_path, redis_url):
    """The gateways stay as they are and agree; so does one that comes later, and changes go on."""
    async with gateways(tmp_path, redis_url) as (one, other):
        await deploy(one, dataclasses.replace(ECHO, name="n"))
        client = RedisRecords(redis_url)._client
        past = client.mget(RECORD)
        await change_all(one)
        await other.keeper.follow()
        before = seen(one)
        if loss == "all":
            client.flushall()
        elif loss == "rows":
            client.delete(RECORD[0])
        else:
            client.mset(dict(zip(RECORD, past, strict=True)))
        if loss == "end, and another comes":  # up to the number that the gateways know
            records = RedisRecords(redis_url)
            while records.revision().number < one.keeper.revision:
                records.write({})
            records.close()
        client.close()
        await other.keeper.follow()
        await one.keeper.follow()
        assert seen(one) == seen(other) == before
        await command(other, "delete_app", name="b")
        await deploy(one, version("4"))
        await other.keeper.follow()
        assert seen(one) == seen(other) != before
        assert one.keeper.revision == other.keeper.revision
        async with gateways(tmp_path, redis_url, count=1) as (third,):
            assert third.keeper.in_force() == one.keeper.in_force()


async def test_a_change_of_the_same_is_refused_and_undone(tmp_path):
    """Of two that deploy different versions at a time, the second is refused, and serves the first's."""
    async with gateways(tmp_path) as (one, other):
        with pytest.raises(StaleRevision):
            async with other.changing():  # in work while the other gateway deploys
                await other.engine.deploy(version("2"))
                await deploy(one, version("1"))
        assert seen(other) == seen(one)
        assert [id_.version for id_ in other.engine.models() if id_.name == "m"] == ["1"]


async def test_changes_of_different_things_do_not_meet(tmp_path):
    """A long deployment is not lost to a setting that is changed elsewhere meanwhile."""
    async with gateways(tmp_path) as (one, other):
        async with other.changing():
            await other.engine.deploy(version("1"))
            async with one.changing():
                await one.engine.apply(one.engine.settings.with_changes({"batching.max_size": 3}))
        assert other.engine.settings.batching.max_size == 3
        await one.keeper.follow()
        assert seen(other) == seen(one)


async def test_a_gateway_with_a_change_in_work_follows_with_the_next(tmp_path):
    """A deployment takes its time; what is urgent is sent to each, and is no conflict."""
    async with gateways(tmp_path) as (one, other):
        await deploy(one, version("1"), version("2"))
        await other.keeper.follow()
        async with other.changing():
            async with one.changing():
                one.engine.catalogue.set_current("m", "1")
                await one.engine.apply(one.engine.settings.with_changes({"batching.max_size": 3}))
            await other.keeper.follow()
            assert other.engine.catalogue.entry("m").current == "2"
            async with other.changing():
                other.engine.catalogue.set_current("m", "1")
            assert seen(other) == seen(one)
            await other.engine.deploy(dataclasses.replace(ECHO, name="n"))
        await one.keeper.follow()
        assert seen(other) == seen(one)


async def test_a_change_may_name_the_revision_that_it_is_made_on(tmp_path):
    """Another gateway's change makes it stale before anything is done."""
    async with gateways(tmp_path) as (one, other):
        known = other.keeper.revision
        await deploy(one, version("1"))
        with pytest.raises(StaleRevision):
            async with other.changing(known):
                raise AssertionError("not reached")
        async with other.changing(one.keeper.revision):
            other.engine.catalogue.set_label("m", "canary", "1")


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("first_names_it", [True, False])
async def test_of_two_changes_on_one_revision_the_second_is_refused(
    first_names_it, is_shared, tmp_path
):
    """Also through one gateway at a time, whether the first is written or still in work."""
    async with gateways(tmp_path, count=1) as (one,):
        one.keeper.is_shared = is_shared
        known = one.keeper.revision
        is_begun, may_end = asyncio.Event(), asyncio.Event()

        async def first():
            async with one.changing(known if first_names_it else None):
                is_begun.set()
                await may_end.wait()
                await one.engine.deploy(version("1"))

        async def second():
            async with one.changing(known):
                raise AssertionError("not reached")

        changing = asyncio.create_task(first())
        await is_begun.wait()
        with pytest.raises(ChangeInWork, match="send the change again"):
            await second()
        may_end.set()
        refused = 0
        while not changing.done():
            with pytest.raises((ChangeInWork, StaleRevision)):
                await second()
            refused += 1
            await asyncio.sleep(0)
        await changing
        with pytest.raises(StaleRevision):
            await second()
        assert refused
        assert one.keeper.revision == known + 1


async def test_a_change_in_work_is_refused_with_one_that_is_undone(tmp_path):
    """It was undone in part with it: the client of each is told, and neither is in force."""
    async with gateways(tmp_path) as (one, other):
        with pytest.raises(StaleRevision):
            async with other.changing():
                await other.engine.deploy(version("3"))
                with pytest.raises(StaleRevision):
                    async with other.changing():
                        await other.engine.deploy(version("2"))
                        await deploy(one, version("1"))
                other.engine.catalogue.set_label("m", "canary", "1")
        assert seen(other) == seen(one)
        assert [id_.version for id_ in other.engine.models() if id_.name == "m"] == ["1"]


async def test_a_version_that_cannot_be_loaded_here_stays_recorded(tmp_path):
    """It is listed as failed, and the record keeps it for the others."""
    async with gateways(tmp_path) as (one, other):
        await deploy(one, version("1"))
        rows = one.keeper.in_force()
        row = json.loads(rows[RecordKey("version", "m", "1")])
        row["card"] |= {"version": "2", "kind": "mlflow"}  # for the command line only
        records = SqliteRecords(tmp_path / "records.db")
        records.write({RecordKey("version", "m", "2"): json.dumps(row)})
        await other.keeper.follow()
        assert [id_.version for id_ in other.engine.models() if id_.name == "m"] == ["1"]
        async with other.changing():
            other.engine.catalogue.set_label("m", "canary", "1")
        assert RecordKey("version", "m", "2") in records.load()
        records.close()


class BrokenHome(FakeHome):
    """A home where replicas may not start, by an error or by a fault of the program."""

    error = None

    async def start(self, *words, **more):
        if self.error is not None:
            raise self.error
        return await super().start(*words, **more)


@pytest.mark.parametrize("error", [ReplicaStartFailed("oom", "no memory"), ZeroDivisionError()])
async def test_what_one_gateway_cannot_do_stays_recorded(error, tmp_path):
    """Its own changes do not take back the others': replicas, a version in the place of another."""
    homes = (FakeHome(), BrokenHome())
    async with gateways(tmp_path, homes=homes) as (one, other):
        await deploy(one, version("1"))
        await other.keeper.follow()
        homes[1].error = error
        async with one.changing():
            await one.engine.apply(one.engine.settings.with_changes({"replica.count": 6}))
        await deploy(one, version("2"))
        async with one.changing():
            await one.engine.withdraw("m", "1")
        app = {"input_type": "bytes", "default_output": "no", "latency_slo_micros": 50_000}
        await command(one, "add_app", name="a", **app)
        await other.keeper.follow()
        assert other.engine.settings.replica.count == 3
        assert ModelId("m", "1") in other.engine.models()
        assert [app.name for app in other.applications.all()] == ["a"]
        before = seen(one)
        async with other.changing():
            await other.engine.apply(other.engine.settings.with_changes({"batching.max_size": 3}))
        await command(other, "add_app", name="b", **app)
        await one.keeper.follow()
        assert one.engine.settings.batching.max_size == 3
        assert one.engine.settings.replica.count == 6
        assert seen(one)["entries"] == before["entries"]
        assert [app.name for app in one.applications.all()] == ["a", "b"]
        homes[1].error = None
        async with one.changing():
            await one.engine.apply(one.engine.settings.with_changes({"batching.max_size": 4}))
            await one.engine.redeploy(version("2", description="better"))
        await other.keeper.follow()
        assert seen(other) == seen(one)


class HookedHome(FakeHome):
    """A home that calls a function whenever a replica starts."""

    def __init__(self):
        super().__init__()
        self.starting = lambda: None

    async def start(self, *words, **more):
        self.starting()
        return await super().start(*words, **more)


async def test_a_change_in_work_is_refused_if_the_same_is_followed_meanwhile(tmp_path):
    """It would be in force on one gateway and not in the record, and nobody would be told."""
    homes = (FakeHome(), HookedHome())
    async with gateways(tmp_path, homes=homes) as (one, other):
        await deploy(one, version("1"))
        await other.keeper.follow()
        labels = other.engine.catalogue
        with pytest.raises(StaleRevision):
            async with other.changing():
                async with one.changing():
                    one.engine.catalogue.set_label("m", "canary", "1")
                    await one.engine.deploy(dataclasses.replace(ECHO, name="n"))
                homes[1].starting = lambda: labels.set_label("m", "late", "1")
                settings = other.engine.settings.with_changes({"batching.max_size": 3})
                async with other.changing():  # meets what the other gateway has written
                    await other.engine.apply(settings)
        assert labels.entry("m").labels == {"canary": "1"}
        await one.keeper.follow()
        assert seen(one) == seen(other)


async def test_what_one_gateway_cannot_do_may_be_changed_there(tmp_path):
    """Then the change holds for all, also when it returns to what was in force before."""
    homes = (FakeHome(), BrokenHome())
    async with gateways(tmp_path, homes=homes) as (one, other):
        homes[1].error = ReplicaStartFailed("oom", "no memory")
        async with one.changing():
            await one.engine.apply(one.engine.settings.with_changes({"replica.count": 6}))
        await other.keeper.follow()
        for count in (2, 3):
            async with other.changing():
                await other.engine.apply(
                    other.engine.settings.with_changes({"replica.count": count})
                )
            await one.keeper.follow()
            assert one.engine.settings.replica.count == count


async def test_a_change_without_the_record_is_not_made(tmp_path, redis):
    """While Redis is away the server goes on as it is."""
    process, url = redis
    async with gateways(tmp_path, url) as (one, _):
        before = seen(one)
        with pytest.raises(NotReady, match=r"is undone, because .* cannot be read"):
            async with one.changing():
                await one.engine.deploy(version("1"))
                await one.engine.apply(one.engine.settings.with_changes({"batching.max_size": 3}))
                await one.engine.withdraw("echo", "1")
                process.kill()
                process.wait(10)
        assert seen(one) == before
        with pytest.raises(NotReady, match="cannot be read"):
            await deploy(one, version("1"))
        assert seen(one) == before


@pytest.mark.parametrize(("count", "replicas"), [*itertools.product((1, 2, 3, 8), (1, 2, 7, 16))])
def test_replicas_are_dealt_out(count, replicas):
    """All of them, as evenly as can be, and at least one to each gateway."""
    shares = [GatewayShare(index=index, gateways=count) for index in range(count)]
    settings = ServingSettings().with_changes(
        {"replica.count": replicas, "models.m.replica.count": replicas}
    )
    parts = [share.of(settings).replica.count for share in shares]
    assert sum(parts) == max(replicas, count)
    assert max(parts) - min(parts) <= 1
    assert parts == [share.of(settings).of("m").replica.count for share in shares]


async def test_gateways_over_one_repository_are_never_without_the_model(tmp_path):
    """Whoever sees a new version first: the other one keeps the old one until it has loaded it, too."""
    root = tmp_path / "models"
    put(root, "m", "1")
    async with gateways(tmp_path, root=root, specs=()) as (one, other):
        put(root, "m", "2")
        while not await one.repository.reconcile():
            pass
        await one.keep()
        assert one.engine.models() == (ModelId("m", "2"),)
        await other.keeper.follow()
        assert len(other.engine.models()) >= 1
        while other.engine.models() != one.engine.models():
            await other.repository.reconcile()
        await other.keep()
        await one.keeper.follow()
        assert seen(other) == seen(one)
        await one.repository.unload("m")
        await one.keep()
        await other.keeper.follow()
        assert other.engine.models() == ()
        assert not await other.repository.reconcile()
        assert other.engine.models() == ()


async def test_the_watch_follows(tmp_path):
    """Within two seconds, without a request."""
    async with gateways(tmp_path) as (one, other):
        watch = asyncio.create_task(other.keeper.watch())
        await deploy(one, version("1"))
        async with asyncio.timeout(2.0):
            while len(other.engine.models()) < 2:
                await asyncio.sleep(0.02)
        watch.cancel()
