"""`python -m serving` with its gRPC port: announced, answering, and drained at the end."""

import contextlib
import json
import signal
import subprocess
import sys

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton

from serving import zoo


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


def test_without_grpc():
    """By default there is no such port."""
    with server("--model", "echo") as (_, facts):
        assert facts["grpc_port"] is None


def test_a_port_in_use():
    """The line says which port, and how to choose another."""
    with server("--model", "echo", "--set", "server.grpc_port=0") as (_, facts):
        port = facts["grpc_port"]
        command = [sys.executable, "-m", "serving", "--port", "0", "--admin-port", "0"]
        done = subprocess.run(
            [*command, "--model", "echo", "--set", f"server.grpc_port={port}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
    assert done.returncode == 1
    assert f"port {port} on 127.0.0.1 is in use" in done.stderr
    assert "server.grpc_port" in done.stderr


def test_a_call_in_flight_when_the_server_stops():
    """It is answered; the next one finds nobody."""
    slow = ("--set", "batching.timeout_us=800000", "--set", "batching.max_size=64")
    with server("--model", "echo", "--set", "server.grpc_port=0", *slow) as (process, facts):
        with triton.InferenceServerClient(f"127.0.0.1:{facts['grpc_port']}") as client:
            given = triton.InferInput("data", [1, 3], "UINT8")
            given.set_data_from_numpy(np.array([[1, 2, 3]], dtype=np.uint8))
            answers = []
            client.async_infer(
                "echo", [given], lambda result, error: answers.append((result, error))
            )
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        ((result, error),) = answers
        assert error is None
        assert result.as_numpy("data").tolist() == [[1, 2, 3]]


def test_a_message_that_is_too_large():
    """The limit of bodies is the limit of messages."""
    arguments = ("--set", "server.grpc_port=0", "--set", "server.max_body_bytes=2000")
    with (
        server("--model", "echo", *arguments) as (_, facts),
        grpc.insecure_channel(f"127.0.0.1:{facts['grpc_port']}") as channel,
    ):
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff" * 2001)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as error:
            call(b"\xff" * 2000)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
