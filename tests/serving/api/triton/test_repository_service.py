"""Triton's extensions over the real engine: what is counted, and models that come and go by name."""

import asyncio
import contextlib
import json

import grpc
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.parsing.bounded_json import MAX_JSON_BYTES
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.api.triton.repository_service import NotAllowed, RepositoryService
from serving.api.triton.routes import TritonRoutes
from serving.engine.repository import Repository
from serving.errors import InvalidRequest, ServingError
from serving.model_spec import ModelSpec
from tests.fakes.grpc_running import grpc_gateway
from tests.fakes.replicas import FakeHome
from tests.fakes.running import CARD, gateway
from tests.serving.engine.test_repository import put

OTHER = ModelSpec(name="other", version="4", kind="echo", path=None)


@contextlib.contextmanager
def hub_gateway(
    values=None, home=None, *, root=None, is_controlled=True, max_json_bytes=MAX_JSON_BYTES
):
    """A gateway with the extensions, over the models echo (served) and other (not served)."""
    with gateway(values, home) as running:
        repository = None
        if root is not None:
            repository = Repository(root, running.engine, kept=1, poll_s=60.0)
            running.call(repository.open())
        hub = RepositoryService(
            running.engine, repository, specs=[CARD, OTHER], is_controlled=is_controlled
        )
        extension = TritonRoutes(hub, max_json_bytes)
        running.listener.routes = Router(
            oip=OpenInferenceRoutes(running.engine, extension, max_json_bytes),
            tfs=TensorFlowRoutes(running.engine, max_json_bytes=max_json_bytes),
            otherwise=OpenInferenceRoutes(running.engine, None, max_json_bytes),
        )
        running.hub = hub
        yield running
        running.call(extension.close())


def infer(running, model="echo", rows=1, value=1):
    tensor = {"name": "data", "shape": [rows, 1], "datatype": "UINT8", "data": [value] * rows}
    return running.json("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})


def stats(running, path="/v2/models/echo/stats"):
    status, answer = running.json("GET", path)
    assert status == 200
    return answer["model_stats"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/models/unknown:predict",
        "/v2/models/echo/infer",
        "/v2/repository/index",
        "/v2/repository/models/other/load",
    ],
)
def test_every_route_that_reads_json_has_its_limit(path):
    """Also those that read little of it, and for a model that is not known."""
    with hub_gateway(max_json_bytes=2000) as running:
        status, answer = running.json("POST", path, {"more": "a" * 2000})
    assert (status, "2000 bytes (server.max_json_bytes)" in answer["error"]) == (413, True)


def test_statistics_of_requests_and_batches():
    """Items, batches, requests and failures are conserved; durations are of the right size."""
    home = FakeHome()
    home.exec_s = 0.02
    with hub_gateway({"batching.max_size": 4}, home) as running:
        for rows in (1, 2, 10):
            assert infer(running, rows=rows)[0] == 200
        assert running.json("POST", "/v2/models/echo/infer", {})[0] == 400
        (found,) = stats(running)
        assert (found["name"], found["version"]) == ("echo", "1")
        assert (found["inference_count"], found["execution_count"]) == (13, 5)
        stages = found["inference_stats"]
        assert stages["success"]["count"] == 3
        assert stages["fail"]["count"] == 1
        assert 0 < stages["fail"]["ns"] < stages["success"]["ns"]
        assert stages["compute_infer"] == {"count": 5, "ns": 100_000_000}
        assert stages["queue"]["count"] == 5
        assert stages["success"]["ns"] > 60_000_000
        sizes = {one["batch_size"]: one["compute_infer"] for one in found["batch_stats"]}
        assert {size: one["count"] for size, one in sizes.items()} == {1: 1, 2: 2, 4: 2}
        assert sizes[4]["ns"] == 40_000_000
        assert found["last_inference"] > 1_700_000_000_000


def test_waiting_is_counted_as_queue():
    """Requests behind a running batch wait in the queue, and it shows."""
    home = FakeHome()
    home.exec_s = 0.05
    with hub_gateway({"batching.max_size": 4}, home) as running:
        assert infer(running, rows=16)[0] == 200
        (found,) = stats(running)
        assert found["inference_stats"]["queue"]["ns"] > 0.1e9


def test_statistics_of_the_cache():
    """A hit is a success, and no inference."""
    with hub_gateway({"cache.capacity_mb": 1}) as running:
        for value in (1, 2, 1, 1):
            assert infer(running, value=value)[0] == 200
        (found,) = stats(running)
        assert found["inference_count"] == 2
        stages = found["inference_stats"]
        assert stages["success"]["count"] == 4
        assert (stages["cache_hit"]["count"], stages["cache_miss"]["count"]) == (2, 2)


