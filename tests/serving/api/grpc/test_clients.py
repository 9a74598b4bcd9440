"""The gRPC port as clients of others see it: Triton's client, sync and asyncio, and its generated stubs."""

import asyncio
import concurrent.futures
import threading
import time

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2, service_pb2
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from serving import __version__, wire
from serving.api.open_inference import codec
from serving.api.triton import extensions
from serving.values import ITEM_BYTES
from tests.fakes.grpc_running import FakeHub, grpc_gateway
from tests.fakes.replicas import FakeHome
from tests.fakes.submissions import submissions

CODES = grpc.StatusCode


@pytest.fixture(scope="module")
def port():
    with grpc_gateway({"batching.max_size": 4, "server.max_body_bytes": 2_000_000}) as it:
        yield it


@pytest.fixture(scope="module")
def client(port):
    with triton.InferenceServerClient(port.address) as it:
        yield it


@pytest.fixture(scope="module")
def stub(port):
    with grpc.insecure_channel(port.address) as channel:
        yield GRPCInferenceServiceStub(channel)


def tensor(array):
    made = triton.InferInput("data", list(array.shape), "UINT8")
    made.set_data_from_numpy(array)
    return made


def raw_request(array, **more):
    made = service_pb2.ModelInferRequest(model_name="echo", **more)
    made.inputs.add(name="data", datatype="UINT8", shape=array.shape)
    made.raw_input_contents.append(array.tobytes())
    return made


ROW = np.arange(4, dtype=np.uint8)[None]


def until(condition, seconds=10.0):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_health_and_metadata(client):
    """Health, server and model metadata, by name and by version."""
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("echo")
    assert client.is_model_ready("echo", "1")
    server = client.get_server_metadata()
    assert (server.name, server.version) == ("luthier", __version__)
    assert server.extensions == [*codec.EXTENSIONS, *extensions.EXTENSIONS]
    model = client.get_model_metadata("echo", as_json=True)
    assert model["name"] == "echo"
    assert model["versions"] == ["1"]
    assert model["inputs"] == [{"name": "data", "datatype": "UINT8", "shape": ["-1", "-1"]}]


@pytest.mark.parametrize("ask", ["is_model_ready", "get_model_metadata"])
def test_unknown_models(client, ask):
    """NOT_FOUND with the known ones, for names and for versions."""
    for name, version, known in (
        ("ecco", "", "known: echo"),
        ("echo", "2", "versions and labels: 1"),
    ):
        with pytest.raises(InferenceServerException, match=known) as error:
            getattr(client, ask)(name, version)
        assert error.value.status() == "StatusCode.NOT_FOUND"


def test_raw_inference(client):
    """What the client sends by default: raw contents, also again with other data, also with an id."""
    for start in range(3):
        array = np.arange(start, start + 8, dtype=np.uint8).reshape(2, 4)
        result = client.infer("echo", [tensor(array)], model_version="1")
        np.testing.assert_array_equal(result.as_numpy("data"), array)
        assert result.get_response().model_name == "echo"
        assert result.get_response().model_version == "1"
    result = client.infer(
        "echo", [tensor(ROW)], request_id="7", outputs=[triton.InferRequestedOutput("data")]
    )
    assert result.get_response().id == "7"
    np.testing.assert_array_equal(result.as_numpy("data"), ROW)


def test_typed_inference(stub):
    """Typed contents are answered in typed contents."""
    made = service_pb2.ModelInferRequest(model_name="echo", id="i")
    made.inputs.add(name="data", datatype="UINT8", shape=[2, 2]).contents.uint_contents.extend(
        [0, 1, 128, 255]
    )
    answer = stub.ModelInfer(made)
    assert answer.id == "i"
    assert list(answer.outputs[0].shape) == [2, 2]
    assert list(answer.outputs[0].contents.uint_contents) == [0, 1, 128, 255]
    assert not answer.raw_output_contents


def test_a_request_above_the_batch_size(client):
    """Ten items over batches of four come back as one answer, in order."""
    array = np.arange(30, dtype=np.uint8).reshape(10, 3)
    np.testing.assert_array_equal(client.infer("echo", [tensor(array)]).as_numpy("data"), array)


