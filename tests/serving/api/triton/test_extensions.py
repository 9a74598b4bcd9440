"""Triton's extensions over REST: paths, bodies and answers, and the routes with a hub of models behind them."""

import concurrent.futures
import dataclasses
import json

import pytest
import tritonclient.http as triton
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from serving.api.triton import extensions, unsupported
from serving.api.triton.extensions import ExtensionRequest, ModelConfig, RepositoryIndexEntry
from serving.api.triton.routes import TritonRoutes
from serving.errors import InvalidRequest
from serving.settings import ServingSettings
from serving.values import ModelId, Signature, TensorSpec
from tests.fakes.grpc_running import FakeHub
from tests.fakes.running import gateway


@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/v2/models/stats", ExtensionRequest("stats", None, None)),
        ("/v2/models/m/stats", ExtensionRequest("stats", "m", None)),
        ("/v2/models/m/versions/3/stats/", ExtensionRequest("stats", "m", "3")),
        ("/v2/models/a%2Fb/stats?x=1", ExtensionRequest("stats", "a/b", None)),
        ("/v2/models/stats/stats", ExtensionRequest("stats", "stats", None)),
        ("/v2/models/m/config", ExtensionRequest("config", "m", None)),
        ("/v2/models/m/versions/3/config", ExtensionRequest("config", "m", "3")),
        ("/v2/repository/index", ExtensionRequest("index", None, None)),
        ("/v2/repository/models/m/load", ExtensionRequest("load", "m", None)),
        ("/v2/repository/models/m/unload", ExtensionRequest("unload", "m", None)),
        ("/v2/models/m", None),
        ("/v2/models/m/infer", None),
        ("/v2/repository", None),
        ("/v2/repository/models/m/versions/1/load", None),
        ("/v2", None),
    ],
)
def test_paths(path, ask):
    """Each path of the extensions is known with its model, and no other."""
    assert extensions.parse_path(path) == ask


@pytest.mark.parametrize(
    ("body", "ready"), [(b"", False), (b"{}", False), (b' {"ready": true}', True)]
)
def test_an_index_of_ready_models(body, ready):
    """The body may be missing."""
    assert extensions.only_ready(body) is ready


@pytest.mark.parametrize("body", [b"[", b"[]", b'{"ready": 1}', b"\xff"])
def test_wrong_bodies_of_an_index(body):
    """They are refused."""
    with pytest.raises(InvalidRequest):
        extensions.only_ready(body)


def test_a_configuration_in_a_load():
    """It comes as JSON in a string."""
    assert extensions.load_config(b"") is None
    assert extensions.load_config(b'{"parameters": {}}') is None
    body = json.dumps({"parameters": {"config": '{"max_batch_size": 4}'}}).encode()
    assert extensions.load_config(body) == {"max_batch_size": 4}


@pytest.mark.parametrize(
    "parameters",
    [[], {"config": 5}, {"config": "x"}, {"config": "[]"}, {"config": "[" * 100_000}, {"file:1/m.onnx": "AA=="}],
    ids=["no object", "number", "no JSON", "array", "deep", "file"],
)  # fmt: skip
def test_what_a_load_cannot_have(parameters):
    """Configurations that are none, and files."""
    with pytest.raises(InvalidRequest):
        extensions.load_config(json.dumps({"parameters": parameters}).encode())


@given(st.binary(max_size=60))
def test_any_body(body):
    """Bodies are read or refused."""
    for read in (extensions.only_ready, extensions.load_config):
        try:
            read(body)
        except InvalidRequest:
            continue


def test_the_index():
    """Only what is ready, when asked."""
    models = [
        RepositoryIndexEntry("a", "1", "READY", ""),
        RepositoryIndexEntry("b", "2", "LOADING", "starts"),
    ]
    assert extensions.index_json(models, ready=False) == [
        {"name": "a", "version": "1", "state": "READY", "reason": ""},
        {"name": "b", "version": "2", "state": "LOADING", "reason": "starts"},
    ]
    assert [m["name"] for m in extensions.index_json(models, ready=True)] == ["a"]


def test_statistics_have_tritons_names():
    """Counts and nanoseconds by stage, over requests and over batches."""
    (model,) = extensions.statistics_json(FakeHub().statistics(None, None))["model_stats"]
    assert model["name"] == "echo"
    assert model["inference_count"] == 5
    assert list(model["inference_stats"]) == [
        "success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss",
    ]  # fmt: skip
    assert model["inference_stats"]["fail"] == {"count": 1, "ns": 250_000_000}
    assert model["batch_stats"] == [
        {
            "batch_size": 5,
            "compute_input": {"count": 1, "ns": 2_000_000},
            "compute_infer": {"count": 1, "ns": 3_000_000},
            "compute_output": {"count": 1, "ns": 4_000_000},
        }
    ]


def test_a_configuration_has_tritons_names():
    """Shapes stand without the batch, settings under the names that Triton has for them."""
    config = extensions.config_json(FakeHub().model_config("echo", None))
    assert config["name"] == "echo"
    assert config["max_batch_size"] == 16
    assert config["input"] == [{"name": "data", "data_type": "TYPE_UINT8", "dims": [-1]}]
    assert config["dynamic_batching"] == {"max_queue_delay_microseconds": 300}
    assert config["instance_group"] == [{"name": "echo", "kind": "KIND_AUTO", "count": 1}]
    assert config["response_cache"] == {"enable": False}
    assert config["version_policy"] == {"specific": {"versions": [1]}}