def test_statistics_of_models_and_versions():
    """Of all, of one model, of one version; unknown ones are 404."""
    with hub_gateway() as running:
        running.call(running.engine.deploy(OTHER))
        second = ModelSpec(name="echo", version="2", kind="echo", path=None)
        running.call(running.engine.deploy(second))

        def names(path):
            return [(one["name"], one["version"]) for one in stats(running, path)]

        assert names("/v2/models/stats") == [("echo", "1"), ("echo", "2"), ("other", "4")]
        assert names("/v2/models/echo/stats") == [("echo", "1"), ("echo", "2")]
        assert names("/v2/models/echo/versions/stable/stats") == [("echo", "2")]
        assert running.json("GET", "/v2/models/nobody/stats")[0] == 404
        assert running.json("GET", "/v2/models/echo/versions/9/stats")[0] == 404
        extensions = running.json("GET", "/v2")[1]["extensions"]
        assert {"binary_tensor_data", "statistics", "model_repository"} <= set(extensions)


def test_models_come_and_go_by_name():
    """Load, ask, unload; twice, as nothing is left behind."""
    with (
        hub_gateway() as running,
        triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client,
    ):
        for _ in range(2):
            assert infer(running, "other")[0] == 404
            client.load_model("other")
            client.load_model("other")
            assert infer(running, "other")[0] == 200
            assert infer(running, "other")[1]["model_version"] == "4"
            states = {one["name"]: one["state"] for one in client.get_model_repository_index()}
            assert states == {"echo": "READY", "other": "READY"}
            client.unload_model("other")
            states = {one["name"]: one["state"] for one in client.get_model_repository_index()}
            assert states == {"echo": "READY", "other": "UNAVAILABLE"}
        with pytest.raises(InferenceServerException, match="did you mean 'other'"):
            client.load_model("othr")
        with pytest.raises(InferenceServerException, match="is not known"):
            client.unload_model("other")
        assert infer(running)[0] == 200


def test_a_model_with_several_versions_is_unloaded_whole():
    """The current one and all others; what was taken is answered."""
    with hub_gateway() as running:
        second = ModelSpec(name="echo", version="2", kind="echo", path=None)
        running.call(running.engine.deploy(second))
        assert running.request("POST", "/v2/repository/models/echo/unload")[0] == 200
        assert infer(running)[0] == 404
        assert running.do(running.engine.models) == ()
        assert running.json("GET", "/v2/health/ready")[0] == 503


def test_a_load_that_fails_leaves_no_settings():
    """The reason is told and listed; the configuration that came with it is forgotten."""
    home = FakeHome()
    with hub_gateway(home=home) as running:
        home.load_error = "no such layer"
        config = json.dumps({"parameters": {"config": json.dumps({"max_batch_size": 3})}})
        status, _, answer = running.request("POST", "/v2/repository/models/other/load", config)
        assert status == 500
        assert b"no such layer" in answer
        index = json.loads(running.request("POST", "/v2/repository/index")[2])
        assert [one["reason"] for one in index if one["name"] == "other"] == [
            "model other cannot be loaded: no such layer"
        ]
        assert running.engine.settings.models == {}


def test_a_load_with_a_configuration():
    """Fields that mean a setting here set it for this model alone, and are told back."""
    with (
        hub_gateway() as running,
        triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client,
    ):
        before = client.get_model_config("echo")
        client.load_model("other")
        config = client.get_model_config("other") | {
            "max_batch_size": 3,
            "dynamic_batching": {"max_queue_delay_microseconds": 500},
            "instance_group": [{"count": 2}, {}],
        }
        client.load_model("other", config=json.dumps(config))
        found = client.get_model_config("other")
        assert found["max_batch_size"] == 3
        assert found["dynamic_batching"]["max_queue_delay_microseconds"] == 500
        assert found["instance_group"][0]["count"] == 3
        assert client.get_model_config("echo") == before


@pytest.mark.parametrize(
    "config",
    [
        {"sequence_batching": {}},
        {"max_batch_size": "8"},
        {"max_batch_size": 10**9},
        {"dynamic_batching": {"max_queue_delay_microseconds": "x"}},
        {"instance_group": [{"count": "2"}]},
        {"instance_group": 2},
        {"response_cache": {"enable": 1.5}},
    ],
)
def test_configurations_that_cannot_be(config):
    """They are refused before anything changes."""
    with hub_gateway() as running:
        body = json.dumps({"parameters": {"config": json.dumps(config)}})
        status, _, answer = running.request("POST", "/v2/repository/models/other/load", body)
        assert status == 400, answer
        assert running.engine.generation == 1