def test_large_messages(client, port):
    """Bodies that need many frames and window updates, both ways."""
    array = np.random.default_rng(5).integers(0, 255, (2, 990_000), dtype=np.uint8)
    np.testing.assert_array_equal(client.infer("echo", [tensor(array)]).as_numpy("data"), array)


def test_a_message_above_the_limit(client):
    """RESOURCE_EXHAUSTED with the limit; the connection goes on."""
    with pytest.raises(InferenceServerException, match=r"server\.max_body_bytes") as error:
        client.infer("echo", [tensor(np.zeros((1, 3_000_000), dtype=np.uint8))])
    assert error.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    client.infer("echo", [tensor(ROW)])


def test_many_calls_at_a_time(client):
    """Every answer goes to its own call."""
    arrays = [np.full((1, 1 + i % 50), i % 256, dtype=np.uint8) for i in range(300)]
    with concurrent.futures.ThreadPoolExecutor(20) as threads:
        results = list(
            threads.map(lambda a: client.infer("echo", [tensor(a)]).as_numpy("data"), arrays)
        )
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result, array)


async def test_the_asyncio_client(port):
    """The same with the client's asyncio form."""
    async with triton_aio.InferenceServerClient(port.address) as client:
        assert await client.is_server_ready()
        arrays = [np.full((1, 1 + i % 50), i % 256, dtype=np.uint8) for i in range(200)]
        results = await asyncio.gather(*[client.infer("echo", [tensor(array)]) for array in arrays])
    for array, result in zip(arrays, results, strict=True):
        np.testing.assert_array_equal(result.as_numpy("data"), array)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (lambda r: setattr(r, "model_name", "nobody"), CODES.NOT_FOUND, "known: echo"),
        (lambda r: setattr(r, "model_version", "9"), CODES.NOT_FOUND, "version '9'"),
        (lambda r: setattr(r.inputs[0], "name", "x"), CODES.INVALID_ARGUMENT, "takes exactly data"),
        (lambda r: setattr(r.inputs[0], "datatype", "FP32"), CODES.INVALID_ARGUMENT, "takes UINT8"),
        (lambda r: r.inputs[0].shape.append(1), CODES.INVALID_ARGUMENT, "takes [-1, -1]"),
        (lambda r: r.raw_input_contents.append(b""), CODES.INVALID_ARGUMENT, "2 entries for 1 inputs"),
        (lambda r: r.inputs[0].contents.uint_contents.append(1), CODES.INVALID_ARGUMENT, "one of the two"),
        (lambda r: r.outputs.add(name="z"), CODES.INVALID_ARGUMENT, "not one of model"),
    ],
)  # fmt: skip
def test_bad_requests(stub, change, code, text):
    """Each has its code, and a text that says what was expected."""
    made = raw_request(ROW)
    change(made)
    with pytest.raises(grpc.RpcError) as error:
        stub.ModelInfer(made)
    assert error.value.code() is code
    assert text in error.value.details()


def test_what_is_no_message(port):
    """Bytes that are no protobuf are a bad argument, of any method."""
    with grpc.insecure_channel(port.address) as channel:
        for method in ("ModelInfer", "ModelMetadata"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            with pytest.raises(grpc.RpcError) as error:
                call(b"\xff\xff\xff")
            assert error.value.code() is CODES.INVALID_ARGUMENT


def test_unknown_methods(port):
    """UNIMPLEMENTED, with what there is."""
    with grpc.insecure_channel(port.address) as channel:
        for path in ("/inference.GRPCInferenceService/Nothing", "/other.Service/ModelInfer", "/x"):
            with pytest.raises(grpc.RpcError) as error:
                channel.unary_unary(path)(b"")
            assert error.value.code() is CODES.UNIMPLEMENTED


def test_an_unknown_stream_is_answered_at_its_head(port):
    """Its client has said nothing yet, and goes on saying nothing."""
    with grpc.insecure_channel(port.address) as channel:
        for path in ("/inference.GRPCInferenceService/Nothing", "/grpc.health.v1.Health/Watch"):
            never = threading.Event()
            call = channel.stream_stream(path)(iter(never.wait, None), timeout=20)
            with pytest.raises(grpc.RpcError) as error:
                next(call)
            never.set()
            assert error.value.code() is CODES.UNIMPLEMENTED


def test_two_messages_where_one_belongs(port):
    """The call is refused, not hung."""
    with grpc.insecure_channel(port.address) as channel:
        call = channel.stream_stream("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            list(call(iter([b"", b""])))
        assert error.value.code() is CODES.UNIMPLEMENTED


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_compressed_messages(encoding):
    """Requests in both encodings, and answers where they are long; what is too large in the end is refused."""
    with (
        grpc_gateway({"server.max_body_bytes": 200_000}, gzip_min_bytes=2000) as port,
        triton.InferenceServerClient(port.address) as client,
    ):
        for size in (4, 5000):
            row = np.arange(size, dtype=np.uint8)[None]
            found = client.infer("echo", [tensor(row)], compression_algorithm=encoding)
            np.testing.assert_array_equal(found.as_numpy("data"), row)
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match=r"RESOURCE_EXHAUSTED.*max_body_bytes"):
            large = np.zeros((1, 300_000), dtype=np.uint8)
            client.infer("echo", [tensor(large)], compression_algorithm=encoding)
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.infer("nobody", [tensor(ROW)], compression_algorithm=encoding)


@pytest.mark.parametrize("service", [b"", b"inference.GRPCInferenceService"])
def test_the_health_service(port, service):
    """gRPC's own health check, for the server and for the service, as bytes of its messages."""
    with grpc.insecure_channel(port.address) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"\x0a" + bytes([len(service)]) + service) == b"\x08\x01"
        assert check(b"") == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as error:
            check(b"\x0a\x01x")
        assert error.value.code() is CODES.NOT_FOUND


