"""Where a model runs: by what is wished, what the runtime offers, and what the driver counts."""

import subprocess
import sys

import pytest

from serving import models, zoo
from serving.errors import ModelLoadFailed
from serving.models import cuda, onnx, onnx_session

RUNTIME = {"model": "m.onnx", "runtime": "the runtime"}


@pytest.mark.parametrize(
    ("wanted", "offers_cuda", "gpus", "expected"),
    [
        ("auto", True, 1, "cuda"),
        ("auto", True, 0, "cpu"),
        ("auto", False, 1, "cpu"),
        ("cpu", True, 1, "cpu"),
        ("cuda", True, 2, "cuda"),
    ],
)
def test_a_wish_and_what_there_is(wanted, offers_cuda, gpus, expected):
    """`auto` takes what there is."""
    assert cuda.choose_device(wanted, offers_cuda=offers_cuda, gpus=gpus, **RUNTIME) == expected


@pytest.mark.parametrize(
    ("offers_cuda", "gpus", "text"),
    [
        (False, 1, "accelerator.device is cuda, but the runtime is built without it"),
        (True, 0, "accelerator.device is cuda, but the runtime finds no GPU through CUDA"),
    ],
)
def test_a_gpu_that_is_asked_for_and_absent_is_one_line(offers_cuda, gpus, text):
    """`cuda` is the GPU or nothing, with what to try."""
    with pytest.raises(ModelLoadFailed, match=text) as caught:
        cuda.choose_device("cuda", offers_cuda=offers_cuda, gpus=gpus, **RUNTIME)
    assert "set it to auto or cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


COUNT = "from serving.models import cuda; print(cuda.gpu_count())"


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({"FAKE_CUDA_GPUS": "2"}, "2"),
        ({"FAKE_CUDA_GPUS": "2", "CUDA_VISIBLE_DEVICES": "-1"}, "0"),
        ({}, "0"),
    ],
)
def test_the_driver_is_asked(gpu, monkeypatch, environ, count):
    """As many as it counts in this process; a driver without a device counts none."""
    monkeypatch.delenv("FAKE_CUDA_GPUS")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    found = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == count


IMPORT = """
import pathlib
import serving.models.onnx
print("libcuda" in pathlib.Path("/proc/self/maps").read_text())
"""


def test_to_import_a_kind_does_not_begin_cuda(gpu):
    """The template imports it and is forked, which CUDA does not survive."""
    found = subprocess.run(
        [sys.executable, "-c", IMPORT], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "False"


LOAD = """
import ctypes, socket, sys, threading, types
import numpy as np
from serving.replica import main_loop
from serving.values import Signature, TensorSpec
from tests.serving.conftest import Talk

class Model:
    is_pure = True
    ids = (TensorSpec(name="ids", datatype="INT64", shape=(-1, 4)),)
    signature = Signature(inputs=ids, outputs=ids)

    def __init__(self, path, *, threads, device):
        self.driver = ctypes.CDLL("libcuda.so.1")

    def predict_batch(self, inputs):
        if inputs["ids"].any():
            self.driver.fake_failed_kernel()
            raise RuntimeError("CUDA error: device-side assert triggered\\nmore of it")
        return inputs

sys.modules["serving.models.torch"] = types.SimpleNamespace(Model=Model)
one, other = socket.socketpair()
codes = []
thread = threading.Thread(target=lambda: codes.append(main_loop.serve(other)))
thread.start()
talk = Talk(one)
talk.hello()
print(talk.load("torch", "m.pt2").detail["error"])
thread.join(10)
print(codes)
"""


def test_a_load_that_breaks_the_gpu_context_fails(gpu):
    """Synthetic inputs may be out of the model's range: no request goes to what they leave behind."""
    found = subprocess.run([sys.executable, "-c", LOAD], capture_output=True, text=True, check=True)
    error, codes = found.stdout.splitlines()
    assert "inputs of its trial left the GPU unusable (batches of it could not be checked" in error
    assert "device-side assert triggered); give samples, or the values that" in error
    assert codes == "[70]"


def test_sessions_on_a_gpu_fall_back_to_the_cpu_for_what_it_lacks():
    """CUDA first, and the CPU behind it; on the CPU nothing else."""
    (name, options), behind = onnx_session.providers("cuda")
    assert (name, behind) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options["device_id"] == 0
    assert onnx_session.providers("cpu") == ["CPUExecutionProvider"]


@pytest.mark.skipif(
    "CUDAExecutionProvider" in onnx.onnxruntime.get_available_providers(),
    reason="this ONNX Runtime is built for CUDA",
)
def test_onnx_without_cuda_runs_on_the_cpu_or_says_so():
    """The model tells where it runs; `cuda` is refused with the runtime's version."""
    path = zoo.find("resnet").path
    assert models.load("onnx", path, threads=1).device == "cpu"
    with pytest.raises(ModelLoadFailed, match=r"installed ONNX Runtime \d.* is built without it"):
        models.load("onnx", path, threads=1, device="cuda")


def test_kinds_without_a_gpu_say_so():
    """A kind of the CPU alone is not loaded as if it had been asked for nothing."""
    with pytest.raises(
        ModelLoadFailed, match="the kind echo runs only on the CPU; kinds for GPUs are onnx"
    ):
        models.load("echo", None, threads=1, device="cuda")
