"""The engine over real sockets and small replicas: live settings, replicas that die, the cache, metrics."""

import asyncio
import concurrent.futures
import json
import threading
import time

import pytest

from serving.values import Signature
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway

INFER = "/v2/models/echo/infer"


def body(value=1):
    return json.dumps(
        {"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [value]}]}
    )


def until(condition, seconds=5.0):
    """Wait until a condition holds; returns whether it did."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.005)
    return False


def patch(running, settings, **more):
    return running.json("PATCH", "/admin/settings", {"settings": settings, **more}, admin=True)


def states(running):
    replicas = running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]
    return sorted(replica["state"] for replica in replicas)


class SlowHome(FakeHome):
    """A home whose starts wait for `go` once `waits` is set."""

    def __init__(self):
        super().__init__()
        self.waits = False
        self.starts = 0
        self.go = threading.Event()

    async def start(self, worker, **wanted):
        self.starts += 1
        while self.waits and not self.go.is_set():
            await asyncio.sleep(0.005)
        return await super().start(worker, **wanted)


def test_settings_are_shown_and_changed():
    """GET shows what is in force with its generation; PATCH changes it and counts on."""
    with gateway() as running:
        status, shown = running.json("GET", "/admin/settings", admin=True)
        assert status == 200
        assert shown["generation"] == 1
        assert shown["settings"]["batching"]["max_size"] == 8
        assert shown["models"][0]["name"] == "echo"
        status, applied = patch(running, {"batching.max_size": 3, "replica": {"count": 3}})
        assert status == 200
        assert applied["generation"] == 2
        assert applied["settings"]["batching"]["max_size"] == 3
        assert states(running) == ["ready"] * 3
        assert applied["warnings"] == []
        assert patch(running, {"replica.count": 1})[0] == 200
        assert states(running) == ["ready"]


def test_settings_of_a_model_that_is_not_there_are_told_of():
    """It may come later, or be misspelt."""
    with gateway() as running:
        status, applied = patch(running, {"models.ecco.replica.count": 2})
        assert status == 200
        (note,) = applied["warnings"]
        assert note.startswith("models.ecco: no such model is served, did you mean 'echo'?")


@pytest.mark.parametrize(
    ("phrase", "data"),
    [
        ("did you mean 'batching.max_size'", {"settings": {"batching.maxsize": 1}}),
        ("expected a whole number from 1", {"settings": {"batching.max_size": 0}}),
        ("cannot change while the server runs", {"settings": {"server.port": 1}}),
        ("expected {", {"batching.max_size": 1}),
        ("booleans", {"settings": {}, "restart_replicas": 1}),
    ],
)
def test_wrong_settings_change_nothing(phrase, data):
    """A wrong PATCH is refused with what was expected, and the generation stays."""
    with gateway() as running:
        status, answer = running.json("PATCH", "/admin/settings", data, admin=True)
        assert status == 400
        assert phrase in answer["error"]
        assert running.json("GET", "/admin/settings", admin=True)[1]["generation"] == 1


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"settings": {"batching.max_size": %s}}' % ("9" * 400)]
)
def test_a_wrong_body_is_answered_in_one_short_line(text):
    """However deep it is nested, and whatever number it holds."""
    with gateway() as running:
        status, _, answer = running.request("PATCH", "/admin/settings", text, admin=True)
        assert (status, len(answer) < 400) == (400, True), answer
        assert "\n" not in json.loads(answer)["error"]


def test_pages_in_a_browser_change_nothing():
    """A page of any site can reach this machine's ports through its reader's browser."""
    body_, page = (
        json.dumps({"settings": {"batching.max_size": 3}}),
        {"Origin": "https://a.example"},
    )
    with gateway() as running:
        for headers, status in ((page, 403), ({}, 200)):
            answer = running.request("PATCH", "/admin/settings", body_, headers, admin=True)
            assert answer[0] == status
        assert running.request("GET", "/admin/settings", headers=page, admin=True)[0] == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [("localhost", 200), ("127.0.0.1:8002", 200), ("[::1]:8002", 200), ("evil.example", 403),
     ("evil.example:8002", 403), ("127.0.0.1.evil.example", 403), ("10.0.0.1", 403), ("", 403)],
)  # fmt: skip
def test_pages_that_claim_to_be_this_machine_read_nothing(host, status):
    """After DNS rebinding a page's requests are of its own origin; the name that they ask for tells of it."""
    with gateway() as running:
        for method, path in (
            ("GET", "/admin/settings"),
            ("GET", "/metrics"),
            ("PATCH", "/admin/settings"),
        ):
            answer = running.request(method, path, b"{}", {"Host": host}, admin=True)
            assert answer[0] == status
            assert (b"server.hosts" in answer[2]) is (status == 403)
        assert running.request("GET", "/health", headers={"Host": host}, admin=True)[0] == 200


def test_pages_of_other_sites_change_nothing_without_an_origin_either():
    """Where a browser says no origin, it says the site."""
    with gateway() as running:
        for site, status in (
            ("cross-site", 403),
            ("same-site", 403),
            ("same-origin", 200),
            ("none", 200),
        ):
            headers = {"Sec-Fetch-Site": site}
            assert (
                running.request("PATCH", "/admin/settings", b"{}", headers, admin=True)[0] == status
            )


def test_settings_that_cannot_start_leave_the_old_ones_serving():
    """When new replicas fail to load, the caller is told why and the old generation answers on."""
    home = FakeHome()
    with gateway({"replica.count": 2}, home) as running:
        home.load_error = "the file is broken"
        status, answer = patch(running, {"replica.count": 4})
        assert status == 409
        assert "the file is broken" in answer["error"]
        shown = running.json("GET", "/admin/settings", admin=True)[1]
        assert shown["generation"] == 1
        assert shown["settings"]["replica"]["count"] == 2
        assert running.request("POST", INFER, body())[0] == 200
        assert until(lambda: states(running) == ["ready"] * 2)


A = {"replica.count": 3, "replica.threads": 2, "batching.max_size": 1, "batching.timeout_us": 500}
B = {"replica.count": 2, "replica.memory_mb": 64, "replica.cpu": 0.5, "batching.max_size": 5}


def seen(running, home):
    """What a client or an operator can tell of an engine's state."""
    alive = [replica for replica in home.replicas if not replica.ended.done()]
    shown = running.json("GET", "/admin/settings", admin=True)[1]["settings"]
    before = [len(replica.batches) for replica in alive]
    home.hold.set()
    home.release.clear()
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        work = [pool.submit(running.request, "POST", INFER, body(n)) for n in range(24)]
        until(lambda: running.do(lambda: running.engine.inflight_count) == 24)
        time.sleep(0.05)
        (served,) = running.engine.deployments()
        waiting = running.do(lambda: served.dispatcher.waiting_of(served.id))
        home.hold.clear()
        home.release.set()
        assert {w.result(10)[0] for w in work} == {200}
    largest = max(
        size
        for replica, start in zip(alive, before, strict=True)
        for size in replica.batches[start:]
    )
    return {
        "settings": {k: v for k, v in shown.items() if k != "server"},
        "limits": sorted(str(replica.limits) for replica in alive),
        "largest batch": largest,
        "waiting behind held replicas": waiting > 0,
        "cache": running.do(lambda: len(running.engine.deployments()[0].cache.cache)),
    }


def test_apply_a_then_b_is_a_fresh_start_of_b():
    """What can be seen after apply(A), apply(B) is what can be seen after a fresh start of B."""
    with gateway(B, home := FakeHome()) as running:
        fresh = seen(running, home)
    with gateway(A, home := FakeHome()) as running:
        assert patch(running, {"cache.capacity_mb": 4})[0] == 200
        assert running.request("POST", INFER, body(7))[0] == 200
        defaults = {"replica.threads": 1, "batching.timeout_us": 0, "cache.capacity_mb": 0}
        assert patch(running, defaults | B)[0] == 200
        assert seen(running, home) == fresh


def test_what_a_warm_up_took_is_believed_under_its_limits_only():
    """A replica that gets other limits while it lives is not run anew: nothing is known of it then."""
    home = FakeHome()

    def warmed(batch_s):
        home.load_detail = {"warmup": {"source": "file", "batch_s": batch_s}}

    warmed({"1": 0.5, "8": 1.0})
    with gateway({"replica.cpu": 1.0}, home) as running:
        known = running.engine.deployments()[0].placement._scheduler

        def measured():
            return running.do(known.profile.estimates_s)

        assert measured() == {1: 0.5, 8: 1.0}
        assert patch(running, {"batching.max_size": 8})[0] == 200
        assert measured() == {1: 0.5, 8: 1.0}
        assert patch(running, {"replica.cpu": 2.0})[0] == 200
        assert (len(home.replicas), measured()) == (1, {})
        assert patch(running, {"replica.cpu": 1.0})[0] == 200
        assert measured() == {1: 0.5, 8: 1.0}
        warmed({"1": 0.1})
        assert patch(running, {"replica.cpu": 4.0}, restart_replicas=True)[0] == 200
        assert (len(home.replicas), measured()) == (2, {1: 0.1})


def test_no_request_fails_while_settings_change():
    """Requests that run through many changes of settings are all answered."""
    home = FakeHome()
    home.exec_s = 0.001
    statuses = []
    stop = threading.Event()

    def client(running):
        while not stop.is_set():
            statuses.append(running.request("POST", INFER, body())[0])

    with gateway({}, home) as running:
        clients = [threading.Thread(target=client, args=(running,)) for _ in range(4)]
        for thread in clients:
            thread.start()
        for turn in range(8):
            change = {"replica.count": 1 + turn % 3, "batching.max_size": 1 + turn}
            assert patch(running, change, restart_replicas=turn % 2 == 0)[0] == 200
        stop.set()
        for thread in clients:
            thread.join(10)
    assert len(statuses) > 20
    assert set(statuses) == {200}


def test_fresh_replicas_are_new_ones():
    """`restart_replicas` makes every change a launch of its own."""
    with gateway({"replica.count": 2}, home := FakeHome()) as running:
        assert patch(running, {}, restart_replicas=True)[0] == 200
        assert [replica.ended.done() for replica in home.replicas] == [True, True, False, False]


def test_limits_that_the_kernel_refuses_are_met_by_new_replicas():
    """A live limit that cannot be set is not an error: a new replica starts under it."""
    with gateway({"replica.cpu": 1.0}, home := FakeHome()) as running:
        home.refuse_limits = {1}
        assert patch(running, {"replica.cpu": 0.5})[0] == 200
        assert len(home.replicas) == 2
        assert home.replicas[1].limits == (0.5, None)


def limits(home):
    return [replica.limits for replica in home.replicas if not replica.ended.done()]


def test_limits_are_put_back_when_the_change_fails():
    """Half of the limits are changed, one is refused, its successor cannot start: all are as before."""
    home = FakeHome()
    with gateway({"replica.count": 3, "replica.cpu": 1.0}, home) as running:
        home.refuse_limits = {2}
        home.load_error = "the file is broken"
        assert patch(running, {"replica.cpu": 0.5})[0] == 409
        assert limits(home) == [(1.0, None)] * 3
        assert len(home.replicas) == 4
        home.refuse_limits, home.load_error = set(), None
        assert patch(running, {"replica.cpu": 0.5})[0] == 200
        assert limits(home) == [(0.5, None)] * 3
        assert len(home.replicas) == 4


def test_limits_that_cannot_be_put_back_are_remembered_as_they_are(caplog):
    """A replica that uses more than it had keeps what it has, until a change gives it a successor."""
    home = SlowHome()
    with gateway({"replica.count": 1, "replica.memory_mb": 64}, home) as running:
        home.waits = True
        home.load_error = "the file is broken"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            change = pool.submit(patch, running, {"replica.memory_mb": 128, "replica.count": 2})
            assert until(lambda: home.starts == 2)
            assert limits(home) == [(None, 128)]
            home.refuse_limits = {1}
            home.go.set()
            assert change.result(10)[0] == 409
        assert "limits cannot be restored" in caplog.text
        assert limits(home) == [(None, 128)]
        assert running.request("POST", INFER, body())[0] == 200
        home.load_error = None
        assert patch(running, {"replica.count": 2})[0] == 200
        assert limits(home) == [(None, 64)] * 2


def test_a_dead_replica_is_replaced_and_its_work_given_to_another_once():
    """A request survives one death; the deaths are listed and counted."""
    with gateway({"replica.count": 2, "batching.max_size": 1}, home := FakeHome()) as running:
        home.hold.set()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(running.request, "POST", INFER, body(9))
            assert until(lambda: any(replica.batches for replica in home.replicas))
            holder = next(replica for replica in home.replicas if replica.batches)
            holder.die("oom")
            home.hold.clear()
            home.release.set()
            assert answer.result(10)[0] == 200
        assert until(lambda: states(running) == ["ready"] * 2)
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
        assert [death["reason"] for death in deaths] == ["oom"]
        metrics = running.request("GET", "/metrics", admin=True)[2].decode()
        assert 'luthier_replica_deaths_total{model="echo",reason="oom",version="1"} 1.0' in metrics


def deaths(running):
    listed = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
    return [death["reason"] for death in listed]


def test_a_death_of_a_replica_that_leaves_says_nothing_about_the_new_settings():
    """Only deaths of replicas that the new settings use are counted as theirs."""
    home = SlowHome()
    with gateway({"replica.count": 1}, home) as running:
        home.waits = True
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            change = pool.submit(patch, running, {"replica.threads": 2})
            assert until(lambda: home.starts == 2)
            home.replicas[0].die("oom")
            assert until(lambda: states(running) == ["starting"])
            home.go.set()
            assert change.result(10)[0] == 200
        assert deaths(running) == []
        home.replicas[1].die("oom")
        assert until(lambda: deaths(running) == ["oom"])


def test_replicas_that_were_to_leave_count_again_when_the_change_fails():
    """After a change that failed, the death of a replica that stayed is counted."""
    home = FakeHome()
    with gateway({"replica.count": 1}, home) as running:
        home.load_error = "the file is broken"
        assert patch(running, {"replica.threads": 2})[0] == 409
        home.load_error = None
        home.replicas[0].die("oom")
        assert until(lambda: deaths(running) == ["oom"])
        assert until(lambda: states(running) == ["ready"])


def test_a_death_during_a_change_that_fails_is_told():
    """The replica was of the settings that stay in force: it is listed, and it is always counted."""
    home = SlowHome()
    with gateway({"replica.count": 1}, home) as running:
        home.waits = True
        home.load_error = "the file is broken"
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            change = pool.submit(patch, running, {"replica.threads": 2})
            assert until(lambda: home.starts == 2)
            home.replicas[0].die("oom")
            assert until(lambda: states(running) == ["starting"])
            assert deaths(running) == []
            metrics = running.request("GET", "/metrics", admin=True)[2].decode()
            assert 'reason="oom",version="1"} 1.0' in metrics
            home.go.set()
            assert change.result(10)[0] == 409
        assert deaths(running) == ["oom"]
        home.load_error = None
        assert until(lambda: states(running) == ["ready"])


def test_a_request_that_kills_two_replicas_is_refused():
    """The second death ends the request with the reason, not the server."""
    home = FakeHome()
    with gateway({"replica.count": 1}, home) as running:
        home.die_on_batch = True
        status, _, answer = running.request("POST", INFER, body())
        assert status == 500
        assert "crash" in json.loads(answer)["error"]
        home.die_on_batch = False
        assert until(lambda: running.request("POST", INFER, body())[0] == 200)


def test_a_request_that_kills_its_replica_fails_alone():
    """Twelve at once, one of them deadly: eleven are answered."""
    home = FakeHome()
    with gateway({"batching.max_size": 8}, home) as running:
        home.poison = b"\x63"
        home.hold.set()  # the first waits, so that the others come together
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            asked = [pool.submit(running.request, "POST", INFER, body(i + 90)) for i in range(12)]
            waiting = lambda: sum(s.inflight_count for s in running.engine.deployments())  # noqa: E731
            assert until(lambda: running.do(waiting) == 12)
            home.hold.clear()
            home.release.set()
            statuses = [one.result(20)[0] for one in asked]
        assert statuses == [500 if i + 90 == 0x63 else 200 for i in range(12)]
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
        assert len(deaths) == 2


def test_a_hanging_replica_is_killed_and_its_work_given_on():
    """A batch held over hang_timeout_s costs the replica its life and the request nothing."""
    home = FakeHome()
    home.hold.set()
    with gateway({"replica.hang_timeout_s": 0.3, "replica.count": 1}, home) as running:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(running.request, "POST", INFER, body())
            assert until(lambda: bool(home.replicas[0].batches))
            home.hold.clear()
            assert answer.result(10)[0] == 200
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
        assert [death["reason"] for death in deaths] == ["hang"]


def test_a_model_error_fails_its_requests_alone():
    """A model that raises is answered 500; the replica lives and answers the next."""
    home = FakeHome()
    with gateway({}, home) as running:
        home.entry_status = 1
        assert running.request("POST", INFER, body())[0] == 500
        home.entry_status = 2
        assert running.request("POST", INFER, body())[0] == 400
        home.entry_status = 0
        assert running.request("POST", INFER, body())[0] == 200
        assert len(home.replicas) == 1


def test_cache_and_single_flight():
    """Equal inputs are executed once; other inputs are not confused with them."""
    home = FakeHome()
    with gateway({"cache.capacity_mb": 1, "batching.max_size": 1}, home) as running:
        home.hold.set()
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            work = [pool.submit(running.request, "POST", INFER, body(5)) for _ in range(6)]
            assert until(
                lambda: running.do(lambda: running.engine.deployments()[0].cache.shared) == 5
            )
            home.hold.clear()
            home.release.set()
            answers = {w.result(10)[::2] for w in work}
        assert len(answers) == 1
        assert running.request("POST", INFER, body(5))[2] == answers.pop()[1]
        assert sum(len(replica.batches) for replica in home.replicas) == 1
        other = json.loads(running.request("POST", INFER, body(6))[2])
        assert other["outputs"][0]["data"] == [6]
        assert sum(len(replica.batches) for replica in home.replicas) == 2
        metrics = running.request("GET", "/metrics", admin=True)[2].decode()
        for result, count in (("hit", 1), ("miss", 2), ("shared", 5)):  # each look-up once
            assert f'result="{result}",version="1"}} {count}.0' in metrics


def test_a_cached_answer_without_a_json_form_hurts_nobody_else():
    """Bytes in common, wishes not: one client's refusal is not another's second answer."""
    home = FakeHome()
    with gateway({"cache.capacity_mb": 1, "batching.max_size": 1}, home) as running:
        for _ in range(2):
            text = json.loads(body(5)) | {
                "outputs": [{"name": "data", "parameters": {"binary_data": True}}]
            }
            status, head, answer = running.request("POST", INFER, json.dumps(text))
            assert status == 200
            length = int(head["Inference-Header-Content-Length"])
            assert answer[length:] == b"\x05"
            assert json.loads(running.request("POST", INFER, body(5))[2])["outputs"][0]["data"] == [
                5
            ]
        assert sum(len(replica.batches) for replica in home.replicas) == 1


def test_metrics_tell_requests_batches_and_replicas():
    """The metrics add up to what was asked."""
    with gateway({"replica.count": 2}) as running:
        for value in range(5):
            assert running.request("POST", INFER, body(value))[0] == 200
        assert running.request("POST", INFER, b"{")[0] == 400
        status, head, text = running.request("GET", "/metrics", admin=True)
        assert status == 200
        assert head["Content-Type"].startswith("text/plain")
        lines = text.decode().splitlines()
        assert 'luthier_requests_total{model="echo",status="200",version="1"} 5.0' in lines
        assert 'luthier_requests_total{model="echo",status="400",version="1"} 1.0' in lines
        assert 'luthier_replicas{model="echo",state="ready",version="1"} 2.0' in lines
        assert 'luthier_request_seconds_count{model="echo",version="1"} 6.0' in lines
        assert 'luthier_batch_items_sum{model="echo",version="1"} 5.0' in lines
        assert 'luthier_queue_items{model="echo",version="1"} 0.0' in lines


def test_requests_of_a_model_with_a_fixed_batch_are_not_batched(caplog):
    """An export without a free batch dimension serves what it takes, one request after another."""
    home = FakeHome()
    home.signature = Signature.from_json(
        {
            "inputs": [{"name": "data", "datatype": "UINT8", "shape": [2, 1]}],
            "outputs": [{"name": "data", "datatype": "UINT8", "shape": [2, 1]}],
        }
    )
    tensor = {"name": "data", "shape": [2, 1], "datatype": "UINT8", "data": [1, 2]}
    with gateway({"batching.max_size": 8, "batching.timeout_us": 50_000}, home) as running:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            asked = [
                pool.submit(running.json, "POST", INFER, {"inputs": [tensor]}) for _ in range(8)
            ]
            assert [one.result(10)[0] for one in asked] == [200] * 8
        assert patch(running, {"batching.max_size": 4})[0] == 200
        assert running.json("POST", INFER, {"inputs": [tensor]})[0] == 200
        assert [size for replica in home.replicas for size in replica.batches] == [1] * 9
        status, answer = running.json("POST", INFER, {"inputs": [{**tensor, "shape": [1, 2]}]})
        assert (status, "takes [2, 1]" in answer["error"]) == (400, True)
    reasons = {getattr(record, "reason", "") for record in caplog.records}
    assert "input 'data' has a first dimension that is fixed at 2" in reasons
