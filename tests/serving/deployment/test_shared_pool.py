"""Models that share replicas: real processes and containers, real loads, a budget that holds fewer than there are."""

import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import signal
import threading
import time

import numpy as np
import pytest

from serving import wire
from serving.deployment import shared_model, shared_pool
from serving.deployment.profile_store import ProfileStore
from serving.errors import InvalidSettings, ModelLoadFailed, ReplicaStartFailed, UnknownModel
from serving.model_spec import ModelSpec, Program
from serving.scheduling.interface import RejectionReason
from serving.spawners.docker.spawner import DockerSpawner
from serving.spawners.process.spawner import ProcessSpawner
from tests.fakes.adding import adding
from tests.fakes.docker_engine import needs_docker
from tests.fakes.running import gateway, retired
from tests.fakes.submissions import submissions

pytestmark = pytest.mark.usefixtures("quick_starts")

ZOO = pathlib.Path(__file__).parents[3] / "serving" / "zoo"
CLOCKWORK = {"scheduling.policy": "clockwork"}
MODEL = """
import time

class Model:
    '''Adds a number of its own; 99 takes long.'''
    inputs = outputs = [{"name": "x", "datatype": "INT32", "shape": [-1, 1]}]
    sample_inputs = {"x": [[1]]}

    def __init__(self):
        time.sleep(%(load_s)s)
        %(more)s

    def predict_batch(self, inputs):
        if (inputs["x"] == 99).any():
            time.sleep(%(run_s)s)
        return {"x": inputs["x"] + %(number)s}
"""


class _Counted:
    """How many replicas were started."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()
        self.started = []

    async def start(self, worker, **wanted):
        self.started.append(worker)
        return await super().start(worker, **wanted)


class Processes(_Counted, ProcessSpawner):
    """Replicas are processes."""


class Containers(_Counted, DockerSpawner):
    """Replicas are containers."""


HOMES = [
    pytest.param(Processes, id="process"),
    pytest.param(Containers, id="docker", marks=needs_docker),
]


@pytest.fixture(name="home", params=HOMES)
def _home(request):
    return request.param()


def open_up(folder):
    """Let the containers' user, who is another, read what a test has written."""
    for one in (folder, *list(folder.parents)[:3]):
        one.chmod(one.stat().st_mode | 0o055)


