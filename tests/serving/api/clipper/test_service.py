"""Clipper's management over a real gateway: registered versions, and the replicas that run them."""

import asyncio
import dataclasses
import json

import aiohttp
import pytest
from aiohttp import web

from serving.api.admin.routes import AdminRoutes
from serving.api.clipper.management import execute
from serving.api.clipper.service import ClipperService
from serving.engine.applications import Applications
from serving.selection.stores.state_store import MemoryStore
from serving.values import ModelId
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway
from tests.serving.test_versions import Asked

APP = {"input_type": "bytes", "default_output": "none", "latency_slo_micros": 100_000}


class Management:
    """Commands to a hub over a gateway."""

    def __init__(self, running):
        self.running = running
        engine = running.engine
        self.hub = running.do(lambda: ClipperService(engine, Applications(engine, MemoryStore())))

    def __call__(self, command, **data):
        """Status and text of a command."""
        path, body = f"/admin/{command}", json.dumps(data).encode()
        return self.running.call(execute(self.hub, path, body))

    def told(self, command, **data):
        """The JSON of a command that succeeds."""
        status, text = self(command, **data)
        assert status == 200, text
        return json.loads(text)


@pytest.fixture(name="home")
def _home():
    return FakeHome()


@pytest.fixture(name="manage")
def _manage(home):
    with gateway(home=home) as running:
        yield Management(running)


def model(version, **more):
    return {
        "model_name": "m",
        "model_version": version,
        "labels": [],
        "input_type": "bytes",
        "container_name": "echo",
        "model_data_path": "",
        "batch_size": -1,
        **more,
    }


def start(version, **more):
    named = {"model_name": "m", "model_version": version, "container_name": "echo"}
    return {**named, "input_type": "bytes", **more}


def test_versions_are_deployed_rolled_back_and_stopped(manage):
    """The newest registered version answers once it runs; an older one is set again; replicas are counted."""
    assert manage("start_containers", **start("1", num_replicas=2))[0] == 200
    assert manage("add_model", **model("1"))[0] == 200
    assert manage.told("get_num_replicas", model_name="m", model_version="1") == 2
    assert manage("start_containers", **start("2", num_replicas=2))[0] == 200
    assert manage.running.engine.catalogue.entry("m").current == "1", (
        "not current before it is registered"
    )
    assert manage("add_model", **model("2"))[0] == 200
    assert manage.running.engine.catalogue.entry("m").current == "2"
    assert manage.told("get_all_containers", verbose=False) == ["m:1:0", "m:1:1", "m:2:0", "m:2:1"]
    manage("set_model_version", model_name="m", model_version="1")
    assert manage.running.engine.catalogue.entry("m").current == "1"
    assert manage("set_num_replicas", model_name="m", model_version="1", num_replicas=1)[0] == 200
    assert manage.told("get_num_replicas", model_name="m", model_version="1") == 1
    assert manage("stop_containers", models={"m": ["1", "9"]})[0] == 200
    assert manage.running.engine.catalogue.entry("m").current == "2"
    assert manage.told("get_num_replicas", model_name="m", model_version="1") == 0


def test_a_registered_version_without_replicas_leaves_the_old_one_answering(manage):
    """It becomes current when it runs."""
    manage("start_containers", **start("1"))
    manage("add_model", **model("1"))
    manage("add_model", **model("2"))
    assert manage.hub.current_versions()["m"] == "2"
    assert manage.running.engine.catalogue.entry("m").current == "1"
    manage("start_containers", **start("2"))
    assert manage.running.engine.catalogue.entry("m").current == "2"


def test_batch_sizes_are_settings_of_the_model(manage):
    """-1: found while serving; else fixed."""
    manage("start_containers", **start("1", batch_size=4))
    settings = manage.running.engine.settings.of("m")
    assert (settings.batching.policy, settings.batching.max_size) == ("fixed", 4)
    manage("stop_containers", models={"m": ["1"]})
    manage("start_containers", **start("1"))
    assert manage.running.engine.settings.of("m").batching.policy == "aimd"
    assert manage.running.engine.settings.of("echo").batching.policy == "fixed"


