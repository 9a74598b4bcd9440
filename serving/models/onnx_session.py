"""Sessions of ONNX Runtime: device, providers, options, and the reasons for its errors."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Mapping
from typing import Any

import onnxruntime

from serving.models import cuda

_FATAL = 4
CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
CUDA_OPTIONS: Mapping[str, Any] = {
    "device_id": 0,
    # The default, exhaustive, tries all algorithms for every new batch size while a request
    # waits.
    "cudnn_conv_algo_search": "HEURISTIC",
}

_SOURCE_PLACE = re.compile(r"^/\S+\.(cc|h):\d+ .*\) ")


def open_session(
    path: pathlib.Path, options: onnxruntime.SessionOptions, device: str
) -> onnxruntime.InferenceSession:
    """Open a session on a device."""
    return onnxruntime.InferenceSession(str(path), options, providers=providers(device))


def choose_device(wanted: str, path: pathlib.Path) -> str:
    """Choose the device, asking the driver only if the runtime supports CUDA."""
    offers_cuda = CUDA_PROVIDER in onnxruntime.get_available_providers()
    runtime = f"the installed ONNX Runtime {onnxruntime.__version__}"
    gpus = cuda.gpu_count() if offers_cuda and wanted != cuda.CPU else 0
    return cuda.choose_device(
        wanted, model=str(path), runtime=runtime, offers_cuda=offers_cuda, gpus=gpus
    )


def providers(device: str) -> list[str | tuple[str, dict[str, Any]]]:
    """Return execution providers, best first; the CPU runs operators that CUDA lacks."""
    if device == cuda.CPU:
        return [CPU_PROVIDER]
    return [(CUDA_PROVIDER, dict(CUDA_OPTIONS)), CPU_PROVIDER]


def session_options(*, threads: int) -> onnxruntime.SessionOptions:
    """Return session options for a replica with shared cores and a memory limit."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = _FATAL  # run failures are raised
    # A spinning idle thread takes a core from other replicas and counts against the cgroup's
    # limit.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Memory: one session sees batches of every size under a memory limit. Bundled resnet, batch
    # sizes 1 to 64 ascending, then in random order, final resident MiB (57 after loading):
    #   arena, patterns (the default)               89  one plan per shape ever seen
    #   arena, no patterns (chosen)                 75  as after the largest batch alone
    #   arena, kSameAsRequested, no patterns       332  chunks of one batch size fit no larger one
    #   no arena, no patterns                       65  peak 75, but with wide layers 163
    #                                                   instead of 138
    # Speed differs by less than the noise.
    options.enable_mem_pattern = False
    return options


def reason_of(error: Exception, *, lines: int = 1) -> str:
    """Extract the reason from `[ONNXRuntimeError] : 2 : NAME : reason`."""
    kept = " ".join(line.strip() for line in str(error).splitlines()[:lines])
    reason = kept.split(" : ", 3)[-1].rpartition(" failed:")[2]
    return _SOURCE_PLACE.sub("", reason) or type(error).__name__
