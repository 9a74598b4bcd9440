"""The protocols as KServe's own clients speak them: Open Inference over REST and gRPC, and its first one."""

import numpy as np
import pytest

from tests.frameworks.conftest import SLOW, SLOW_S

kserve = pytest.importorskip("kserve", reason="kserve is installed by make test-frameworks")
import grpc  # noqa: E402 - kserve brings these
import httpx  # noqa: E402
from kserve.protocol.infer_type import RequestedOutput  # noqa: E402

pytestmark = pytest.mark.frameworks
CODES = grpc.StatusCode
GIVEN = {
    "text": ("BYTES", np.array([b"lute", "é".encode(), b""], dtype=object)),
    "number": ("FP32", np.array([[1.5, -2], [0, 1e38], [0.1, 7]], dtype=np.float32)),
    "count": ("INT64", np.array([2**62, -(2**53) - 1, 0])),
    "pixel": ("UINT8", np.array([[0, 255], [1, 2], [3, 4]], dtype=np.uint8)),
}
EXPECTED = {
    "text": np.array([b"LUTE", "é".encode(), b""], dtype=object),
    "number": GIVEN["number"][1] * 2,
    "count": GIVEN["count"][1] - 1,
    "pixel": 255 - GIVEN["pixel"][1],
}
ALL = tuple(GIVEN)
X = np.array([[3, 4], [6, 5]], dtype=np.float32)


def request(given, model, *, binary=None, outputs=(), **more):
    """An InferRequest; `binary` names the inputs that are sent as bytes, None: all."""
    inputs = []
    for name, (datatype, array) in given.items():
        made = kserve.InferInput(name, list(array.shape), datatype)
        made.set_data_from_numpy(array, binary_data=binary is None or name in binary)
        inputs.append(made)
    return kserve.InferRequest(model, inputs, request_outputs=list(outputs), **more)


def scaled(x=X, name="x", dtype=np.float32, **more):
    """A request to the model that multiplies by its version."""
    array = np.asarray(x, dtype)
    datatype = {"f": "FP32", "i": "INT64"}[array.dtype.kind]
    return request({name: (datatype, array)}, "scaled", **more)


def check(answer, names=ALL):
    """The outputs are right, each in the datatype of its input."""
    assert [output.name for output in answer.outputs] == list(names)
    for output in answer.outputs:
        assert output.datatype == GIVEN[output.name][0]
        found = output.as_numpy()
        if output.datatype == "BYTES":  # over REST the client makes texts of them
            found = [x if isinstance(x, bytes) else x.encode() for x in found]
        np.testing.assert_array_equal(found, EXPECTED[output.name])


def y(answer):
    (found,) = [output.as_numpy() for output in answer.outputs if output.name == "y"]
    return found


# REST


class Rest:
    """A client of one server."""

    def __init__(self, client, url):
        self.client = client
        self.url = url

    def infer(self, made, **more):
        return self.client.infer(self.url, made, model_name=made.model_name, **more)


@pytest.fixture(name="rest")
async def _rest(serving):
    async with kserve.InferenceRESTClient(kserve.RESTConfig(protocol="v2", retries=0)) as client:
        yield Rest(client, serving.url)


async def test_health_over_rest(rest):
    """Of the server and of a model; a model that is none is not ready."""
    assert await rest.client.is_server_live(rest.url) is True
    assert await rest.client.is_server_ready(rest.url) is True
    assert await rest.client.is_model_ready(rest.url, "mixed") is True
    assert await rest.client.is_model_ready(rest.url, "none") is False


@pytest.mark.parametrize("binary", [(), ("number",), ("text", "pixel"), ALL])
@pytest.mark.parametrize("parameters", [None, {"binary_data_output": True}])
async def test_datatypes_over_rest(rest, binary, parameters):
    """Three items, in JSON, in bytes, or some of each, there and back."""
    head = {}
    made = request(GIVEN, "mixed", binary=binary, request_id="7", parameters=parameters)
    answer = await rest.infer(made, response_headers=head)
    check(answer)
    assert (answer.id, answer.model_name) == ("7", "mixed")
    assert ("inference-header-content-length" in head) == (parameters is not None)