def test_a_model_that_is_stopped_leaves_no_settings(manage, home):
    """Nor does one that cannot be loaded; what others set, and what the start gave, stays."""
    engine = manage.running.engine
    manage("start_containers", **start("1", num_replicas=2, batch_size=4))
    manage("start_containers", **start("2", num_replicas=2, batch_size=4))
    manage("stop_containers", models={"m": ["1"]})
    assert engine.settings.models["m"]["replica.count"] == 2, "another version has them"
    manage("set_num_replicas", model_name="m", model_version="2", num_replicas=0)
    assert engine.settings.models == {}
    home.load_error = "no such layer"
    assert manage("start_containers", **start("1"))[0] == 400
    assert engine.settings.models == {}
    home.load_error = None
    given = {"models.m.replica.count": 3, "models.m.cache.capacity_mb": 1}
    manage.running.call(engine.apply(engine.settings.with_changes(given)))
    manage = Management(manage.running)
    manage("start_containers", **start("1", num_replicas=1))
    assert engine.settings.models["m"]["replica.count"] == 1
    manage("stop_containers", models={"m": ["1"]})
    assert engine.settings.models["m"] == {"replica.count": 3, "cache.capacity_mb": 1}


@pytest.mark.parametrize(
    "given",
    [
        {"costs": {"m": 10**400}},
        {"task": {"scale": 10**400}},
        {"task": {"tolerance": -(10**400)}},
        {"confidence_threshold": 10**400},
        {"policy": "exp3", "options": {"gamma": 10**400}},
        {"policy": "split", "options": {"shares": {"m": 10**400}}},
        {"latency_slo_micros": 10**400},
    ],
)
def test_numbers_that_no_float_holds_are_refused(manage, given):
    """JSON has whole numbers of any length; 400 and one short line."""
    status, text = manage("add_app", name="s", **{**APP, "policy": "exp4", **given})
    assert (status, "\n" in text, len(text) < 500) == (400, False, True), text


def test_what_cannot_be_is_told_in_one_line(manage, home):
    """Twice the same version, an unknown container, a load that fails: 400, and nothing has changed."""
    manage("start_containers", **start("1"))
    assert manage("start_containers", **start("1")) == (400, "model m:1 is already running")
    status, text = manage("start_containers", **start("2", container_name="ecco"))
    assert (status, "did you mean 'echo'" in text) == (400, True)
    home.load_error = "no such layer"
    status, text = manage("start_containers", **start("2"))
    assert (status, "no such layer" in text) == (400, True)
    status, text = manage("set_num_replicas", model_name="m", model_version="3", num_replicas=1)
    assert (status, "is not known" in text) == (400, True)
    assert manage.running.do(manage.running.engine.versions, "m") == ("1",)


def test_an_application_with_a_policy_shows_what_it_has_learnt(manage):
    """Policies beyond Clipper's one are asked for by name; the state is JSON."""
    app = {
        "name": "a",
        "input_type": "bytes",
        "default_output": "none",
        "latency_slo_micros": 100_000,
    }
    assert manage("add_app", **app)[0] == 200
    manage("start_containers", **start("1"))
    manage("add_model", **model("1"))
    assert manage("add_model_links", app_name="a", model_names=["m"])[0] == 200
    state = manage.told("get_state", app_name="a", uid=0)
    assert state["policy"] == "fixed"
    assert manage("delete_app", name="a")[0] == 200
    assert manage.told("get_all_applications", verbose=False) == []


def test_any_model_that_is_served_can_be_linked(manage):
    """Registered or not; what is not registered takes what its signature says."""
    assert manage("add_app", name="a", **APP, policy="exp4")[0] == 200
    manage("start_containers", **start("1"))
    assert manage("add_model_links", app_name="a", model_names=["echo", "m"])[0] == 200
    assert manage.told("get_linked_models", app_name="a") == ["echo", "m"]
    assert manage("add_app", name="words", **APP | {"input_type": "strings"})[0] == 200
    status, text = manage("add_model_links", app_name="words", model_names=["echo"])
    assert status == 400
    assert text == (
        "Model with name 'echo' has incompatible input_type 'integers or floats or doubles or bytes'. "
        "Requested app to link to has input_type 'strings'."
    )