@pytest.fixture(name="copies")
def _copies(tmp_path, monkeypatch):
    """Where replicas have optimised copies."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "luthier" / "optimised"


@pytest.fixture(name="card_of")
def _card_of(tmp_path):
    open_up(tmp_path)

    def make(name, number=0, *, load_s=0.0, run_s=0.0, more="", version="1"):
        file = tmp_path / f"{name}_{version}.py"
        text = MODEL % {"number": number, "load_s": load_s, "run_s": run_s, "more": more}
        file.write_text(text)
        path = pathlib.Path(f"{file}:Model")
        return ModelSpec(name=name, version=version, kind="python", path=path)

    return make


def ask(running, name, value=1, *, timeout_us=None):
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [value]}]}
    if timeout_us is not None:
        body["parameters"] = {"timeout": timeout_us}
    status, answer = running.json("POST", f"/v2/models/{name}/infer", body)
    return status, answer["outputs"][0]["data"][0] if status == 200 else answer["error"]


def replicas(running):
    return running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]


def test_more_models_than_there_is_memory_for(card_of, home):
    """Each answers with its own number, whichever were in memory before."""
    settings = {**CLOCKWORK, "clockwork.memory_mb": 2, "replica.count": 2}
    with gateway(settings, home, card_of("m0")) as running:
        for number in range(1, 7):
            running.call(running.engine.deploy(card_of(f"m{number}", number)))
        for turn in range(3):
            for number in range(7):
                assert ask(running, f"m{number}", 10 * turn) == (200, 10 * turn + number)
        assert [one["pool"] for one in replicas(running)] == ["python"] * 2
        metrics = running.request("GET", "/metrics", admin=True)[2].decode()
        for number in range(7):
            assert f'luthier_batch_items_count{{model="m{number}",version="1"}} 3' in metrics


def test_clients_of_several_models_at_once(card_of, home):
    """Five models in use and memory for three: all are answered, and nobody gets another model's answer."""
    names = [f"m{number}" for number in range(5)]
    settings = {**CLOCKWORK, "clockwork.memory_mb": 3, "clockwork.duration_margin": 1.0}
    with gateway(settings, home, card_of("m0")) as running:
        for number in range(1, 5):
            running.call(running.engine.deploy(card_of(names[number], number)))
        answers = {name: [] for name in names}

        def client(name):
            for value in range(40):
                answers[name].append(ask(running, name, value))

        threads = [threading.Thread(target=client, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(70)
        for number, name in enumerate(names):
            assert answers[name] == [(200, value + number) for value in range(40)]
        assert running.engine.inflight_count == 0


def test_what_cannot_be_in_time_is_refused_at_once(card_of, home):
    """A load takes longer than there is time: 503 with the reason, not 504 at the deadline."""
    with gateway({**CLOCKWORK, "clockwork.memory_mb": 1}, home, card_of("m0")) as running:
        running.call(running.engine.deploy(card_of("slow", 1, load_s=0.5)))
        assert ask(running, "m0")[0] == 200
        status, error = ask(running, "slow", timeout_us=350_000)
        assert status == 503, error
        assert "cannot be loaded before the request's deadline" in error
        assert ask(running, "slow", 1, timeout_us=5_000_000) == (200, 2)


def test_whose_request_it_is_reaches_the_scheduler(card_of):
    """By the field X-Application: whose share of the replicas it takes."""
    with gateway(CLOCKWORK, Processes(), card_of("m0")) as running, submissions(running) as seen:
        inputs = [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [1]}]
        body = json.dumps({"inputs": inputs})
        for fields in ({}, {"X-Application": "digits"}):
            assert running.request("POST", "/v2/models/m0/infer", body, fields)[0] == 200
    assert seen == [(0, ""), (0, "digits")]


def test_versions_come_and_go(card_of, home):
    """A retired one is unknown, a new one answers, and one whose files changed is loaded anew."""
    with gateway(CLOCKWORK, home, card_of("m", 0)) as running:
        running.call(running.engine.deploy(card_of("m", 5, version="2")))
        assert ask(running, "m") == (200, 6)
        running.call(retired(running.engine, "m", "1", within_s=5))
        assert ask(running, "m/versions/1")[0] == 404
        running.call(running.engine.redeploy(card_of("m", 7, version="2")))
        assert ask(running, "m") == (200, 8)
        running.call(running.engine.retire_model("m", within_s=5))
        with pytest.raises(UnknownModel):
            running.engine.resolve("m", None)


def test_a_replica_that_is_killed_is_replaced(card_of, home):
    """Its models are loaded again, wherever they are asked for."""
    with gateway(CLOCKWORK, home, card_of("m0")) as running:
        running.call(running.engine.deploy(card_of("m1", 1)))
        assert ask(running, "m1") == (200, 2)
        (victim,) = replicas(running)
        os.kill(victim["pid"], signal.SIGKILL)
        end_s = time.monotonic() + 60
        while [one["pid"] for one in replicas(running)] in ([], [victim["pid"]]):
            assert time.monotonic() < end_s
            time.sleep(0.01)
        assert ask(running, "m1", timeout_us=5_000_000) == (200, 2)
        assert ask(running, "m0", timeout_us=5_000_000) == (200, 1)
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
        assert [death["pool"] for death in deaths] == ["python"]


def test_a_model_that_cannot_be_loaded_joins_nothing(card_of, home):
    """It is refused with its reason, and the others serve on."""
    with gateway(CLOCKWORK, home, card_of("m0")) as running:
        broken = card_of("broken", more="raise RuntimeError('no good')")
        with pytest.raises(ModelLoadFailed, match="no good"):
            running.call(running.engine.deploy(broken))
        assert ask(running, "broken")[0] == 404
        assert ask(running, "m0") == (200, 1)


def test_a_model_that_ends_its_replica_is_refused_with_what_is_known_of_the_end(card_of, home):
    """It is only the replica that profiled it."""
    with gateway(CLOCKWORK, home, card_of("m0")) as running:
        broken = card_of("broken", more="import os; os._exit(7)")
        with pytest.raises(ReplicaStartFailed, match=r"profiled .*broken.* ended .*7"):
            running.call(running.engine.deploy(broken))
        assert ask(running, "m0") == (200, 1)
        assert running.json("GET", "/admin/replicas", admin=True)[1]["deaths"] == []


def test_a_model_that_fails_to_load_later_is_left_alone_for_a_while(card_of):
    """Its requests are refused at once, not tried again and again; the others serve on."""
    more = "import pathlib; assert not pathlib.Path(__file__ + '.gone').exists()"
    with gateway({**CLOCKWORK, "clockwork.memory_mb": 1}, Processes(), card_of("m0")) as running:
        flaky = card_of("flaky", 3, more=more)
        running.call(running.engine.deploy(flaky))
        gone = pathlib.Path(str(flaky.path).partition(":")[0] + ".gone")
        gone.touch()
        for _ in range(3):
            assert ask(running, "flaky", timeout_us=2_000_000)[0] == 503
            assert ask(running, "m0") == (200, 1)
        gone.unlink()
        end_s = time.monotonic() + 60
        while ask(running, "flaky", timeout_us=2_000_000) != (200, 4):
            assert time.monotonic() < end_s
            time.sleep(0.1)


def test_a_model_beyond_the_budget_is_refused(card_of):
    """What would never fit is said when it is deployed."""
    settings = {**CLOCKWORK, "clockwork.memory_mb": 8}
    with gateway(settings, Processes(), card_of("m0")) as running:
        large = card_of("large", more="self.weights = b'x' * (64 << 20)")
        with pytest.raises(InvalidSettings, match="a replica's budget is 8"):
            running.call(running.engine.deploy(large))
        assert ask(running, "m0") == (200, 1)


def test_a_program_of_its_own_shares_no_replica(tmp_path, home):
    """It serves one model; which setting helps is said."""
    program = Program(("/bin/true",), tmp_path)
    card = ModelSpec(name="own", version="1", kind="command", path=None, program=program)
    with (
        pytest.raises(InvalidSettings, match=r"set models\.own\.scheduling\.policy to adaptive"),
        gateway(CLOCKWORK, home, card),
    ):
        pass


def test_containers_on_other_machines_are_not_shared(card_of):
    """Their files would be out of its reach; which settings help is said."""
    settings = CLOCKWORK | {"replica.spawner": "ray", "cluster.spawner": "docker"}
    with (
        pytest.raises(InvalidSettings, match=r"^[^\n]*set cluster\.spawner to process[^\n]*$"),
        gateway(settings, Processes(), card_of("m")),
    ):
        pass


def test_settings_that_change_nothing_are_told(card_of):
    """Of models that share replicas: what is the pool's, and what is a queue's; others have their own."""
    settings = {
        **CLOCKWORK,
        "batching.timeout_us": 500,
        "models.a.replica.count": 3,
        "models.b.scheduling.policy": "adaptive",
        "models.b.replica.threads": 1,
        "models.c.replica.count": 2,
    }
    with gateway(settings, Processes(), card_of("a")) as running:
        running.call(running.engine.deploy(card_of("b", 2)))
        answer = running.json("PATCH", "/admin/settings", {"settings": {}}, admin=True)
    first, second, third = answer[1]["warnings"]
    assert "models.c" in first, "not served"
    assert second.startswith("models.a.replica.count: models on shared replicas")
    assert third.startswith("batching.timeout_us: has no effect on models on shared")
    assert third.endswith("(a)")


def test_batches_that_were_not_measured_are_told(card_of):
    """A largest batch beyond what was measured at the deploy changes nothing until the next one."""
    settings = {**CLOCKWORK, "models.c.scheduling.policy": "adaptive"}
    with gateway(settings, Processes(), card_of("a")) as running:
        for name in "bc":
            running.call(running.engine.deploy(card_of(name)))
        assert running.do(running.engine.notes) == []

        def notes(most):
            change = {"settings": {"batching.max_size": most}}
            return running.json("PATCH", "/admin/settings", change, admin=True)[1]["warnings"]

        (note,) = notes(32)
        assert note.startswith("batching.max_size = 32: batches are limited to 8")
        assert note.endswith(": a, b")
        running.call(running.engine.redeploy(card_of("a")))
        (note,) = notes(32)
        assert note.endswith(": b")
        assert notes(8) == notes(2) == []


def batch_sizes(running, name, items):
    """Sizes of the batches that a request of so many items becomes."""
    before = counted(running, "luthier_batch_items_count", model=name)
    values = [[value] for value in range(items)]
    body = {"inputs": [{"name": "x", "shape": [items, 1], "datatype": "INT32", "data": values}]}
    assert running.json("POST", f"/v2/models/{name}/infer", body)[0] == 200
    return items / (counted(running, "luthier_batch_items_count", model=name) - before)


def test_a_largest_batch_of_one_s_own(card_of):
    """It counts at once where it is smaller; where it is larger than that of all, it is told that it does not."""
    # A batch takes the same time whatever its size, so that none is worth more in two parts: long enough that it
    # still does where a busy machine adds some milliseconds to one.
    steady = "self.predict_batch = lambda given: (time.sleep(0.05), given)[1]"
    settings = {
        **CLOCKWORK,
        "models.b.batching.max_size": 16,
        "clockwork.max_exec_ms": 500.0,
    }
    with gateway(settings, Processes(), card_of("a", more=steady)) as running:
        running.call(running.engine.deploy(card_of("b", more=steady)))
        assert (batch_sizes(running, "a", 16), batch_sizes(running, "b", 16)) == (8, 8)
        (note,) = running.do(running.engine.notes)
        assert note.startswith("models.b.batching.max_size = 16: ")
        assert note.endswith("the batching.max_size of all models, 8; raise that")
        change = {"settings": {"models.a.batching.max_size": 2, "batching.max_size": 16}}
        answer = running.json("PATCH", "/admin/settings", change, admin=True)
        assert answer[1]["warnings"] == []
        assert (batch_sizes(running, "a", 16), batch_sizes(running, "b", 16)) == (2, 16)


def test_a_note_at_the_start_of_what_there_was_no_time_to_measure(card_of):
    """A model that is slow beside its time for a warm-up: larger batches were not run."""
    card = card_of("slow", more="self.predict_batch = lambda given: (time.sleep(0.1), given)[1]")
    with gateway({**CLOCKWORK, "replica.warmup_s": 0.01}, Processes(), card) as running:
        (note,) = running.do(running.engine.notes)
        assert note.startswith("batching.max_size = 8: batches are limited to 1,")


def shown(running, name, version="1"):
    return running.json("GET", f"/admin/models/{name}", admin=True)[1]["versions"][version]


def test_what_a_model_takes_and_where_it_is(card_of, home):
    """Memory, pages, time of a load, and the replicas that have it in memory now, as they list it, too."""
    with gateway({**CLOCKWORK, "clockwork.memory_mb": 8}, home, card_of("m0")) as running:
        large = card_of("large", more="self.weights = b'x' * (6 << 20)", load_s=0.05)
        running.call(running.engine.deploy(large))
        one = shown(running, "large")
        assert 6 <= one["memory_mb"] <= one["pages"] <= 8
        assert one["load_s"] == one["profile"]["load_s"] > 0.05
        assert (one["in_memory"], one["replicas"]) == (False, [])
        assert ask(running, "large", timeout_us=5_000_000)[0] == 200
        (replica,) = replicas(running)
        assert replica["models"] == [{"model": "large", "version": "1"}]
        one = shown(running, "large")
        assert (one["in_memory"], one["replicas"]) == (True, [replica["worker"]])
        page = running.json("GET", "/admin/models", admin=True)[1]["models"]
        assert [entry["name"] for entry in page] == ["m0", "large"]
        assert page[1]["versions"]["1"] == one


def test_a_model_with_replicas_of_its_own_tells_of_no_pages(card_of):
    """They are in memory all the time, under the model's name."""
    with gateway({}, Processes(), card_of("m0")) as running:
        assert {"pages", "replicas", "in_memory"}.isdisjoint(shown(running, "m0"))
        (replica,) = replicas(running)
        assert (replica["model"], "pool" in replica) == ("m0", False)


def resident_mb(pid):
    pages = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


@pytest.mark.usefixtures("copies")
def test_equal_content_takes_equal_memory(onnx_card):
    """Whether its optimised copy was written just now or is there, and no less than a replica of many twins grows by.

    The first measurement follows the writing in one process, which leaves a heap that a load can hide in.
    """
    found = []
    for number in range(2):
        with gateway(CLOCKWORK, Processes(), onnx_card) as running:
            found.append(shown(running, "a")["memory_mb"])
            if number:
                continue
            for name in "bcdefghij":
                twin = dataclasses.replace(onnx_card, name=name)
                running.call(running.engine.deploy(twin))
            (replica,) = replicas(running)
            sizes_mb = []
            images = {"name": "image", "datatype": "UINT8", "shape": [8, 3, 32, 32]}
            body = {"inputs": [{**images, "data": [7] * math.prod(images["shape"])}]}
            for name in "abcdefghij":
                assert running.json("POST", f"/v2/models/{name}/infer", body)[0] == 200
                sizes_mb.append(resident_mb(replica["pid"]))
            assert (sizes_mb[-1] - sizes_mb[1]) / 8 <= found[0]
    assert max(found) <= 1.1 * min(found)


def test_copies_with_samples_of_their_own_are_measured_once(tmp_path, onnx_card):
    """What counts is what the files hold, and not which files they are."""
    home = Processes()
    cards = []
    for name in "ab":
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(onnx_card.path, folder / "model.onnx")
        shutil.copy(ZOO / "gan" / "samples.npz", folder / "samples.npz")
        cards.append(
            ModelSpec(
                name=name,
                version="1",
                kind="onnx",
                path=folder / "model.onnx",
                sample=folder / "samples.npz",
            )
        )
    with gateway(CLOCKWORK, home, cards[0]) as running:
        before = len(home.started)
        running.call(running.engine.deploy(cards[1]))
        assert len(home.started) == before
        assert shown(running, "a")["pages"] == shown(running, "b")["pages"]


def test_settings_change_while_it_serves(card_of, home):
    """Replicas come, limits of a batch change, another budget starts new replicas; answers go on."""
    with gateway({**CLOCKWORK, "clockwork.memory_mb": 2}, home, card_of("m0")) as running:
        running.call(running.engine.deploy(card_of("m1", 1)))

        def patch(**settings):
            values = {name.replace("__", "."): value for name, value in settings.items()}
            answer = running.json("PATCH", "/admin/settings", {"settings": values}, admin=True)
            assert answer[0] == 200, answer
            assert ask(running, "m0", timeout_us=5_000_000) == (200, 1)
            assert ask(running, "m1", timeout_us=5_000_000) == (200, 2)
            return {one["pid"] for one in replicas(running) if one["state"] == "ready"}

        first = patch(batching__max_size=2, clockwork__duration_margin=0.5)
        more = patch(replica__count=2)
        assert first < more
        assert len(more) == 2
        assert not patch(clockwork__memory_mb=3) & more


def test_what_a_model_was_loaded_with_stays(card_of):
    """A change is refused with what to do, and nothing is restarted; after a retirement it counts."""
    changes = {"model.shapes": "x=2", "models.m0.model.values": "x=3", "batching.pad_to": 8}
    home = Processes()
    with gateway(CLOCKWORK, home, card_of("m0")) as running:

        def patch(name):
            body = {"settings": {name: changes[name]}}
            return running.json("PATCH", "/admin/settings", body, admin=True)

        before = len(home.started)
        for name in changes:
            status, answer = patch(name)
            assert status == 400, answer
            assert (
                f"{name.removeprefix('models.m0.')} of m0: a model on shared replicas"
                in answer["error"]
            )
            assert "retire it, change the setting" in answer["error"]
        assert len(home.started) == before
        assert ask(running, "m0") == (200, 1)
        running.call(running.engine.deploy(card_of("m1", 1)))
        running.call(running.engine.retire_model("m0", within_s=5))
        running.call(running.engine.retire_model("m1", within_s=5))
        for name in changes:
            status, answer = patch(name)
            assert status == 200, answer


def test_shared_replicas_outlive_changes_that_concern_none_of_their_models(card_of):
    """Each model has its own: what is set for all others is no reason for new replicas."""
    home = Processes()
    own = {"models.m0.model.values": "x=2", "models.m0.batching.pad_to": 4}
    with gateway({**CLOCKWORK, **own}, home, card_of("m0")) as running:
        before = len(home.started)
        change = {"settings": {"model.values": "x=1", "batching.pad_to": 8}}
        status, answer = running.json("PATCH", "/admin/settings", change, admin=True)
        assert status == 200, answer
        assert len(home.started) == before
        assert ask(running, "m0") == (200, 1)


@pytest.fixture(name="onnx_card")
def _onnx_card(tmp_path):
    open_up(tmp_path)
    file = tmp_path / "model.onnx"
    file.write_bytes((ZOO / "gan" / "model.onnx").read_bytes())
    return ModelSpec(name="a", version="1", kind="onnx", path=file)


def test_a_profile_is_measured_once_for_a_file(tmp_path, onnx_card, home):
    """Models from the same file, as hard links are, need no replica of their own to be measured in."""
    card, file = onnx_card, onnx_card.path
    with gateway(CLOCKWORK, home, card) as running:
        before = len(home.started)
        other = tmp_path / "other.onnx"
        other.hardlink_to(file)
        for name in "bcd":
            twin = ModelSpec(name=name, version="1", kind="onnx", path=other)
            running.call(running.engine.deploy(twin))
        assert len(home.started) == before
        assert json.loads(running.request("GET", "/v2/models/d")[2])["name"] == "d"


def profile_of(running, name):
    model = running.json("GET", f"/admin/models/{name}", admin=True)[1]
    return model["versions"]["1"]["profile"]


def test_a_profile_outlives_the_server(tmp_path, onnx_card, home):
    """The next server over the same folder starts the replicas that serve, and none to measure in."""
    profiles = []
    for starts in (2, 1):
        home = type(home)()
        kept = ProfileStore.of_folder(tmp_path)
        with gateway(CLOCKWORK, home, onnx_card, profiles=kept) as running:
            assert len(home.started) == starts
            profiles.append(profile_of(running, "a"))
            signature = running.json("GET", "/admin/settings", admin=True)[1]["models"][0]
            profiles[-1]["signature"] = signature
            status, facts = running.json("GET", "/v2/models/a/ready")
            assert status == 200, facts
        kept.close()
    assert profiles[0] == profiles[1]
    for size, took_s in profiles[0]["batch_s"].items():
        assert len(profiles[0]["stages_s"][size]) == 3, took_s


def test_a_server_that_ends_keeps_what_it_has_measured(tmp_path, onnx_card):
    """The next one begins with the medians of the batches that were answered."""
    profiles = []
    for asked in (10, 0):
        kept = ProfileStore.of_folder(tmp_path)
        with gateway(CLOCKWORK, Processes(), onnx_card, profiles=kept) as running:
            (image,) = running.json("GET", "/v2/models/a")[1]["inputs"]
            image["shape"][0] = 1
            image["data"] = [1] * math.prod(image["shape"])
            for _ in range(asked):
                assert running.json("POST", "/v2/models/a/infer", {"inputs": [image]})[0] == 200
            profiles.append(profile_of(running, "a"))
        kept.close()
    first, second = profiles
    assert first["stages_s"]["1"] != second["stages_s"]["1"]
    assert {**first["batch_s"], "1": 0} == {**second["batch_s"], "1": 0}
    assert first["load_s"] == second["load_s"]


def test_models_are_measured_anew_under_other_limits(onnx_card, home):
    """Each file once; limits that were in force before are known."""
    with gateway({**CLOCKWORK, "replica.threads": 1}, home, onnx_card) as running:
        twin = dataclasses.replace(onnx_card, name="b")
        running.call(running.engine.deploy(twin))

        def started_by(settings):
            before = len(home.started)
            body = {"settings": settings}
            assert running.json("PATCH", "/admin/settings", body, admin=True)[0] == 200
            return len(home.started) - before

        first = profile_of(running, "a")
        assert started_by({"replica.threads": 2}) == 2  # to measure in, and to serve
        second = profile_of(running, "b")
        assert second == profile_of(running, "a") != first
        assert started_by({"replica.threads": 1}) == 1
        assert profile_of(running, "b") == first
        assert started_by({"clockwork.duration_margin": 0.5}) == 0


def test_limits_under_which_a_model_cannot_be_measured_are_refused(card_of):
    """With the reason; what was in force serves on."""
    more = "import pathlib; assert not pathlib.Path(__file__ + '.gone').exists()"
    with gateway(CLOCKWORK, Processes(), card_of("m0", more=more)) as running:
        before = profile_of(running, "m0")
        card = card_of("m0", more=more)
        pathlib.Path(str(card.path).partition(":")[0] + ".gone").touch()
        body = {"settings": {"replica.threads": 2}}
        status, answer = running.json("PATCH", "/admin/settings", body, admin=True)
        assert (status, "AssertionError" in answer["error"]) == (409, True)
        assert running.engine.settings.replica.threads == 1
        assert profile_of(running, "m0") == before


def test_limits_change_though_samples_have_gone(tmp_path):
    """It is said why a model cannot be measured; the server goes on."""
    sample = tmp_path / "own.npz"
    np.savez(sample, x=np.zeros((2, 8), np.float32))
    file = adding(tmp_path / "m.onnx", 1.0, items=8)
    card = ModelSpec(name="a", version="1", kind="onnx", path=file, sample=sample)
    with gateway(CLOCKWORK, Processes(), card) as running:
        sample.unlink()
        body = {"settings": {"replica.threads": 2}}
        status, answer = running.json("PATCH", "/admin/settings", body, admin=True)
        assert (status, "own.npz" in answer["error"]) == (409, True)


def test_measuring_anew_ends_in_time(card_of, monkeypatch, caplog):
    """The limits come into force; models for which there was no time keep their profiles."""
    monkeypatch.setattr(shared_pool, "MAX_PROFILING_S", -1.0)
    home = Processes()
    with gateway(CLOCKWORK, home, card_of("m0")) as running:
        before, starts = profile_of(running, "m0"), len(home.started)
        body = {"settings": {"replica.threads": 2}}
        assert running.json("PATCH", "/admin/settings", body, admin=True)[0] == 200
        assert len(home.started) == starts + 1
        assert profile_of(running, "m0") == before
        assert ask(running, "m0", timeout_us=5_000_000) == (200, 1)
    assert [line for line in caplog.messages if "not measured under the new limits" in line]


def test_a_profile_learns_nothing_of_other_limits(onnx_card, monkeypatch, tmp_path):
    """What was not measured under them has no profile to be taught, and the old one stays as it was."""
    kept = ProfileStore.of_folder(tmp_path)
    with gateway(CLOCKWORK, Processes(), onnx_card, profiles=kept) as running:
        (image,) = running.json("GET", "/v2/models/a")[1]["inputs"]
        image["shape"][0] = 1
        image["data"] = [1] * math.prod(image["shape"])

        def ask_often():
            for _ in range(10):
                assert running.json("POST", "/v2/models/a/infer", {"inputs": [image]})[0] == 200

        ask_often()
        before = profile_of(running, "a")
        monkeypatch.setattr(shared_pool, "MAX_PROFILING_S", -1.0)
        body = {"settings": {"replica.threads": 2}}
        assert running.json("PATCH", "/admin/settings", body, admin=True)[0] == 200
        ask_often()
    kept.close()
    kept = ProfileStore.of_folder(tmp_path)
    with gateway(CLOCKWORK, Processes(), onnx_card, profiles=kept) as running:
        assert profile_of(running, "a") == before
    kept.close()


def maps_of(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text()


def test_models_are_loaded_from_an_optimised_copy(copies, onnx_card):
    """Written when the model is measured; the replica that serves maps it, and does without where it is gone."""
    with gateway(CLOCKWORK, Processes(), onnx_card) as running:
        (image,) = running.json("GET", "/v2/models/a")[1]["inputs"]
        image["shape"][0] = 1
        image["data"] = [1] * math.prod(image["shape"])

        def answer():
            status, found = running.json("POST", "/v2/models/a/infer", {"inputs": [image]})
            assert status == 200, found
            return found["outputs"]

        first = answer()
        (replica,) = replicas(running)
        (folder,) = copies.iterdir()
        assert str(folder) in maps_of(replica["pid"])
        shutil.rmtree(folder)
        fresh = {"settings": {}, "restart_replicas": True}
        assert running.json("PATCH", "/admin/settings", fresh, admin=True)[0] == 200
        assert answer() == first
        (replica,) = replicas(running)
        assert str(folder) not in maps_of(replica["pid"])
        twin = dataclasses.replace(onnx_card, name="b")
        running.call(running.engine.deploy(twin))
        assert list(copies.iterdir()) == [folder], "the twin was measured, for there was none"


@needs_docker
def test_containers_load_a_models_own_file(tmp_path, copies):
    """They may write nowhere, and no folder is theirs together."""
    file = adding(tmp_path / "m.onnx", 1.0)
    open_up(tmp_path)
    card = ModelSpec(name="a", version="1", kind="onnx", path=file)
    with gateway(CLOCKWORK, Containers(), card) as running:
        assert added_by(running) == 1.0
        (replica,) = replicas(running)
        assert "/weights.bin" not in maps_of(replica["pid"])
    assert not copies.exists()


def added_by(running):
    """What the model of `adding` adds."""
    data = [0.0] * 32_768
    tensor = {"name": "x", "shape": [1, len(data)], "datatype": "FP32", "data": data}
    status, answer = running.json("POST", "/v2/models/a/infer", {"inputs": [tensor]})
    assert status == 200, answer
    return answer["outputs"][0]["data"][0]


def test_nothing_is_kept_of_a_file_that_was_swapped_while_it_was_measured(tmp_path, copies):
    """Neither a copy nor a profile: the old file is there again later, with its name, inode, size and time."""
    file, other, away = (tmp_path / name for name in ("m.onnx", "other", "away"))
    adding(file, 1.0)
    adding(other, 2.0)
    card = ModelSpec(name="a", version="1", kind="onnx", path=file)
    kept = ProfileStore.of_folder(tmp_path)

    class Swapping(Processes):
        async def start(self, *arguments, **named):
            if len(self.started) == 1:
                file.rename(away)
                other.rename(file)
            return await super().start(*arguments, **named)

    with gateway(CLOCKWORK, Swapping(), card, profiles=kept) as running:
        assert added_by(running) == 2.0
    assert [*copies.iterdir()] == []
    file.rename(other)
    away.rename(file)
    home = Processes()
    with gateway(CLOCKWORK, home, card, profiles=kept) as running:
        assert added_by(running) == 1.0
    assert len(home.started) == 2  # it was measured anew
    kept.close()


def test_a_copy_that_is_damaged_is_written_anew(tmp_path, copies):
    """By the next deploy, though the profile was kept; until then the model's own file is loaded."""
    file = adding(tmp_path / "m.onnx", 1.0)
    card = ModelSpec(name="a", version="1", kind="onnx", path=file)
    kept = ProfileStore.of_folder(tmp_path)
    inodes = []
    for _ in range(3):
        with gateway(CLOCKWORK, Processes(), card, profiles=kept) as running:
            made = [*copies.glob("*/weights.bin")]
            inodes += [one.stat().st_ino for one in made]
            if len(inodes) == 1:
                made[0].write_bytes(b"short")
            assert added_by(running) == 1.0
            assert len([*copies.iterdir()]) == int(len(inodes) != 1)
    kept.close()
    assert inodes[1] == inodes[2]


@pytest.mark.parametrize("weights", [None, "w.bin"])
def test_no_copy_is_used_for_other_content(tmp_path, copies, weights):
    """The next server answers as the file does that is there, which has the old one's name, size, inode and time."""
    folder = tmp_path / "models"
    folder.mkdir()
    file = folder / "m.onnx"
    card = ModelSpec(name="a", version="1", kind="onnx", path=file)
    kept = ProfileStore.of_folder(tmp_path)
    for number in (1.0, 2.0, 1.0):
        adding(file, number, weights=weights)
        for one in folder.iterdir():
            os.utime(one, (1e9, 1e9))
        with gateway(CLOCKWORK, Processes(), card, profiles=kept) as running:
            assert added_by(running) == number
    kept.close()
    assert len([*copies.glob("*")]) == (2 if weights is None else 0)


def test_weights_beside_a_file_take_memory(tmp_path):
    """They are counted in pages as the file is, whatever a measurement tells."""
    file = adding(tmp_path / "m.onnx", 1.0, weights="w.bin", items=2**20)
    card = ModelSpec(name="a", version="1", kind="onnx", path=file)
    settings = {**CLOCKWORK, "clockwork.memory_mb": 3, "clockwork.page_mb": 1}
    with (
        pytest.raises(InvalidSettings, match=r"takes [0-9]+ pages of 1 MiB"),
        gateway(settings, Processes(), card),
    ):
        pass


def test_one_model_may_share_where_others_do_not(card_of, home):
    """The policy is each model's own; what is served keeps it."""
    settings = {"models.m1.scheduling.policy": "clockwork"}
    with gateway(settings, home, card_of("m0")) as running:
        running.call(running.engine.deploy(card_of("m1", 1)))
        assert [one.get("model") or one["pool"] for one in replicas(running)] == ["m0", "python"]
        assert (ask(running, "m0"), ask(running, "m1")) == ((200, 1), (200, 2))
        change = {"settings": {"models.m1.scheduling.policy": "adaptive"}}
        status, answer = running.json("PATCH", "/admin/settings", change, admin=True)
        assert (status, "models.m1.scheduling.policy cannot change" in answer["error"]) == (
            400,
            True,
        )


def test_a_budget_that_a_model_does_not_fit_is_refused(card_of):
    """The settings stay as they were."""
    more = "self.weights = b'x' * (6 << 20)"
    with gateway(
        {**CLOCKWORK, "clockwork.memory_mb": 20}, Processes(), card_of("m0", more=more)
    ) as running:
        change = {"settings": {"clockwork.memory_mb": 4}}
        status, answer = running.json("PATCH", "/admin/settings", change, admin=True)
        assert (status, "a replica's budget is 4" in answer["error"]) == (400, True)
        assert ask(running, "m0") == (200, 1)


def test_the_last_model_takes_the_replicas_with_it(card_of, home):
    """Nothing is kept for nobody; the next model starts them again."""
    with gateway(CLOCKWORK, home, card_of("m0")) as running:
        running.call(running.engine.retire_model("m0", within_s=5))
        assert replicas(running) == []
        running.call(running.engine.deploy(card_of("m1", 1)))
        assert ask(running, "m1") == (200, 2)


def test_a_server_that_ends_answers_who_still_waits(card_of, home):
    """A batch runs and another replica is idle: nothing is loaded there for a model that has gone."""
    found = []
    settings = {**CLOCKWORK, "replica.count": 2}
    with gateway(settings, home, card_of("slow", run_s=5.0)) as running:
        asking = threading.Thread(target=lambda: found.append(ask(running, "slow", 99)))
        asking.start()
        end_s = time.monotonic() + 5
        while not running.engine.inflight_count:
            assert time.monotonic() < end_s
            time.sleep(0.005)
        time.sleep(0.1)
        running.call(running.engine.close(), 20)
        asking.join(10)
    ((status, _),) = found
    assert status == 503


def test_deaths_of_shared_replicas_are_counted(card_of, home):
    """Under the pool, which is no model: per model there is nothing but models."""
    with gateway(CLOCKWORK, home, card_of("m0")) as running:
        (victim,) = replicas(running)
        os.kill(victim["pid"], signal.SIGKILL)
        end_s = time.monotonic() + 60
        while True:
            text = running.request("GET", "/metrics", admin=True)[2].decode()
            if 'luthier_pool_replica_deaths_total{pool="python"' in text:
                break
            assert time.monotonic() < end_s
            time.sleep(0.02)
        assert 'luthier_pool_replicas{pool="python",state="ready"}' in text
        assert 'luthier_replicas{model="m0"' not in text
        assert set(re.findall(r'model="([^"]*)"', text)) == {"m0"}


def counted(running, family, **labels):
    """A metric, summed over the rows that have these labels."""
    text = running.request("GET", "/metrics", admin=True)[2].decode()
    rows = [
        (dict(re.findall(r'(\w+)="([^"]*)"', row)), float(row.rpartition(" ")[2]))
        for row in text.splitlines()
        if re.match(rf"{family}[{{ ]", row)
    ]
    return sum(value for row, value in rows if labels.items() <= row.items())


def test_what_shared_replicas_do_is_counted(card_of, home):
    """Loads, evictions, batches and what they were off; memory and its budget; refusals by reason."""
    with gateway({**CLOCKWORK, "clockwork.memory_mb": 1}, home, card_of("m0")) as running:
        running.call(running.engine.deploy(card_of("slow", 1, load_s=0.2)))
        for name in ("m0", "slow", "m0", "m0"):
            assert ask(running, name, timeout_us=5_000_000)[0] == 200
        assert ask(running, "slow", timeout_us=50_000)[0] == 503

        def ended(action, outcome="ok"):
            return counted(running, "luthier_pool_actions_total", action=action, outcome=outcome)

        assert (ended("load"), ended("unload"), ended("infer")) == (3, 2, 4)
        assert counted(running, "luthier_pool_load_seconds_count", pool="python") == 3
        for action, count in (("load", 3), ("infer", 4)):
            sides = ("overestimate", "underestimate")
            names = [f"luthier_pool_{side}_seconds_count" for side in sides]
            assert sum(counted(running, name, action=action) for name in names) == count
        assert counted(running, "luthier_pool_models", pool="python") == 2
        assert counted(running, "luthier_pool_budget_pages") == 1
        assert counted(running, "luthier_pool_loaded_models") == 1
        assert counted(running, "luthier_pool_loaded_pages") == 1
        reason = RejectionReason.CANNOT_LOAD.value
        assert counted(running, "luthier_rejected_requests_total", model="slow", reason=reason) == 1
        assert counted(running, "luthier_rejected_requests_total") == 1


@pytest.mark.parametrize(("deadline_s", "lines"), [(None, 1), (0.5, 0)])
def test_a_deadline_that_was_not_chosen_is_told_once(card_of, caplog, deadline_s, lines):
    """At the start, whatever is deployed later."""
    settings = CLOCKWORK
    if deadline_s is not None:
        settings = {**CLOCKWORK, "scheduling.default_deadline_s": deadline_s}
    with gateway(settings, Processes(), card_of("m0")) as running:
        running.call(running.engine.deploy(card_of("m1", 1)))
    said = [line for line in caplog.messages if "set scheduling.default_deadline_s" in line]
    assert len(said) == lines


def test_a_version_that_comes_back_is_another_one(card_of):
    """The one of before may still be unloaded after this one was loaded: replicas must not confuse them."""
    with gateway(CLOCKWORK, Processes(), card_of("other")) as running:
        numbers = []
        for number in range(3):
            running.call(running.engine.deploy(card_of("m", number)))
            assert ask(running, "m") == (200, 1 + number)
            place = running.engine.resolve("m", None).placement
            numbers.append(place.dispatcher.number_of(place.model))
            running.call(running.engine.retire_model("m", within_s=0))
        assert len(set(numbers)) == 3


def behind_its_back(running, worker, *messages):
    """Tell a replica what the controller does not know of."""
    dispatcher = running.engine.resolve("m", None).dispatcher
    running.do(dispatcher._workers[worker].send, messages)


def foreign_load(card, pages):
    """A LOAD of a model that nobody planned."""
    message = wire.LoadMessage(
        *(0, 0, 0),
        model=77,
        name="foreign",
        version="1",
        kind=card.kind,
        path=str(card.path),
        threads=1,
        samples=None,
        max_items=1,
        warmup_s=0.0,
        device="auto",
        pages=pages,
        budget=pages,
    )
    return wire.encode_load(message)


@pytest.mark.parametrize("what", ["less", "more"])
def test_a_replica_whose_memory_is_out_of_step_is_replaced(card_of, what):
    """It lacks a model that was loaded, or has no room that is free: who waits is answered by the next one."""
    settings = {**CLOCKWORK, "clockwork.memory_mb": 2, "scheduling.default_deadline_s": 8}
    card = card_of("m", 1)
    with gateway(settings, Processes(), card) as running:
        if what == "less":
            assert ask(running, "m") == (200, 2)
            place = running.engine.resolve("m", None).placement
            number = place.dispatcher.number_of(place.model)
            behind_its_back(running, worker_of(running), wire.encode_unload(0, model=number))
        else:
            budget = shared_model.budget_of(running.engine.settings)
            behind_its_back(running, worker_of(running), foreign_load(card, budget))
        for _ in range(3):
            assert ask(running, "m") == (200, 2)
        assert len(running.home.started) <= 3  # one profiles
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
        assert ["memory" in death["text"] for death in deaths] == [True]


def worker_of(running):
    (one,) = replicas(running)
    return one["worker"]
