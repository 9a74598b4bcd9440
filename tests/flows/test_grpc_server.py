"""`python -m serving` with its gRPC port: announced, answering, and drained at the end."""

import contextlib
import json
import queue
import signal
import subprocess
import sys
import time
import urllib.request

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from serving import zoo
from serving.api.tensorflow.tensor_proto import DTYPES
from tests.fakes.proto_messages import classes
from tests.serving.api.tensorflow.test_tensor_proto import PROTO

UNFINISHED = b'inflight_requests{model="echo",version="1"} 1.0'


@contextlib.contextmanager
def server(*arguments):
    command = [sys.executable, "-m", "serving", "--port", "0", "--admin-port", "0"]
    with subprocess.Popen(
        [*command, "--log-level", "warning", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


@pytest.fixture(scope="module", name="facts")
def _facts():
    """Of a server of `echo` with a free gRPC port, and small bodies."""
    with server("--model", "echo", "--set", "server.max_body_bytes=2000") as (_, facts):
        yield facts


def until(condition):
    end_s = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_the_bundled_model_over_grpc():
    """The port is announced; right answers come from it; SIGTERM ends the server in order."""
    with np.load(zoo.find("resnet").sample) as sample:
        images, labels = sample["image"][:8], sample["labels"][:8]
    with server("--model", "resnet", "--set", "server.grpc_port=0") as (process, facts):
        address = f"127.0.0.1:{facts['grpc_port']}"
        with triton.InferenceServerClient(address) as client:
            given = triton.InferInput("image", list(images.shape), "UINT8")
            given.set_data_from_numpy(images)
            scores = client.infer("resnet", [given]).as_numpy("scores")
        assert (scores.argmax(1) == labels).mean() > 0.5
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_without_grpc(facts):
    """Beside a free query port there is a free one by default; null switches it off."""
    with triton.InferenceServerClient(f"127.0.0.1:{facts['grpc_port']}") as client:
        assert client.is_server_ready()
    with server("--model", "echo", "--set", "server.grpc_port=null") as (_, without):
        assert without["grpc_port"] is None


def test_a_port_in_use(serve, facts):
    """The line says which port, and how to choose another."""
    port = facts["grpc_port"]
    done = serve("--model", "echo", "--set", f"server.grpc_port={port}")
    assert done.code == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.err
    assert "server.grpc_port" in done.err


def test_a_call_in_flight_when_the_server_stops():
    """It is answered; the next one finds nobody."""
    slow = ("--set", "batching.timeout_us=2000000", "--set", "batching.max_size=64")
    with server("--model", "echo", "--set", "server.grpc_port=0", *slow) as (process, facts):
        with triton.InferenceServerClient(f"127.0.0.1:{facts['grpc_port']}") as client:
            given = triton.InferInput("data", [1, 3], "UINT8")
            given.set_data_from_numpy(np.array([[1, 2, 3]], dtype=np.uint8))
            answers = []
            client.async_infer(
                "echo", [given], lambda result, error: answers.append((result, error))
            )
            metrics = f"http://127.0.0.1:{facts['admin_port']}/metrics"
            until(lambda: UNFINISHED in urllib.request.urlopen(metrics, timeout=10).read())
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            until(lambda: answers)
        ((result, error),) = answers
        assert error is None
        assert result.as_numpy("data").tolist() == [[1, 2, 3]]


def test_an_open_stream_when_the_server_stops():
    """It answers what it has, ends with a status, and holds up nothing."""
    answers = queue.Queue()
    given = triton.InferInput("data", [1, 3], "UINT8")
    given.set_data_from_numpy(np.array([[1, 2, 3]], dtype=np.uint8))
    with (
        server("--model", "echo", "--set", "server.drain_s=60") as (process, facts),
        triton.InferenceServerClient(f"127.0.0.1:{facts['grpc_port']}") as client,
    ):
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(20):
            client.async_stream_infer("echo", [given], request_id=str(number))
        for number in range(20):
            result, error = answers.get(timeout=20)
            assert error is None
            assert result.get_response().id == str(number)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        _, error = answers.get(timeout=20)
        assert error.status() == "StatusCode.UNAVAILABLE"
        client.stop_stream()


def test_a_message_that_is_too_large(facts):
    """The limit of bodies is the limit of messages."""
    with grpc.insecure_channel(f"127.0.0.1:{facts['grpc_port']}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff" * 2001)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff" * 2000)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_tensorflow_servings_services_on_the_same_port(facts):
    """Predict and GetModelStatus beside the Open Inference service; unknown methods are told."""
    messages = classes(PROTO)
    address = f"127.0.0.1:{facts['grpc_port']}"
    with (
        grpc.insecure_channel(address) as channel,
        triton.InferenceServerClient(address) as client,
    ):

        def call(method, request, answer):
            return channel.unary_unary(
                f"/tensorflow.serving.{method}",
                request_serializer=lambda message: message.SerializeToString(),
                response_deserializer=messages[answer].FromString,
            )(request)

        def counted():
            return client.get_inference_statistics("echo").model_stats[0].inference_count

        before = counted()
        spec = {"name": "echo"}
        request = messages["PredictRequest"](model_spec=spec)
        given = request.inputs["data"]
        given.dtype = DTYPES["UINT8"]
        given.int_val.extend([7, 8])
        for size in (1, 2):
            given.tensor_shape.dim.add(size=size)
        answer = call("PredictionService/Predict", request, "PredictResponse")
        assert list(answer.outputs["data"].int_val) == [7, 8]
        request = messages["GetModelStatusRequest"](model_spec=spec)
        status = call("ModelService/GetModelStatus", request, "GetModelStatusResponse")
        assert [one.version for one in status.model_version_status] == [1]
        assert counted() == before + 1
        assert "model_repository" in client.get_server_metadata().extensions
        with pytest.raises(grpc.RpcError) as refused:
            call("PredictionService/None", request, "PredictResponse")
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        request.model_spec.name = "none"
        with pytest.raises(grpc.RpcError) as refused:
            call("ModelService/GetModelStatus", request, "GetModelStatusResponse")
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
