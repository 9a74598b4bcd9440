"""`python -m serving` with a GPU: its clock from start to end, and what replicas see of it."""

import contextlib
import http.client
import json
import signal
import socket
import subprocess
import sys

import pytest

from tests.fakes.admin import token_fields

SEEN = """
import os
import numpy as np

class Seen:
    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1]}]
    outputs = [{"name": "y", "datatype": "BYTES", "shape": [-1]}]

    def predict_batch(self, inputs):
        names = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
        seen = " ".join(os.environ.get(name, "-") for name in names)
        return {"y": np.array([seen] * len(inputs["x"]), dtype=object)}
"""


@contextlib.contextmanager
def serving(*arguments):
    command = [sys.executable, "-m", "serving", "--port", "0", *arguments]
    with subprocess.Popen(
        [*command, "--log-level", "warning"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            process.facts = json.loads(process.stdout.readline() or "{}")
            yield process
        finally:
            process.kill()


def ask(process, method, path, data=None, *, port="admin_port"):
    connection = http.client.HTTPConnection("127.0.0.1", process.facts[port], timeout=20)
    with contextlib.closing(connection):
        fields = token_fields(process.facts[port]) if port == "admin_port" else {}
        connection.request(method, path, None if data is None else json.dumps(data), fields)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


def patch(process, **settings):
    given = {f"accelerator.{name}": value for name, value in settings.items()}
    return ask(process, "PATCH", "/admin/settings", {"settings": given})


def test_the_clock_follows_the_settings(gpu):
    """Locked at the start, changed live, refused with a reason, released at SIGTERM."""
    with serving("--model", "echo", "--set", "accelerator.clock_mhz=900") as server:
        assert gpu.locked_mhz == 900
        assert patch(server, clock_mhz=300)[0] == 200
        assert gpu.locked_mhz == 300
        status, answer = patch(server, clock_mhz=1400)
        assert (status, answer["reason"]) == (409, "limits")
        assert "nearest of its 4 clocks is 1410 MHz" in answer["error"]
        assert gpu.locked_mhz == 300
        assert (
            ask(server, "GET", "/admin/settings")[1]["settings"]["accelerator"]["clock_mhz"] == 300
        )
        assert patch(server, clock_mhz=None)[0] == 200
        assert gpu.locked_mhz == 0
        assert patch(server, clock_mhz=1980)[0] == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert (gpu.locked_mhz, gpu.notes) == (0, [])


def test_the_next_server_restores_what_a_killed_one_left(gpu):
    """kill -9 leaves the lock; the next start takes it away, whatever it is asked for itself."""
    with serving("--model", "echo", "--set", "accelerator.clock_mhz=900") as server:
        server.kill()
        server.wait(10)
    assert gpu.locked_mhz == 900
    with serving("--model", "echo"):
        assert (gpu.locked_mhz, gpu.notes) == (0, [])


def test_a_clock_that_cannot_be_had_ends_the_start(gpu):
    """One line, exit code 1, nothing changed."""
    gpu.refuse(nvmlDeviceSetGpuLockedClocks=4)
    with serving("--model", "echo", "--set", "accelerator.clock_mhz=900") as server:
        assert server.wait(20) == 1
        said = server.stderr.read()
    last = said.splitlines()[-1]
    assert "accelerator.clock_mhz = 900: " in last
    assert "its clock cannot be locked: Insufficient Permissions" in last
    assert (gpu.changes, gpu.notes) == ([], [])


@pytest.fixture
def pipes(tmp_path, monkeypatch):
    """The pipe directory of an MPS control daemon."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    return tmp_path


def test_replicas_see_their_share_of_the_gpu(gpu, pipes):
    """By their environment, live by new replicas; without a daemon it is said once and does nothing."""
    (pipes / "seen.py").write_text(SEEN)
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}]}

    def seen():
        answer = ask(server, "POST", "/v2/models/seen/infer", body, port="port")[1]
        return answer["outputs"][0]["data"][0]

    def worker():
        return ask(server, "GET", "/admin/replicas")[1]["replicas"][0]["worker"]

    with serving("--model", f"{pipes / 'seen.py'}:Seen") as server:
        assert seen() == "PCI_BUS_ID - -"
        for share in (10, 20):
            assert patch(server, share=share)[0] == 200
            assert seen() == "PCI_BUS_ID - -"
        with socket.socket(socket.AF_UNIX) as daemon:
            daemon.bind(str(pipes / "control"))
            daemon.listen()
            before = worker()
            assert patch(server, share=25)[0] == 200
            assert worker() != before
            assert seen() == "PCI_BUS_ID - 25"
            before = worker()
            assert patch(server, share=25)[0] == 200
            assert worker() == before
            assert patch(server, device="cpu")[0] == 200
            assert seen() == "PCI_BUS_ID -1 -"
        server.send_signal(signal.SIGTERM)
        _, said = server.communicate(timeout=20)
    assert said.count("accelerator.share has no effect") == 1


BREAKS = """
import ctypes

class Breaks:
    inputs = outputs = [{"name": "x", "datatype": "FP32", "shape": [-1]}]

    def __init__(self):
        self.driver = ctypes.CDLL("libcuda.so.1")

    def predict_batch(self, inputs):
        if (inputs["x"] < 0).any():
            self.driver.fake_failed_kernel()
        if self.driver.cuCtxSynchronize():
            raise RuntimeError("CUDA error: device-side assert triggered")
        return inputs
"""


def test_a_replica_whose_gpu_context_breaks_is_replaced(gpu, tmp_path):
    """The request that broke it fails; the next ones are answered by another process."""
    (tmp_path / "breaks.py").write_text(BREAKS)

    def infer(value):
        item = {"name": "x", "datatype": "FP32", "shape": [1], "data": [value]}
        return ask(server, "POST", "/v2/models/breaks/infer", {"inputs": [item]}, port="port")

    with serving("--model", f"{tmp_path / 'breaks.py'}:Breaks") as server:
        assert infer(1)[0] == 200
        status, answer = infer(-1)
        assert (status, answer["error"]) == (
            500,
            "RuntimeError: CUDA error: device-side assert triggered",
        )
        assert infer(2)[0] == 200
        found = ask(server, "GET", "/admin/replicas")[1]
        assert [replica["worker"] for replica in found["replicas"]] == [2]
        assert [death["text"] for death in found["deaths"]] == [
            "exited with code 70: an error left the GPU unusable for it; its error output has the reason"
        ]