def test_control_is_off_unless_it_is_allowed():
    """403, with the setting that allows it; statistics and index are there."""
    with hub_gateway(is_controlled=False) as running:
        for verb in ("load", "unload"):
            status, answer = running.json("POST", f"/v2/repository/models/echo/{verb}")
            assert status == 403
            assert "server.model_control=explicit" in answer["error"]
        assert infer(running)[0] == 200
        assert len(stats(running)) == 1


def test_models_of_the_folder(tmp_path):
    """The newest version is loaded; unloading takes all, and the watch does not bring them back."""
    put(tmp_path, "m", "1")
    with hub_gateway(root=tmp_path, home=FakeHome()) as running:
        put(tmp_path, "m", "2")
        put(tmp_path, "n", "7")
        load = "/v2/repository/models/{}/load"
        assert running.request("POST", load.format("m"))[0] == 200
        assert infer(running, "m")[1]["model_version"] == "2"
        assert running.request("POST", load.format("n"))[0] == 200
        assert infer(running, "n")[1]["model_version"] == "7"
        before = len(running.home.replicas)
        assert running.request("POST", load.format("n"))[0] == 200
        assert len(running.home.replicas) == before
        assert running.request("POST", "/v2/repository/models/m/unload")[0] == 200
        for _ in range(2):
            running.call(running.hub._repository.reconcile())
        assert infer(running, "m")[0] == 404
        index = json.loads(running.request("POST", "/v2/repository/index")[2])
        states = {(one["name"], one["version"]): one["state"] for one in index}
        assert states[("m", "2")] == states[("m", "1")] == "UNAVAILABLE"
        assert states[("n", "7")] == "READY"
        assert running.request("POST", load.format("m"))[0] == 200
        assert infer(running, "m")[0] == 200


def test_over_grpc():
    """The same hub behind the other port, with its codes."""
    with grpc_gateway() as port, triton_grpc.InferenceServerClient(port.address) as client:
        engine = port.running.engine
        port.routes._hub = RepositoryService(engine, None, specs=[OTHER], is_controlled=True)
        client.load_model("other")
        assert infer(port.running, "other")[0] == 200
        (found,) = client.get_inference_statistics("other").model_stats
        assert found.inference_count == 1
        port.routes._hub = RepositoryService(engine, None, specs=[OTHER], is_controlled=False)
        with pytest.raises(InferenceServerException) as refused:
            client.unload_model("other")
        assert refused.value.status() == str(grpc.StatusCode.PERMISSION_DENIED)


def test_statistics_that_are_not_shown():
    """Over neither port; what models there are is told all the same."""
    with grpc_gateway() as port, triton_grpc.InferenceServerClient(port.address) as client:
        engine = port.running.engine
        hub = RepositoryService(
            engine, None, specs=[OTHER], is_controlled=False, shows_statistics=False
        )
        port.routes._hub = hub
        with pytest.raises(
            InferenceServerException, match="metrics only on the admin port"
        ) as refused:
            client.get_inference_statistics("echo")
        assert refused.value.status() == str(grpc.StatusCode.PERMISSION_DENIED)
        assert {one.name for one in client.get_model_repository_index().models} == {"echo", "other"}
        with pytest.raises(NotAllowed):
            hub.statistics(None, None)


def test_the_texts_of_refusals_are_invalid_requests():
    """What cannot be set is named, with what can."""
    with hub_gateway() as running, pytest.raises(InvalidRequest, match="expected max_batch_size"):
        running.call(running.hub.load("other", {"optimization": {}}))


def test_a_load_that_fails_takes_nobody_elses_change_back():
    """Settings that an operator changes while a load is under way stay, whatever becomes of the load."""
    with hub_gateway() as running:

        async def slow(_worker, **_how):
            await asyncio.sleep(0.2)
            raise OSError("no more processes")

        async def load():
            running.home.start = slow
            loading = asyncio.create_task(running.hub.load("other", {"max_batch_size": 4}))
            await asyncio.sleep(0.05)
            return loading

        loading = running.call(load())
        values = {"settings": {"batching.timeout_us": 777}, "keep_learned": True}
        assert running.json("PATCH", "/admin/settings", values, admin=True)[0] == 200
        assert running.call(asyncio.wait({loading}))[1] == set()
        assert isinstance(loading.exception(), ServingError)
        assert running.do(lambda: running.engine.settings.batching.timeout_us) == 777
