"""Several models and versions behind one gateway, switched under load."""

import asyncio
import concurrent.futures
import contextlib
import json
import threading
import time

import pytest

from serving import wire
from serving.errors import InvalidRequest, ModelLoadFailed, UnknownModel
from serving.model_spec import ModelSpec
from serving.values import Tensor
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway, retired


def card(name="echo", version="2"):
    return ModelSpec(name=name, version=version, kind="echo", path=None)


def body(value=1):
    return json.dumps(
        {"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [value]}]}
    )


def infer(running, path="/v2/models/echo"):
    """Status and the version that answered."""
    status, _, answer = running.request("POST", f"{path}/infer", body())
    return status, json.loads(answer).get("model_version")


def deploy(running, card, **more):
    running.call(running.engine.deploy(card, **more))


class Asked:
    """One item as a query of 1 s, and its waiter."""

    def __init__(self):
        tensor = Tensor("data", "UINT8", (1, 1), b"x")
        self.frame = (wire.encode_descriptor([tensor]), b"x")
        self.frame_bytes = sum(map(len, self.frame))
        self.encoding = wire.Encoding.TENSORS
        self.items, self.priority, self.timeout_s = 1, 0, 1.0
        self.done = asyncio.get_running_loop().create_future()

    def on_result(self, _frame):
        self.done.set_result(None)

    def on_error(self, error):
        self.done.set_result(error)


async def ask_at_once(running, count):
    """So many queries in one turn of the loop; returns when each is answered or refused."""
    (served,) = running.engine.deployments()
    queries = [Asked() for _ in range(count)]
    for query in queries:
        served.submit(query, query)
    await asyncio.gather(*(query.done for query in queries))


def test_two_models_answer_for_themselves():
    """Each under its name, with settings of its own."""
    with gateway({"models.other.batching.max_size": 3}) as running:
        deploy(running, card("other", "1"))
        assert running.json("POST", "/v2/models/other/infer", json.loads(body()))[0] == 200
        assert infer(running) == (200, "1")
        sizes = {
            one.id.name: one.settings.batching.max_size for one in running.engine.deployments()
        }
        assert sizes == {"echo": 8, "other": 3}
        status, shown = running.json("GET", "/admin/settings", admin=True)
        assert [model["name"] for model in shown["models"]] == ["echo", "other"]
        assert shown["settings"]["models"] == {"other": {"batching": {"max_size": 3}}}
        patch = {"settings": {"models.echo.batching.max_size": 5}}
        status, _ = running.json("PATCH", "/admin/settings", patch, admin=True)
        assert status == 200
        sizes = {
            one.id.name: one.settings.batching.max_size for one in running.engine.deployments()
        }
        assert sizes == {"echo": 5, "other": 3}


def test_versions_labels_and_roll_back():
    """A new version takes over; the old one answers by its number, and again after a roll-back."""
    with gateway() as running:
        deploy(running, card())
        assert infer(running) == (200, "2")
        assert infer(running, "/v2/models/echo/versions/1") == (200, "1")
        assert infer(running, "/v2/models/echo/versions/stable") == (200, "2")
        assert running.do(running.engine.catalogue.roll_back, "echo") == "1"
        assert infer(running) == (200, "1")
        running.do(running.engine.catalogue.set_label, "echo", "canary", "2")
        assert infer(running, "/v2/models/echo/versions/canary") == (200, "2")
        metadata = running.json("GET", "/v2/models/echo")[1]
        assert metadata["versions"] == ["1", "2"]
        with pytest.raises(InvalidRequest, match="already"):
            deploy(running, card())


def test_a_failed_load_leaves_the_old_version_serving():
    """The new one is listed as failed, with the reason; nothing of it stays."""
    home = FakeHome()
    with gateway(home=home) as running:
        home.load_error = "no such layer"
        with pytest.raises(ModelLoadFailed):
            deploy(running, card())
        assert infer(running) == (200, "1")
        states = running.do(running.engine.states)
        assert states[card().id][0] == "failed"
        assert "no such layer" in states[card().id][1]
        assert [replica.ended.done() for replica in home.replicas] == [False, True]
        home.load_error = None
        deploy(running, card())
        assert infer(running) == (200, "2")
        assert running.do(running.engine.states)[card().id] == ("ready", "")


def test_no_request_fails_while_versions_are_switched_and_retired():
    """Under load: deploy, switch, roll back, retire; every answer is a 200."""
    with gateway({"replica.count": 2}) as running:
        stop = threading.Event()

        def ask():
            seen = []
            while not stop.is_set():
                seen.append(infer(running))
            return seen

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            try:
                for version in ("2", "3", "4"):
                    deploy(running, card(version=version))
                    running.do(running.engine.catalogue.roll_back, "echo")
                    running.do(running.engine.catalogue.set_current, "echo", version)
                    old = str(int(version) - 1)
                    running.call(retired(running.engine, "echo", old, within_s=5.0))
            finally:
                stop.set()
            seen = [answer for one in asking for answer in one.result(20)]
        assert {status for status, _ in seen} == {200}
        assert {version for _, version in seen} >= {"1", "4"}
        assert running.do(running.engine.versions, "echo") == ("4",)


def test_how_a_version_was_warmed_up_is_shown():
    """What the replica says of its load stands beside the version's state; what it does not say is left out."""
    home = FakeHome()
    home.load_detail = {"load_s": 0.5, "warmup": {"source": "zeros", "batch_s": {"1": 0.1}}}
    with gateway({"replica.count": 2, "batching.max_size": 16}, home) as running:
        one = running.json("GET", "/admin/models/echo", admin=True)[1]["versions"]["1"]
        assert one == {"state": "ready", **home.load_detail}
        assert [load.max_items for load in home.loads] == [16, 16]
        assert [load.warmup_s for load in home.loads] == [2.0, 2.0]
        home.load_detail = {"load_s": "soon", "warmup": []}
        deploy(running, card())
        two = running.json("GET", "/admin/models/echo", admin=True)[1]["versions"]["2"]
        assert two == {"state": "ready"}


@pytest.mark.parametrize(
    ("warmup", "first"),
    [
        ({"source": "file", "batch_s": {"1": 0.5, "8": 2.0}}, 3),
        ({"source": "model", "batch_s": {"1": 0.5, "8": 2.0}}, 3),
        ({"source": "zeros", "batch_s": {"1": 0.5, "8": 2.0}}, 8),
        ({"source": "file", "batch_s": {"1": 0.5, "8": 2.0}, "failure": "no"}, 8),
        ({"source": "file", "batch_s": {"0": 1.0, "-1": 1.0, "x": 1.0, "8": "long", "4": -1.0}}, 8),
        ({"source": ["file"], "batch_s": [1, 2]}, 8),
    ],
)
def test_the_first_batch_is_as_large_as_the_warm_up_says(warmup, first):
    """Where it ran on real inputs: 1 s is enough for three items; also after a change of settings."""
    home = FakeHome()
    home.load_detail = {"load_s": 0.5, "warmup": warmup}
    with gateway({"batching.max_size": 8}, home) as running:
        for changes in ({}, {"scheduling.queue_capacity": 99}):
            changed = running.engine.settings.with_changes(changes)
            running.call(running.engine.apply(changed))
            batches = home.replicas[0].batches
            batches.clear()
            running.call(ask_at_once(running, 8))
            assert batches[0] == first


def test_a_replacement_is_warmed_up_with_single_items():
    """It is waited for, and a large batch may be what ended the other one."""
    home = FakeHome()
    with gateway({"models.echo.replica.warmup_s": 0.5}, home):
        home.replicas[0].die()
        end_s = time.monotonic() + 5
        while len(home.loads) < 2 and time.monotonic() < end_s:
            time.sleep(0.005)
        assert [(load.max_items, load.warmup_s) for load in home.loads] == [(8, 0.5), (1, 0.5)]


def test_a_split_and_a_shadow_share_the_traffic():
    """Shares by chance; a shadow gets copies that nobody sees."""
    with gateway() as running:
        deploy(running, card(), current=False)
        running.do(running.engine.catalogue.set_shares, "echo", {"2": 0.5})
        seen = [infer(running)[1] for _ in range(60)]
        assert 5 < seen.count("2") < 55
        running.do(running.engine.catalogue.set_shares, "echo", {})
        running.do(running.engine.catalogue.set_shadow, "echo", "2")
        two = next(one for one in running.engine.deployments() if one.id.version == "2")
        before = sum(two.counters.responses.values())
        assert [infer(running) for _ in range(5)] == [(200, "1")] * 5
        running.call(two.drain(5.0))
        assert sum(two.counters.responses.values()) == before + 5


@contextlib.contextmanager
def held(values=None):
    """A gateway whose one version holds a request; gives it, its home, and the request's answer to come."""
    home = FakeHome()
    home.hold.set()
    with gateway(values, home) as running, concurrent.futures.ThreadPoolExecutor() as threads:
        replica = home.replicas[0]
        asked = threads.submit(infer, running)
        while not replica.batches:
            time.sleep(0.001)
        home.hold.clear()  # the other versions answer at once
        try:
            yield running, home, asked
        finally:
            home.release.set()


def test_a_retirement_that_is_broken_off_goes_on_by_itself():
    """Whoever still waits is answered, and then its replicas end."""
    with held() as (running, home, asked):

        async def break_off():
            retiring = asyncio.create_task(retired(running.engine, "echo", "1", within_s=30.0))
            await asyncio.sleep(0.02)
            retiring.cancel()
            await asyncio.wait([retiring])

        running.call(break_off())
        assert running.do(lambda: running.engine.inflight_count) == 1
        home.release.set()
        assert asked.result(10) == (200, "1")
        end_s = time.monotonic() + 5.0
        while not home.replicas[0].ended.done() and time.monotonic() < end_s:
            time.sleep(0.005)
        assert home.replicas[0].ended.done()


def test_a_server_that_ends_does_not_wait_for_a_retirement():
    """Whoever still waits is refused, and nothing is left, also of a retirement that had no time to begin."""
    with held() as (running, home, asked):
        deploy(running, card())
        deploy(running, card(version="3"))

        async def end():
            await running.engine.withdraw("echo", "1", within_s=30.0)
            await asyncio.sleep(0.02)
            await running.engine.withdraw("echo", "2", within_s=30.0)
            await running.engine.close()

        running.call(end(), 5.0)
        assert asked.result(10)[0] == 503
        assert all(replica.ended.done() for replica in home.replicas)


def test_a_retirement_holds_up_no_other_change():
    """While a version answers what it has taken: deploy, switch, roll back, settings, another retirement."""
    with held() as (running, home, asked):
        engine = running.engine
        deploy(running, card())
        retiring = asyncio.run_coroutine_threadsafe(
            retired(engine, "echo", "1", within_s=30.0), running.loop
        )
        deploy(running, card(version="3"))
        assert infer(running) == (200, "3")
        assert running.do(engine.catalogue.roll_back, "echo") == "2"
        changed = engine.settings.with_changes({"batching.max_size": 5})
        running.call(engine.apply(changed, keep_learned=True))
        running.call(retired(engine, "echo", "3", within_s=5.0))
        deploy(running, card(version="1"))  # its name is free again
        assert infer(running) == (200, "1")
        assert not retiring.done()
        home.release.set()
        assert asked.result(10) == (200, "1")
        retiring.result(5.0)


def test_changes_from_all_sides_lose_no_request():
    """Three hands deploy, switch, roll back and retire at once under load; every answer is a 200."""
    home = FakeHome()
    home.exec_s = 0.002
    with gateway({"replica.count": 2}, home) as running:
        stop = threading.Event()

        def ask():
            seen = []
            while not stop.is_set():
                seen.append(infer(running)[0])
            return seen

        def change(hand):
            for number in range(8):
                version = f"{hand}{number}"
                deploy(running, card(version=version))
                with contextlib.suppress(InvalidRequest):
                    running.do(running.engine.catalogue.roll_back, "echo")
                running.do(running.engine.catalogue.set_current, "echo", "1")
                running.call(retired(running.engine, "echo", version, within_s=5.0))

        with concurrent.futures.ThreadPoolExecutor(7) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            try:
                for changing in [pool.submit(change, hand) for hand in "abc"]:
                    changing.result(20)
            finally:
                stop.set()
            seen = [status for one in asking for status in one.result(20)]
        assert set(seen) == {200}
        assert running.do(running.engine.versions, "echo") == ("1",)
        assert sum(not replica.ended.done() for replica in home.replicas) == 2


def test_what_is_gone_is_unknown():
    """A retired model answers 404, and is counted as meaning no model."""
    with gateway() as running:
        deploy(running, card("other", "1"))
        running.call(retired(running.engine, "other", "1", within_s=1.0))
        assert running.request("POST", "/v2/models/other/infer", body())[0] == 404
        assert running.do(lambda: running.engine.unknown_model_responses) == {404: 1}
        with pytest.raises(UnknownModel):
            running.call(retired(running.engine, "other", "1", within_s=1.0))


def test_settings_that_one_model_cannot_have_are_put_back_for_the_others():
    """All or none: the first model has its old settings again."""
    home = FakeHome()
    with gateway(home=home) as running:
        deploy(running, card("other", "1"))
        home.load_error = "not with these"
        values = {"settings": {"batching.max_size": 5, "models.other.replica.count": 2}}
        status, _ = running.json("PATCH", "/admin/settings", values, admin=True)
        assert status == 409
        assert [one.settings.batching.max_size for one in running.engine.deployments()] == [8, 8]
        assert running.engine.generation == 1
        assert infer(running) == (200, "1")


def test_what_cannot_be_put_back_is_told_until_a_change_succeeds():
    """A load fails on the way there, for one model, and on the way back, for the other."""
    home = FakeHome()
    gauge = b"luthier_settings_out_of_sync "
    with gateway({"replica.count": 2}, home) as running:
        deploy(running, card("other", "1"))

        def patch_settings(values):
            body = {"settings": values}
            return running.json("PATCH", "/admin/settings", body, admin=True)[0]

        def told():
            metrics = running.request("GET", "/metrics", admin=True)[2]
            (value,) = [
                line[len(gauge) :] for line in metrics.splitlines() if line.startswith(gauge)
            ]
            shown = running.json("GET", "/admin/settings", admin=True)[1]
            assert shown["settings"]["replica"]["count"] == 2
            return shown.get("out_of_sync"), float(value)

        assert told() == (None, 0)
        home.load_error = "not with these"
        assert patch_settings({"replica.count": 1, "models.other.replica.count": 3}) == 409
        assert told() == ([{"name": "echo", "version": "1"}], 1)
        assert patch_settings({"models.other.replica.count": 4}) == 409
        assert told() == ([{"name": "echo", "version": "1"}], 1)
        home.load_error = None
        assert patch_settings({}) == 200
        assert told() == (None, 0)
        assert sum(not replica.ended.done() for replica in home.replicas) == 4


def test_with_the_last_version_of_a_model_go_its_settings():
    """Those that were set live, not those of the start; other models keep theirs."""
    start = {"models.m.replica.count": 2}
    with gateway(start) as running:
        live = {"models.m.replica.count": 1, "models.m.batching.max_size": 3}
        live["models.echo.batching.max_size"] = 5
        assert running.json("PATCH", "/admin/settings", {"settings": live}, admin=True)[0] == 200
        for version in ("1", "2"):
            deploy(running, card("m", version))
        own = [running.engine.settings.of("m").batching.max_size]
        for version in ("1", "2"):
            path = f"/admin/models/m/versions/{version}"
            assert running.json("DELETE", path, admin=True)[0] == 200
            own.append(running.engine.settings.of("m").batching.max_size)
        assert own == [3, 3, 8]
        assert running.engine.settings.models == {
            "m": {"replica.count": 2},
            "echo": {"batching.max_size": 5},
        }
