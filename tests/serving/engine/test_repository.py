"""Models from a folder, over a real gateway with small replicas."""

import asyncio
import concurrent.futures
import dataclasses
import json
import shutil
import threading
import time

import pytest

from serving.engine.repository import Repository
from serving.engine.version_folders import VersionFolder, find_spec, newest, plan_actions, scan
from serving.errors import InvalidRequest, InvalidSettings, ModelLoadFailed, ServingError
from serving.values import ModelId
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway, retired

CARD = "name: any\nversion: 1\nkind: echo\n"


def put(root, name, version, text=CARD):
    folder = root / name / version
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.yaml").write_text(text)
    return folder


def ids(*texts):
    return [ModelId(*text.split("/")) for text in texts]


def test_only_numbered_folders_are_versions(tmp_path):
    """Files, and folders with other names, are something else."""
    put(tmp_path, "a", "1")
    put(tmp_path, "a", "12")
    put(tmp_path, "a", "tmp-13")
    (tmp_path / "readme.txt").write_text("no model")
    assert sorted(scan(tmp_path)) == ids("a/1", "a/12")
    assert newest(["9", "12", "2"], 2) == ["9", "12"]


def test_a_version_is_taken_up_when_two_looks_see_the_same_files():
    """One that is being copied waits; one that failed is tried again when its files change."""
    a1, a2 = ids("a/1", "a/2")
    one, two = (("f", 1, 1),), (("f", 2, 2),)
    there = {a1: VersionFolder(None, one)}
    assert plan_actions(there, {}, {}).load == ()
    assert plan_actions(there, there, {}).load == (a1,)
    assert plan_actions(there, there, {a1: one}).load == ()
    growing = {a1: VersionFolder(None, two)}
    assert plan_actions(growing, there, {}).load == ()
    assert plan_actions(growing, growing, {a1: one}).load == (a1,)
    empty = {a1: VersionFolder(None, ())}
    assert plan_actions(empty, empty, {}).load == ()
    assert plan_actions({}, there, {a1: one, a2: two}).gone == (a1, a2)


def test_what_is_in_a_version_folder(tmp_path):
    """One model file or a card; else the reason."""
    folder = tmp_path / "m" / "3"
    folder.mkdir(parents=True)
    with pytest.raises(ModelLoadFailed, match="found none"):
        find_spec(folder, ModelId("m", "3"))
    (folder / "model.onnx").write_bytes(b"")
    card = find_spec(folder, ModelId("m", "3"))
    assert (card.id, card.kind) == (ModelId("m", "3"), "onnx")
    assert card.sample is None
    (folder / "samples.npz").write_bytes(b"")
    assert find_spec(folder, ModelId("m", "3")).sample == folder / "samples.npz"
    (folder / "model.samples.npz").write_bytes(b"")
    assert find_spec(folder, ModelId("m", "3")).sample == folder / "model.samples.npz"
    (folder / "other.onnx").write_bytes(b"")
    with pytest.raises(ModelLoadFailed, match=r"model\.onnx, other\.onnx"):
        find_spec(folder, ModelId("m", "3"))
    card = find_spec(put(tmp_path, "n", "7"), ModelId("n", "7"))
    assert (card.id, card.kind, card.sample) == (ModelId("n", "7"), "echo", None)
    (tmp_path / "n" / "7" / "samples.npz").write_bytes(b"")
    assert find_spec(tmp_path / "n" / "7", ModelId("n", "7")).sample.name == "samples.npz"