def test_a_configuration_leaves_out_the_axis_of_the_items():
    """Wherever it lies; an input that all items share keeps its shape, and so does all of a model served whole."""
    signature = Signature(
        inputs=(
            TensorSpec(name="state", datatype="FP32", shape=(2, -1, 128), item_axis=1),
            TensorSpec(name="sr", datatype="INT64", shape=(), item_axis=None),
        ),
        outputs=(TensorSpec(name="text", datatype="BYTES", shape=(-1, 3)),),
        unbatched="",
    )
    given = ModelConfig(ModelId("m", "canary"), signature, ServingSettings())
    config = extensions.config_json(given)
    assert config["max_batch_size"] == ServingSettings().batching.max_size
    assert [tensor["dims"] for tensor in (*config["input"], *config["output"])] == [
        [2, 128],
        [],
        [3],
    ]
    assert config["output"][0]["data_type"] == "TYPE_STRING"
    assert "version_policy" not in config
    whole = dataclasses.replace(signature, unbatched="it says so")
    config = extensions.config_json(given._replace(signature=whole))
    assert config["max_batch_size"] == 0
    assert "dynamic_batching" not in config
    assert [tensor["dims"] for tensor in (*config["input"], *config["output"])] == [
        [2, -1, 128],
        [],
        [-1, 3],
    ]
    assert config["parameters"] == {"unbatched": {"string_value": "it says so"}}


@pytest.mark.parametrize("kind", ["system", "cuda"])
@pytest.mark.parametrize("place", ["", "/region/r"])
@pytest.mark.parametrize("verb", ["status", "register", "unregister"])
def test_shared_memory_is_not_offered(kind, place, verb):
    """The line says what is offered instead."""
    refusal = unsupported.path(f"/v2/{kind}sharedmemory{place}/{verb}")
    assert refusal.status == 501
    assert "binary tensors over REST, raw contents over gRPC" in str(refusal)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("/v2/trace/setting", "server.timing=header"),
        ("/v2/models/m/trace/setting", "server.timing=header"),
        ("/v2/logging", "--log-level"),
        ("/v2/models/systemsharedmemory/infer", None),
        ("/v2/nothing", None),
    ],
)
def test_trace_and_log_settings_are_not_offered(path, text):
    """Nor is anything else refused in their words."""
    refusal = unsupported.path(path)
    assert (refusal is None) if text is None else (text in str(refusal))


class Both:
    """The extensions before the routes that a gateway has."""

    def __init__(self, routes, extension):
        self.routes = routes
        self.extension = extension

    def handle(self, head, body, connection):
        found = self.extension.handle(head, body, connection)
        return self.routes.handle(head, body, connection) if found is None else found


@pytest.fixture
def running():
    hub = FakeHub()
    with gateway() as it:
        routes = TritonRoutes(hub)
        it.listener.routes = Both(it.listener.routes, routes)
        it.hub = hub
        yield it
        it.call(routes.close())


def test_tritons_client(running):
    """What Triton's own REST client makes of the answers."""
    with triton.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
        assert client.is_server_live()
        found = client.get_inference_statistics("echo", "1")["model_stats"]
        assert found[0]["execution_count"] == 1
        assert client.get_inference_statistics()["model_stats"] == found
        assert client.get_model_config("echo")["max_batch_size"] == 16
        for ask in (
            client.get_system_shared_memory_status,
            client.get_cuda_shared_memory_status,
            client.get_trace_settings,
            client.get_log_settings,
        ):
            with pytest.raises(InferenceServerException, match="not offered") as refused:
                ask()
            assert refused.value.status() == "501"
        assert [m["state"] for m in client.get_model_repository_index()] == ["READY", "UNAVAILABLE"]
        client.load_model("other", config='{"max_batch_size": 4}')
        client.unload_model("other")
        with pytest.raises(InferenceServerException, match="no file"):
            client.load_model("broken")
        with pytest.raises(InferenceServerException, match="internal error"):
            client.load_model("faulty")
        with pytest.raises(InferenceServerException, match="is not known"):
            client.unload_model("nobody")
        assert running.hub.asked[:2] == [
            ("load", "other", {"max_batch_size": 4}),
            ("unload", "other"),
        ]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v2/models/echo/stats", 405),
        ("GET", "/v2/repository/index", 405),
        ("GET", "/v2/repository/models/echo/load", 405),
        ("GET", "/v2/models/nobody/stats", 404),
        ("GET", "/v2/models/nobody/config", 404),
    ],
)
def test_refusals(running, method, path, status):
    """Wrong methods and unknown models, in the protocol's form."""
    code, answer = running.json(method, path)
    assert code == status
    assert answer["error"]


def test_loads_at_a_time(running):
    """Each is answered with its own end."""
    names = [f"m{i}" for i in range(10)]
    with concurrent.futures.ThreadPoolExecutor(5) as threads:
        found = threads.map(
            lambda name: running.request("POST", f"/v2/repository/models/{name}/load")[0], names
        )
        assert set(found) == {200}
    assert running.hub.ready == {"echo", *names}