async def test_outputs_by_name_over_rest(rest):
    """Only those that are asked for, in the order and the form that is asked for."""
    outputs = [RequestedOutput("pixel", {"binary_data": True}), RequestedOutput("count")]
    check(await rest.infer(request(GIVEN, "mixed", outputs=outputs)), ("pixel", "count"))


async def test_no_items_over_rest(rest):
    """The client says of a tensor without bytes both that it has 0 bytes and that its data is null."""
    answer = await rest.infer(scaled(np.zeros((0, 2))))
    assert y(answer).shape == (0, 2)


@pytest.mark.parametrize(
    ("made", "status", "phrase"),
    [
        (lambda: request({}, "none"), 404, "model 'none' is not known"),
        (lambda: scaled(name="z"), 400, "inputs are z; model 'scaled' takes exactly x"),
        (lambda: scaled(dtype=np.int64), 400, "'x': datatype is INT64"),
        (lambda: scaled([[1, 2, 3]]), 400, "[1, 3]"),
        (lambda: scaled(outputs=[RequestedOutput("q")]), 400, "output 'q'"),
        (lambda: scaled([[-1, 0]]), 500, "minus one is not liked"),
        (lambda: scaled(SLOW, parameters={"timeout": 100_000}), 504, "deadline"),
    ],
)
@pytest.mark.parametrize("binary", [(), ("x", "z")])
async def test_errors_over_rest(rest, made, status, phrase, binary):
    """The client's exception has the status and the server's own text; the next request is answered."""
    given = made()
    for tensor in given.inputs:
        tensor.set_data_from_numpy(tensor.as_numpy(), binary_data=tensor.name in binary)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        await rest.infer(given)
    assert caught.value.response.status_code == status
    assert phrase in str(caught.value)
    assert y(await rest.infer(scaled())).tolist() == (2 * X).tolist()


async def test_the_first_protocol_over_rest(serving):
    """What KServe calls v1 is TensorFlow Serving's predict, with its error texts."""
    config = kserve.RESTConfig(protocol="v1", retries=0)
    async with kserve.InferenceRESTClient(config) as client:
        ask = {"base_url": serving.url, "model_name": "scaled"}
        answer = await client.infer(data={"instances": X.tolist()}, **ask)
        assert [row["y"] for row in answer["predictions"]] == (2 * X).tolist()
        answer = await client.infer(data={"inputs": {"x": X.tolist()}}, **ask)
        assert answer["outputs"] == {"y": (2 * X).tolist(), "place": [1, 0]}
        with pytest.raises(
            httpx.HTTPStatusError, match="Missing 'inputs' or 'instances' key, '400"
        ):
            await client.infer(data={}, **ask)
        with pytest.raises(
            httpx.HTTPStatusError, match=r"Servable not found.*Latest\(none\), '404"
        ):
            await client.infer(serving.url, {"instances": [1]}, model_name="none")


async def test_classes_over_rest(rest):
    """Triton's parameter of an output, through KServe's client: the best of each item as texts."""
    outputs = [RequestedOutput("y", {"classification": 1})]
    answer = await rest.infer(scaled(outputs=outputs))
    assert [(one.datatype, one.shape) for one in answer.outputs] == [("BYTES", [2, 1])]
    assert answer.outputs[0].as_numpy().ravel().tolist() == ["8.000000:1", "12.000000:0"]


# gRPC


@pytest.fixture(name="remote")
async def _remote(serving):
    async with kserve.InferenceGRPCClient(serving.grpc, retries=0) as client:
        yield client


async def test_health_over_grpc(remote):
    """Of the server and of a model; a model that is none is not found."""
    assert await remote.is_server_live() is True
    assert await remote.is_server_ready() is True
    assert await remote.is_model_ready("mixed") is True
    with pytest.raises(grpc.RpcError) as caught:
        await remote.is_model_ready("none")
    assert caught.value.code() is CODES.NOT_FOUND
    assert "model 'none' is not known" in caught.value.details()