def infer(running, path):
    body = json.dumps(
        {"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [1]}]}
    )
    status, _, answer = running.request("POST", f"/v2/models/{path}/infer", body)
    return status, json.loads(answer).get("model_version")


def opened(running, root, kept=1):
    repository = Repository(root, running.engine, kept=kept, poll_s=0.05)
    running.call(repository.open())
    return repository


def look(running, repository):
    """Two looks: the first sees, the second takes up."""
    for _ in range(2):
        running.call(repository.reconcile())


def test_a_broken_newest_version_does_not_take_the_model_down_at_a_start(tmp_path):
    """The newest that loads serves; what was taken out of service by hand stays out."""
    put(tmp_path, "m", "1")
    put(tmp_path, "m", "2")
    put(tmp_path, "m", "9", "kind: nonsense")
    put(tmp_path, "m", "10", "kind: nonsense")
    with gateway() as running:
        repository = opened(running, tmp_path)
        assert infer(running, "m") == (200, "2")
        assert running.do(running.engine.versions, "m") == ("2",)
        assert running.do(running.engine.states)[ModelId("m", "10")][0] == "failed"
        running.call(repository.unload("m"))
        left_out = running.do(repository.left_out)
        assert list(left_out) == ids("m/2")
    with gateway() as running:
        repository = Repository(tmp_path, running.engine, kept=1, poll_s=0.05)
        running.call(repository.open(left_out))
        assert infer(running, "m")[0] == 404, "it was out of service"


def test_a_roll_back_loads_the_version_before(tmp_path):
    """From the folder where it is not served any more; without one there it is refused."""
    put(tmp_path, "m", "1")
    put(tmp_path, "m", "2")
    with gateway() as running:
        repository = opened(running, tmp_path)
        running.call(repository.roll_back("m"))
        assert infer(running, "m") == (200, "1")
        running.call(repository.roll_back("m"))
        assert infer(running, "m") == (200, "2"), "both are loaded now"
        running.call(repository.set_version("m", "1"))
        shutil.rmtree(tmp_path / "m" / "2")
        look(running, repository)
        with pytest.raises(InvalidRequest, match="no version before '1' to return to"):
            running.call(repository.roll_back("m"))


def test_new_versions_take_over_and_old_ones_leave(tmp_path):
    """The newest at the start; a new one is made current, and those beyond the kept number are retired."""
    put(tmp_path, "m", "1")
    put(tmp_path, "m", "2")
    with gateway() as running:
        repository = opened(running, tmp_path)
        assert infer(running, "m") == (200, "2")
        assert infer(running, "m/versions/1")[0] == 404
        put(tmp_path, "m", "10")
        look(running, repository)
        assert infer(running, "m") == (200, "10")
        assert running.do(running.engine.versions, "m") == ("10",)
        running.call(repository.set_version("m", "1"))
        assert infer(running, "m") == (200, "1")
        look(running, repository)
        assert infer(running, "m") == (200, "1"), "what was set by hand stays"
        shutil.rmtree(tmp_path / "m" / "1")
        look(running, repository)
        assert infer(running, "m") == (200, "10")
        shutil.rmtree(tmp_path / "m")
        look(running, repository)
        assert infer(running, "m")[0] == 404


def test_a_version_that_cannot_be_loaded_changes_nothing_until_it_is_mended(tmp_path):
    """The old one serves; the new one is listed with its reason; its files are looked at again."""
    put(tmp_path, "m", "1")
    with gateway() as running:
        repository = opened(running, tmp_path, kept=2)
        folder = put(tmp_path, "m", "2", "kind: nothing\n")
        look(running, repository)
        assert infer(running, "m") == (200, "1")
        (folder / "model.yaml").write_text(CARD)
        look(running, repository)
        assert infer(running, "m") == (200, "2")
        assert infer(running, "m/versions/1") == (200, "1")


def test_files_that_change_are_loaded_anew(tmp_path):
    """The same number with other files: new replicas, no request lost."""
    put(tmp_path, "m", "1")
    with gateway(home=(home := FakeHome())) as running:
        repository = opened(running, tmp_path)
        before = len(home.replicas)
        put(tmp_path, "m", "1", CARD + "description: other weights\n")
        look(running, repository)
        assert len(home.replicas) == before + 1
        assert infer(running, "m") == (200, "1")
        look(running, repository)
        assert len(home.replicas) == before + 1


def test_a_version_whose_card_cannot_be_read_is_listed_until_its_folder_goes(tmp_path):
    """Whatever is wrong with the folder is that version's failure, and no other version waits for it."""
    put(tmp_path, "m", "1")
    with gateway() as running:
        repository = opened(running, tmp_path, kept=3)
        put(tmp_path, "m", "2", f"name: m\nversion: 1\nkind: onnx\nfile: {'a' * 5000}\n")
        put(tmp_path, "m", "3", 'name: m\nversion: 1\nkind: onnx\nfile: "a\\0b"\n')
        (tmp_path / "m" / "4").mkdir()
        (tmp_path / "m" / "4" / "readme.txt").write_text("no model")
        put(tmp_path, "n", "1")
        look(running, repository)
        assert infer(running, "n") == (200, "1")
        states = running.do(running.engine.states)
        for version, why in (("2", "cannot be read"), ("3", "cannot be read"), ("4", "found none")):
            state, text = states[ModelId("m", version)]
            assert state == "failed"
            assert why in text
            shutil.rmtree(tmp_path / "m" / version)
        look(running, repository)
        assert sorted(running.do(running.engine.states)) == ids("echo/1", "m/1", "n/1")


def test_a_version_that_serves_is_ready_whatever_became_of_its_files(tmp_path):
    """It came from the folder still; that the files of now cannot be loaded is the reason beside it."""
    put(tmp_path, "m", "1")
    with gateway(home=(home := FakeHome())) as running:
        repository = opened(running, tmp_path)
        home.load_error = "out of shape"
        put(tmp_path, "m", "1", CARD + "description: other weights\n")
        look(running, repository)
        state, why = running.do(running.engine.states)[ModelId("m", "1")]
        assert (state, "out of shape" in why) == ("ready", True)
        assert running.do(repository.has_loaded, ModelId("m", "1"))
        running.call(retired(running.engine, "m", "1", within_s=1.0))
        assert ModelId("m", "1") not in running.do(running.engine.states)


def test_the_folder_of_a_version_with_a_share_goes(tmp_path):
    """Its share goes to the current version, and it leaves; the others that went leave in the same look."""
    for name in ("m", "n"):
        put(tmp_path, name, "1")
        put(tmp_path, name, "2")
    with gateway() as running:
        repository = opened(running, tmp_path, kept=2)
        running.do(running.engine.catalogue.set_shares, "m", {"1": 0.5})
        for name in ("m", "n"):
            shutil.rmtree(tmp_path / name / "1")
        look(running, repository)
        for name in ("m", "n"):
            assert running.do(running.engine.versions, name) == ("2",)
        assert infer(running, "m") == (200, "2")


def test_a_version_deployed_by_hand_takes_over_from_a_folder_that_went(tmp_path):
    """Its name need not be a number."""
    put(tmp_path, "m", "1")
    with gateway() as running:
        repository = opened(running, tmp_path)
        card = dataclasses.replace(
            find_spec(tmp_path / "m" / "1", ModelId("m", "1")), version="beta"
        )
        running.call(running.engine.deploy(card, current=False))
        shutil.rmtree(tmp_path / "m")
        look(running, repository)
        assert infer(running, "m") == (200, "beta")


def test_cards_are_read_beside_the_event_loop(tmp_path, monkeypatch):
    """A slow disk, or a large file, holds up no request."""
    readers = []

    def noted(path, id_):
        readers.append(threading.current_thread().name)
        return find_spec(path, id_)

    monkeypatch.setattr("serving.engine.repository.find_spec", noted)
    put(tmp_path, "m", "1")
    with gateway() as running:
        repository = opened(running, tmp_path)
        put(tmp_path, "m", "1", CARD + "description: changed\n")
        look(running, repository)
        loop = running.do(lambda: threading.current_thread().name)
    assert len(readers) == 2
    assert loop not in readers


def test_the_next_version_does_not_wait_for_the_last_one_to_finish(tmp_path):
    """A version that still answers is taken out of service, and the folder is looked at again meanwhile."""
    put(tmp_path, "m", "1")
    home = FakeHome()
    with gateway(home=home) as running, concurrent.futures.ThreadPoolExecutor() as threads:
        repository = opened(running, tmp_path)
        home.hold.set()
        asked = threads.submit(infer, running, "m")
        until_s = time.monotonic() + 5.0
        while not home.replicas[-1].batches and time.monotonic() < until_s:
            time.sleep(0.001)
        home.hold.clear()
        try:
            for version in ("2", "3"):
                put(tmp_path, "m", version)
                look(running, repository)
                assert infer(running, "m") == (200, version)
            assert not asked.done()
        finally:
            home.release.set()
        assert asked.result(10) == (200, "1")


def test_watching_goes_on_after_whatever_failed(tmp_path):
    """A fault that passes, such as no descriptor left, ends no watching."""
    put(tmp_path, "m", "1")
    with gateway() as running:
        repository = opened(running, tmp_path)
        seen = threading.Semaphore(0)

        async def changed():
            seen.release()
            raise OSError(24, "Too many open files")

        async def start():
            return asyncio.create_task(repository.watch(changed))

        watching = running.call(start())
        for version in ("2", "3"):
            put(tmp_path, "m", version)
            assert seen.acquire(timeout=5)
        assert infer(running, "m") == (200, "3")
        running.do(watching.cancel)


def test_a_replica_that_cannot_be_started_for_want_of_descriptors_is_one_error(tmp_path):
    """The version is listed as failed, and what was served still is."""
    put(tmp_path, "m", "1")
    with gateway(home=(home := FakeHome())) as running:
        repository = opened(running, tmp_path, kept=2)

        async def start(*_arguments, **_limits):
            raise OSError(24, "Too many open files")

        home.start = start
        put(tmp_path, "m", "2")
        look(running, repository)
        state, why = running.do(running.engine.states)[ModelId("m", "2")]
        assert (state, "Too many open files" in why) == ("failed", True)
        assert infer(running, "m") == (200, "1")


def test_a_folder_without_models_is_refused(tmp_path):
    """Missing, empty, or nothing in it that loads: one line."""
    with gateway(home=FakeHome()) as running:
        with pytest.raises(InvalidSettings, match="give a folder"):
            opened(running, tmp_path / "none")
        with pytest.raises(InvalidSettings, match="contains no version"):
            opened(running, tmp_path)
        put(tmp_path, "m", "1", "kind: nothing\n")
        opened(running, tmp_path)  # another model is served


def test_the_admin_port_manages_models(tmp_path):
    """Deploy, switch, label, split, shadow, roll back, retire; wrong use is told in one line."""
    with gateway() as running:

        def call(method, path, data=None):
            return running.json(method, f"/admin/models{path}", data, admin=True)

        status, shown = call("POST", "", {"model": "echo", "version": "2", "current": False})
        assert status == 201
        ready = {"state": "ready", "load_s": 0.0}
        assert shown["versions"] == {"1": ready, "2": ready}
        assert shown["current"] == "1"
        assert call("PUT", "/echo/labels/canary", {"version": "2"})[1]["labels"] == {"canary": "2"}
        assert call("PUT", "/echo/traffic", {"shares": {"canary": 0.2}})[1]["shares"] == {"2": 0.2}
        assert call("PUT", "/echo/traffic", {"shares": {}})[1]["shares"] == {}
        assert call("PUT", "/echo/shadow", {"version": "2"})[1]["shadow"] == "2"
        assert call("DELETE", "/echo/shadow")[1]["shadow"] is None
        assert call("PUT", "/echo/current", {"version": "2"})[1]["current"] == "2"
        assert call("POST", "/echo/rollback")[1]["current"] == "1"
        assert call("DELETE", "/echo/labels/canary")[1]["labels"] == {}
        status, answer = call("DELETE", "/echo/labels/canary")
        assert (status, answer["error"]) == (
            404,
            "model 'echo' has no label 'canary' (its labels: none)",
        )
        assert list(call("DELETE", "/echo/versions/2")[1]["versions"]) == ["1"]
        assert [model["name"] for model in call("GET", "")[1]["models"]] == ["echo"]
        for method, path, data, text in (
            ("DELETE", "/echo/versions/9", None, "version '9' is not known"),
            ("PUT", "/echo/current", {}, "no 'version'"),
            ("PUT", "/echo/current", {"version": 2}, 'version is 2, expected a text, as "1"'),
            ("PUT", "/echo/shadow", {"version": None}, "version is null, expected a text"),
            ("POST", "", {"model": "echo", "current": 1}, "current is 1, expected true or false"),
            ("PUT", "/echo/traffic", {"shares": "all"}, 'shares is "all", expected an object'),
            (
                "PUT",
                "/echo/rollback",
                {},
                "PUT /admin/models/echo/rollback is not allowed, use POST",
            ),
            ("PUT", "/echo/shadow", {"verison": "1"}, "expected a JSON object with version"),
            (
                "PUT",
                "/echo/shares",
                {},
                "no route '/admin/models/echo/shares'; available are /admin/models",
            ),
            ("POST", "", {"model": "ecco"}, "did you mean 'echo'"),
            ("POST", "", {"model": "echo", "version": ""}, "expected 1 to 128"),
            ("POST", "", {"model": "echo", "version": "a/b"}, "expected 1 to 128"),
            ("POST", "", {"model": "echo", "version": "\ud800"}, "expected 1 to 128"),
            ("PUT", "/echo/traffic", {"shares": {"1": "all"}}, "expected a number"),
            ("PUT", "/echo/traffic", {"shares": {"1": True}}, "expected a number"),
            ("PUT", "/echo/traffic", {"shares": {"1": 10**400}}, "expected 0 to 1"),
            ("POST", "/echo/rollback", None, "no loaded version"),
        ):
            status, answer = call(method, path, data)
            assert status in {400, 404, 405}
            assert text in answer["error"]


def test_a_repository_with_nothing_that_loads_ends_the_start(tmp_path):
    """Without any model there is nothing to serve."""
    put(tmp_path, "m", "1", "kind: nothing\n")

    class Nothing:
        def models(self):
            return ()

        def __init__(self):
            self.failed = {}

        async def deploy(self, card, *, current):
            raise AssertionError("nothing can be loaded")

    engine = Nothing()
    with pytest.raises(ServingError, match="model"):
        asyncio.run(Repository(tmp_path, engine, kept=1, poll_s=1.0).open())
    assert "missing key" in engine.failed[ModelId("m", "1")]