@pytest.fixture
def held():
    """A gateway whose replica holds what it gets, and that home."""
    home = FakeHome()
    with grpc_gateway({"batching.max_size": 1, "scheduling.queue_capacity": 3}, home) as it:
        home.hold.set()
        yield it, home
        home.hold.clear()
        home.release.set()


def test_a_deadline_drops_the_work(held):
    """The call's own deadline ends it, and nothing of it stays in the queue."""
    port, _ = held
    with grpc.insecure_channel(port.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(raw_request(ROW), timeout=0.2)
            assert error.value.code() is CODES.DEADLINE_EXCEEDED
        assert until(lambda: port.unfinished == 0)


def test_the_parameter_timeout(held):
    """The server ends what its client would wait for; the smaller of parameter and deadline counts."""
    port, _ = held
    with triton.InferenceServerClient(port.address) as client:
        for more in ({"timeout": 100_000}, {"timeout": 100_000, "client_timeout": 20}):
            with pytest.raises(InferenceServerException, match="deadline passed") as error:
                client.infer("echo", [tensor(ROW)], **more)
            assert error.value.status() == "StatusCode.DEADLINE_EXCEEDED"


def test_the_deadline_reaches_the_engine(held):
    """A deadline that the client does not watch itself is kept by the server."""
    port, _ = held
    with grpc.insecure_channel(port.address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(raw_request(ROW).SerializeToString(), metadata=[("grpc-timeout", "100m")])
        assert error.value.code() is CODES.DEADLINE_EXCEEDED
        assert "deadline passed" in error.value.details()


def test_application_and_priority_reach_the_queue(port):
    """The call's metadata and the request's parameter, also where the request is a repeated one."""
    with (
        triton.InferenceServerClient(port.address) as client,
        submissions(port.running) as seen,
    ):
        for _ in range(2):
            client.infer("echo", [tensor(ROW)], priority=3, headers={"x-application": "digits"})
        client.infer("echo", [tensor(ROW)])
    assert seen == [(3, "digits"), (3, "digits"), (0, "")]


def test_a_cancelled_call(held):
    """The client's cancellation drops the work and is counted as 499."""
    port, _ = held
    with grpc.insecure_channel(port.address) as channel:
        future = GRPCInferenceServiceStub(channel).ModelInfer.future(raw_request(ROW))
        assert until(lambda: port.unfinished == 1)
        future.cancel()
        assert until(lambda: port.unfinished == 0)
        assert port.responses == {499: 1}


def test_a_client_that_goes_away(held):
    """A lost connection drops the work of all its calls."""
    port, _ = held
    channel = grpc.insecure_channel(port.address)
    stub = GRPCInferenceServiceStub(channel)
    futures = [stub.ModelInfer.future(raw_request(ROW)) for _ in range(3)]
    assert until(lambda: port.unfinished == 3)
    channel.close()
    assert until(lambda: port.unfinished == 0)
    assert all(future.code() is CODES.CANCELLED for future in futures)
    assert until(lambda: not port.listener.connections)


def test_a_full_queue(held):
    """RESOURCE_EXHAUSTED at once."""
    port, home = held
    with grpc.insecure_channel(port.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        futures = [stub.ModelInfer.future(raw_request(ROW)) for _ in range(12)]
        # at most two are with the replica and three in the queue
        assert until(lambda: 12 - sum(f.done() for f in futures) == port.unfinished <= 5)
        refused = [future for future in futures if future.done()]
        assert {future.code() for future in refused} == {CODES.RESOURCE_EXHAUSTED}
        home.hold.clear()
        home.release.set()
        taken = [future for future in futures if future not in refused]
        assert all(future.result(10).raw_output_contents for future in taken)


def test_draining(held):
    """Not ready at once, what is in flight is answered, new calls are refused, connections close."""
    port, home = held
    with grpc.insecure_channel(port.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        future = stub.ModelInfer.future(raw_request(ROW))
        assert until(lambda: port.unfinished == 1)
        port.running.do(port.running.engine.drain)
        assert not stub.ServerReady(service_pb2.ServerReadyRequest()).ready
        port.running.do(port.listener.drain)
        home.hold.clear()
        home.release.set()
        assert future.result(10).raw_output_contents == [ROW.tobytes()]
        assert until(lambda: not port.listener.connections)


def test_model_failures():
    """A model that raises is INTERNAL, or INVALID_ARGUMENT where it says that the input was wrong."""
    home = FakeHome()
    with grpc_gateway({}, home) as port, grpc.insecure_channel(port.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for status, code in (
            (wire.ActionStatus.INVALID_INPUT, CODES.INVALID_ARGUMENT),
            (wire.ActionStatus.MODEL_RAISED, CODES.INTERNAL),
        ):
            home.entry_status = status
            with pytest.raises(grpc.RpcError) as error:
                stub.ModelInfer(raw_request(ROW))
            assert error.value.code() is code


def test_the_extensions():
    """Statistics, index, load and unload through Triton's client."""
    hub = FakeHub()
    with grpc_gateway(hub=hub) as port, triton.InferenceServerClient(port.address) as client:
        assert "statistics" in client.get_server_metadata().extensions
        for name, version in (("", ""), ("echo", ""), ("echo", "1")):
            (found,) = client.get_inference_statistics(name, version).model_stats
            assert (found.name, found.version) == ("echo", "1")
            assert found.inference_count == 5
            assert found.last_inference == 1_700_000_000_250
            assert found.inference_stats.queue.ns == 502_000_000
            assert found.batch_stats[0].compute_infer.ns == 3_000_000
            assert found.inference_stats.HasField("cache_hit")
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.get_inference_statistics("nobody")
        states = [(m.name, m.state) for m in client.get_model_repository_index().models]
        assert states == [("echo", "READY"), ("other", "UNAVAILABLE")]
        client.load_model("other")
        client.load_model("other", config='{"max_batch_size": 4}')
        states = [(m.name, m.state) for m in client.get_model_repository_index().models]
        assert states == [("echo", "READY"), ("other", "READY")]
        client.unload_model("other")
        assert hub.asked == [
            ("load", "other", None),
            ("load", "other", {"max_batch_size": 4}),
            ("unload", "other"),
        ]
        for ask, name, more, text in (
            (client.load_model, "broken", {}, "INTERNAL.*no file"),
            (client.load_model, "faulty", {}, "INTERNAL.*internal error"),
            (client.load_model, "echo", {"config": "[]"}, "INVALID_ARGUMENT.*JSON object"),
            (
                client.load_model,
                "echo",
                {"config": "{}", "files": {"file:1/m": b"x"}},
                "INVALID_ARGUMENT.*files",
            ),
            (client.unload_model, "other", {}, "NOT_FOUND"),
        ):
            with pytest.raises(InferenceServerException, match=text):
                ask(name, **more)


def test_a_configuration():
    """In Triton's message, with its enumerations; of no model there is none."""
    with grpc_gateway(hub=FakeHub()) as port, triton.InferenceServerClient(port.address) as client:
        config = client.get_model_config("echo").config
        assert (config.name, config.platform, config.max_batch_size) == ("echo", "fake", 16)
        (given,) = config.input
        assert (given.name, given.data_type, given.dims) == (
            "data", model_config_pb2.TYPE_UINT8, [-1],
        )  # fmt: skip
        assert config.dynamic_batching.max_queue_delay_microseconds == 300
        assert config.instance_group[0].count == 1
        assert config.version_policy.specific.versions == [1]
        with pytest.raises(InferenceServerException, match="NOT_FOUND"):
            client.get_model_config("nobody")


@pytest.mark.parametrize(
    ("ask", "instead"),
    [
        (lambda client: client.get_system_shared_memory_status(), "raw contents"),
        (lambda client: client.register_system_shared_memory("r", "/r", 8), "raw contents"),
        (lambda client: client.unregister_system_shared_memory(), "raw contents"),
        (lambda client: client.get_cuda_shared_memory_status(), "raw contents"),
        (lambda client: client.register_cuda_shared_memory("r", b"AAAA", 0, 8), "raw contents"),
        (lambda client: client.unregister_cuda_shared_memory(), "raw contents"),
        (lambda client: client.get_trace_settings(), "server.timing=header"),
        (lambda client: client.update_trace_settings(settings={}), "server.timing=header"),
        (lambda client: client.get_log_settings(), "--log-level"),
        (lambda client: client.update_log_settings({}), "--log-level"),
    ],
)
def test_what_is_not_offered(client, ask, instead):
    """UNIMPLEMENTED, with what is offered instead."""
    with pytest.raises(InferenceServerException, match=f"not offered.*{instead}") as refused:
        ask(client)
    assert refused.value.status() == "StatusCode.UNIMPLEMENTED"


def test_clients_that_say_nothing_are_closed():
    """An idle connection is told to go away; its client connects again by itself."""
    with grpc_gateway(idle_s=10.0) as port, triton.InferenceServerClient(port.address) as client:
        assert client.is_server_live()
        now_s = time.monotonic()
        port.running.do(port.listener.sweep, now_s)
        assert len(port.listener.connections) == 1
        port.running.do(port.listener.sweep, now_s + 11)
        assert until(lambda: not port.listener.connections)
        assert client.is_server_live()


CONTENTS = st.fixed_dictionaries(
    {},
    optional={
        "bool_contents": st.lists(st.booleans(), max_size=3),
        "int_contents": st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
        "uint_contents": st.lists(st.integers(0, 2**32 - 1), max_size=4),
        "fp64_contents": st.lists(st.floats(), max_size=3),
        "bytes_contents": st.lists(st.binary(max_size=3), max_size=3),
    },
)
INPUTS = st.tuples(
    st.sampled_from(["data", "data", "x", ""]),
    st.sampled_from(["UINT8", "UINT8", *ITEM_BYTES, "BF16", ""]),
    st.lists(st.integers(0, 3), min_size=2, max_size=2)
    | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3),
    CONTENTS,
)
PARAMETERS = st.dictionaries(
    st.sampled_from(["timeout", "priority", "sequence_id", "x"]),
    st.sampled_from(["bool_param", "int64_param", "string_param", "double_param", "uint64_param"]),
    max_size=2,
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(INPUTS, max_size=2),
    st.lists(st.binary(max_size=9), max_size=2),
    PARAMETERS,
    st.sampled_from(["echo", "echo", "echo", "", "x", "é"]),
    st.sampled_from(["", "", "1", "2"]),
)
def test_any_request_ends_with_a_status(stub, inputs, raw, parameters, name, version):
    """Whatever a client puts together: an answer, or a code that says whose fault it was; never INTERNAL."""
    made = service_pb2.ModelInferRequest(model_name=name, model_version=version)
    for tensor_name, datatype, shape, contents in inputs:
        item = made.inputs.add(name=tensor_name, datatype=datatype, shape=shape)
        for field, values in contents.items():
            getattr(item.contents, field).extend(values)
    made.raw_input_contents.extend(raw)
    for parameter, field in parameters.items():
        value = {"bool_param": True, "string_param": "1", "double_param": 1e7}.get(
            field, 10_000_000
        )
        setattr(made.parameters[parameter], field, value)
    try:
        stub.ModelInfer(made, timeout=10)
    except grpc.RpcError as error:
        assert error.code() in {CODES.INVALID_ARGUMENT, CODES.NOT_FOUND}, error.details()  # noqa: PT017