@pytest.mark.parametrize("binary", [(), ALL])
async def test_datatypes_over_grpc(remote, binary):
    """Three items, in typed fields or raw; the answer has the form of the request."""
    answer = await remote.infer(request(GIVEN, "mixed", binary=binary, request_id="7"))
    check(answer)
    assert (answer.id, answer.model_name, answer.model_version) == ("7", "mixed", "1")
    assert all((output.data == []) == bool(binary) for output in answer.outputs)


async def test_any_bytes_over_grpc(remote):
    """Elements that are no text, and such as end in zeros."""
    texts = np.array([b"\xffa", b"\0b\0", b""], dtype=object)
    given = GIVEN | {"text": ("BYTES", texts)}
    answer = await remote.infer(request(given, "mixed", outputs=[RequestedOutput("text")]))
    assert answer.outputs[0].as_numpy().tolist() == [b"\xffA", b"\0B\0", b""]


@pytest.mark.parametrize("version", ["1", "canary", "2", None])
async def test_versions_over_grpc(remote, version):
    """By number, by label, or the current one."""
    answer = await remote.infer(scaled(model_version=version))
    factor = 1 if version in {"1", "canary"} else 2
    assert answer.model_version == str(factor)
    np.testing.assert_array_equal(y(answer), factor * X)


@pytest.mark.parametrize(
    ("made", "code", "phrase"),
    [
        (lambda: request({}, "none"), CODES.NOT_FOUND, "model 'none' is not known"),
        (lambda: scaled(model_version="3"), CODES.NOT_FOUND, "version '3'"),
        (lambda: scaled(name="z"), CODES.INVALID_ARGUMENT, "takes exactly x"),
        (lambda: scaled(dtype=np.int64), CODES.INVALID_ARGUMENT, "'x': datatype is INT64"),
        (lambda: scaled([[1, 2, 3]]), CODES.INVALID_ARGUMENT, "[1, 3]"),
        (lambda: scaled(outputs=[RequestedOutput("q")]), CODES.INVALID_ARGUMENT, "output 'q'"),
        (lambda: request(GIVEN, "mixed", binary=("text",)), CODES.INVALID_ARGUMENT,
         "raw_input_contents has 1 entries for 4 inputs"),
        (lambda: scaled([[-1, 0]]), CODES.INTERNAL, "minus one is not liked"),
        (lambda: scaled(SLOW, parameters={"timeout": 100_000}), CODES.DEADLINE_EXCEEDED, "deadline"),
    ],
)  # fmt: skip
async def test_errors_over_grpc(remote, made, code, phrase):
    """The client's exception has the code and the server's own text; the next request is answered."""
    with pytest.raises(grpc.RpcError) as caught:
        await remote.infer(made())
    assert caught.value.code() is code
    assert phrase in caught.value.details()
    assert y(await remote.infer(scaled())).tolist() == (2 * X).tolist()


async def test_the_clients_own_limit_over_grpc(remote):
    """A call that takes longer than its caller waits ends as such."""
    with pytest.raises(grpc.RpcError) as caught:
        await remote.infer(scaled(SLOW), timeout=SLOW_S / 3)
    assert caught.value.code() is CODES.DEADLINE_EXCEEDED
    assert y(await remote.infer(scaled())).tolist() == (2 * X).tolist()


async def test_classes_over_grpc(remote):
    """The same, in raw bytes."""
    outputs = [RequestedOutput("y", {"classification": 1})]
    answer = await remote.infer(scaled(outputs=outputs))
    assert answer.outputs[0].as_numpy().ravel().tolist() == [b"8.000000:1", b"12.000000:0"]


@pytest.mark.parametrize("encoding", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_compressed_calls(serving, encoding):
    """Of a client whose channel compresses all that it sends; long answers come back so."""
    options = [("grpc.default_compression_algorithm", encoding.value)]
    x = np.tile(X, (1_000, 1))  # nearly as many items as may wait
    async with kserve.InferenceGRPCClient(serving.grpc, retries=0, channel_args=options) as client:
        assert await client.is_server_ready() is True
        for many in (X, x):
            np.testing.assert_array_equal(y(await client.infer(scaled(many))), 2 * many)