def test_what_was_registered_says_what_a_model_takes(manage):
    """Clipper's rule: also where the model itself would take it."""
    assert manage("add_app", name="a", **APP | {"input_type": "doubles"})[0] == 200
    manage("start_containers", **start("1"))
    manage("add_model", **model("1"))
    status, text = manage("add_model_links", app_name="a", model_names=["m"])
    assert (status, "incompatible input_type 'bytes'." in text) == (400, True)


SELECTION = {
    "policy": "exp4",
    "options": {"vote": "majority"},
    "costs": {"m": 0.1},
    "task": {"labels": ["bag", "shoe"]},
    "contexts": "user",
    "most_users": 50,
    "confidence_threshold": 0.5,
    "suspicious_threshold": 0.2,
}


def test_all_of_a_selection_can_be_set(manage):
    """What an application knows beyond Clipper's: nothing of it is only for who writes Python."""
    assert manage("add_app", name="s", **APP, **SELECTION)[0] == 200
    made = manage.running.do(manage.hub.applications.application, "s")
    assert {name: dataclasses.asdict(made)[name] for name in SELECTION if name != "task"} == {
        name: value for name, value in SELECTION.items() if name != "task"
    }
    assert made.task.labels == ("bag", "shoe")
    assert manage("delete_app", name="s")[0] == 200


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": 1}, "policy = 1, expected a string"),
        ({"policy": "exp5"}, "policy 'exp5' is not known"),
        ({"options": []}, "options = [], expected an object"),
        ({"policy": "exp3", "costs": 3}, "costs = 3, expected an object"),
        ({"policy": "exp3", "costs": {"m": "a"}}, "expected an object of model names and numbers"),
        ({"task": 1}, "task = 1, expected an object"),
        ({"task": {"labels": "ab"}}, "task.labels = 'ab', expected a list of names"),
        ({"task": {"labels": [[]]}}, "task.labels = [[]], expected a list of names"),
        ({"task": {"scale": "a"}}, "task.scale = 'a', expected a number"),
        ({"task": {"output": 1}}, "task.output = 1, expected a name"),
        ({"task": {"kind": []}}, "task.kind = []"),
        ({"task": {"size": 1}}, "task.size is not known"),
        ({"contexts": "all"}, "contexts = 'all', expected shared or user"),
        ({"confidence_threshold": "high"}, "confidence_threshold = 'high', expected a number"),
        ({"suspicious_threshold": 2}, "suspicious_threshold = 2, expected 0 to 1"),
    ],
)
def test_what_is_wrong_with_a_selection_is_said_in_one_line(manage, given, message):
    """400, and no application."""
    status, text = manage("add_app", name="s", **APP, **given)
    assert (status, message in text, "\n" in text) == (400, True, False), text
    assert manage.running.do(manage.hub.applications.application, "s") is None


def test_a_version_that_drains_holds_up_no_other_change(manage, home):
    """`stop_containers` returns when what it holds is answered; settings change meanwhile."""
    running, engine = manage.running, manage.running.engine
    manage("start_containers", **start("1"))
    home.hold.set()

    async def work():
        routes = AdminRoutes(engine, clipper=manage.hub, metrics=list)
        runner = web.AppRunner(routes.application())
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        query = Asked()
        engine.resolve("m", "1").submit(query, query)
        while not any(replica.batches for replica in home.replicas):
            await asyncio.sleep(0.005)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/admin/"
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(5)) as session:
            body = json.dumps({"models": {"m": ["1"]}})
            stopping = asyncio.create_task(session.post("stop_containers", data=body))
            while ModelId("m", "1") in engine.models():
                await asyncio.sleep(0.005)
            body = json.dumps({"settings": {"cache.capacity_mb": 3}})
            changed = await session.patch("settings", data=body)
            assert (changed.status, stopping.done()) == (200, False)
            home.release.set()
            assert (await stopping).status == 200
        assert await query.done is None
        await runner.cleanup()

    running.call(work())
