"""Kind onnx: an ONNX file through ONNX Runtime, on the CPU or, where it is built for CUDA, on a GPU.

In: {input name: (n, ...) array}; strings as object arrays of bytes or str. Out: every output of the
graph, strings as object arrays of str. The signature is read from the file; a dimension without a
number is free (-1).

A form of a model may be prepared that is loaded in a part of the time: the graph as the runtime has optimised it for
this processor, and the weights in a file of their own, which the runtime maps instead of reading it. Sessions of
it share that memory with one another, also between processes.

It must not know how arrays come and go, nor which limits the process has: it only keeps to
`threads` and is frugal with memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import pathlib
import re
import shutil
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from serving.errors import InvalidRequest, ModelLoadFailed
from serving.models import Arrays, cuda
from serving.values import Signature, TensorSpec

log = logging.getLogger(__name__)

PLATFORM = "onnxruntime_onnx"

PREPARED, _WEIGHTS = "model.onnx", "weights.bin"
"""Files of the prepared form."""
_MAPPED_BYTES = 65_536
"""Weights from so many bytes on are mapped: a smaller array is copied as quickly."""
_BLOCK_BYTES = 4 * 1024 * 1024

DATATYPES: dict[str, str] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
"""ONNX type as the runtime writes it -> Open Inference Protocol datatype."""

_ERRORS_ONLY, _FATAL = 3, 4
"""Severity from which the runtime writes: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal."""

CPU_PROVIDER = "CPUExecutionProvider"
CUDA_PROVIDER = "CUDAExecutionProvider"
CUDA_OPTIONS: Mapping[str, Any] = {
    "device_id": 0,
    # Exhaustive, the default, tries all algorithms anew for every batch size that comes up, while
    # a request waits.
    "cudnn_conv_algo_search": "HEURISTIC",
}

_SOURCE_PLACE = re.compile(r"^/\S+\.(cc|h):\d+ .*\) ")
"""Where in its own C++ the runtime raised; some versions begin the reason with it."""

_DIMENSION = re.compile(r"(?!unk__\d|(?:p2o\.)?DynamicDimension\.)[A-Za-z_][\w.-]*")
"""A dimension's name that its author gave; exporters make others of counters, formulas and question marks."""

_DYNAMIC = tuple(
    b"\x22" + bytes([len(name)]) + name
    for name in (b"DynamicQuantizeLinear", b"DynamicQuantizeMatMul", b"DynamicQuantizeLSTM")
)
"""The type of a node, as it stands in a file (field 4 of NodeProto), that scales by all that is in the batch."""

_UNREADABLE = re.compile(r"parsing failed|No graph was found")
"""What the runtime says of bytes that are no model at all, or the beginning of one."""


class Model:
    """One inference session."""

    signature: Signature
    is_pure = True

    def __init__(
        self,
        path: pathlib.Path | None,
        *,
        threads: int,
        device: str = "auto",
        prepared: pathlib.Path | None = None,
    ) -> None:
        """Load a model.

        Args:
            path: the file.
            threads: inside one operator.
            device: `auto`, `cpu` or `cuda`.
            prepared: folder of its prepared form, which is loaded instead where it is there; None: it has none.
        """
        path = _checked(path)
        _quieten()
        self.device = _device(device, path)
        try:
            quick = _of_prepared(prepared, threads, self.device)
            self.is_prepared = quick is not None
            self._session = quick or _session(path, session_options(threads=threads), self.device)
        except Exception as error:  # the runtime has a dozen unrelated exception classes
            reason = _reason(error)
            if _UNREADABLE.search(reason):
                reason = f"it is not a readable ONNX file: {reason}"
            raise ModelLoadFailed(
                str(path),
                f"{reason} (ONNX Runtime {onnxruntime.__version__}); "
                "expected an ONNX file that onnx.checker.check_model accepts",
            ) from error
        if self.device == cuda.CUDA and CUDA_PROVIDER not in self._session.get_providers():
            # The runtime writes what its CUDA libraries lack, and goes on without them.
            if device == cuda.CUDA:
                raise ModelLoadFailed(
                    str(path),
                    "accelerator.device is cuda, but ONNX Runtime's CUDA provider does not start; the "
                    "line above this one says what it lacks, mostly CUDA or cuDNN of its version",
                )
            self.device = cuda.CPU
        self.signature = Signature(
            inputs=tuple(_spec(item, path) for item in self._session.get_inputs()),
            outputs=tuple(_spec(item, path) for item in self._session.get_outputs()),
            platform=PLATFORM,
            unbatched=_why_unbatched(path),
        )
        self._outputs = [spec.name for spec in self.signature.outputs]
        self._strings = [spec.name for spec in self.signature.inputs if spec.datatype == "BYTES"]

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Run the graph once.

        Raises:
            InvalidRequest: an input is missing, unknown, or of another datatype or shape than the
            graph's.
        """
        for name in self._strings:
            if name in inputs:
                inputs = {**inputs, name: _as_text(inputs[name])}
        try:
            results = self._session.run(self._outputs, inputs)
        except (states.InvalidArgument, ValueError) as error:
            raise InvalidRequest(_reason(error, lines=2)) from error
        return dict(zip(self._outputs, results, strict=True))


def prepare(path: pathlib.Path | None, folder: pathlib.Path, *, digest: str, device: str) -> None:
    """Write the prepared form of a model for this processor, unless it is there; a model of a GPU gets none.

    A folder that is there is whole, and is not changed any more: what is mapped must not be cut short. What cannot be
    prepared is told in the log, and loaded from its own file. It is made of a copy, for the file may be replaced at
    any time; and where the copy is there are no weights beside it, so a model with such has no form.

    Args:
        path: the file.
        folder: made here, with all that it holds, in one step.
        digest: SHA-256 of what the file must hold, in hexadecimal digits.
        device: `auto`, `cpu` or `cuda`.
    """
    path = _checked(path)
    _quieten()
    if folder.is_dir() or _device(device, path) != cuda.CPU:
        return
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".new-") as name:
            copy, made = pathlib.Path(name, "copied", "model.onnx"), pathlib.Path(name, "made")
            copy.parent.mkdir(mode=0o700)
            made.mkdir(mode=0o700)
            if _copied(path, copy) != digest:
                raise ValueError("it has changed since it was deployed")
            _write_prepared(copy, made)
            made.rename(folder)
    except Exception as error:  # no room, or the runtime has one of its dozen reasons
        if not folder.is_dir():  # else another server was quicker
            log.warning("not prepared", extra={"model": str(path), "error": _reason(error)})


def _copied(file: pathlib.Path, copy: pathlib.Path) -> str:
    """Copy a file; returns SHA-256 of what the copy holds."""
    digest = hashlib.sha256()
    with file.open("rb") as read, copy.open("xb") as written:
        while block := read.read(_BLOCK_BYTES):
            digest.update(block)
            written.write(block)
    return digest.hexdigest()


def _write_prepared(path: pathlib.Path, folder: pathlib.Path) -> None:
    """Write the files so that they are whole even after a loss of power, and try them."""
    options = session_options(threads=1)
    options.optimized_model_filepath = str(folder / PREPARED)
    external = "session.optimized_model_external_initializers_"
    options.add_session_config_entry(f"{external}file_name", _WEIGHTS)
    options.add_session_config_entry(f"{external}min_size_in_bytes", str(_MAPPED_BYTES))
    _session(path, options, cuda.CPU)
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    _session(folder / PREPARED, _as_it_is(session_options(threads=1)), cuda.CPU)


def _of_prepared(
    folder: pathlib.Path | None, threads: int, device: str
) -> onnxruntime.InferenceSession | None:
    """A session of the prepared form; None where there is none, or it cannot be loaded."""
    if folder is None or device != cuda.CPU or not (folder / PREPARED).is_file():
        return None
    try:
        with contextlib.suppress(OSError):  # in a container it cannot be changed
            os.utime(folder)  # the least recently used are removed first
        _read_in(folder / _WEIGHTS)
        return _session(folder / PREPARED, _as_it_is(session_options(threads=threads)), device)
    except Exception as error:  # it was removed meanwhile, or is not what was written
        facts = {"folder": str(folder), "error": _reason(error)}
        log.warning(
            "the prepared form cannot be loaded and is of no use; the model's own file is loaded",
            extra=facts,
        )
        shutil.rmtree(folder, ignore_errors=True)
        return None


def _read_in(weights: pathlib.Path) -> None:
    """Have the weights in memory, so that no batch waits for a disk; there is no such file where all are small."""
    if not weights.is_file() or not weights.stat().st_size:
        return
    with weights.open("rb") as file:
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ).close()


def _as_it_is(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """A graph that was optimised is not optimised again."""
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


def _session(
    path: pathlib.Path, options: onnxruntime.SessionOptions, device: str
) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), options, providers=providers(device))


def _checked(path: pathlib.Path | None) -> pathlib.Path:
    """The model's file.

    Raises:
        ModelLoadFailed: there is none.
    """
    if path is None or not path.is_file():
        raise ModelLoadFailed(str(path), "no such file; the kind onnx needs an .onnx file")
    return path


def _quieten() -> None:
    onnxruntime.set_default_logger_severity(_ERRORS_ONLY)
    onnxruntime.disable_telemetry_events()


def _device(wanted: str, path: pathlib.Path) -> str:
    """Where the model is to run; no driver is asked where the runtime cannot use one."""
    offers_cuda = CUDA_PROVIDER in onnxruntime.get_available_providers()
    return cuda.chosen(
        wanted,
        model=str(path),
        runtime=f"the installed ONNX Runtime {onnxruntime.__version__}",
        offers_cuda=offers_cuda,
        gpus=cuda.gpu_count() if offers_cuda and wanted != cuda.CPU else 0,
    )


def providers(device: str) -> list[str | tuple[str, dict[str, Any]]]:
    """What a session of a device runs on, best first: what CUDA lacks of a graph runs on the CPU."""
    if device == cuda.CPU:
        return [CPU_PROVIDER]
    return [(CUDA_PROVIDER, dict(CUDA_OPTIONS)), CPU_PROVIDER]


def session_options(*, threads: int) -> onnxruntime.SessionOptions:
    """Settings of a session that shares its cores and its memory limit with other replicas."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.log_severity_level = (
        _FATAL  # what a run fails with is raised, and told to whoever asked
    )
    # An idle thread that spins takes the core that another replica needs, and counts as work
    # against the cgroup's limit.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Memory: batches of every size pass through one session that lives under a memory limit.
    # Measured with the bundled resnet, every batch size from 1 to 64 upwards and then in random
    # order, resident MiB at the end (57 after loading):
    #   arena, patterns (the default)               89  one plan is kept for every shape ever seen
    #   arena, no patterns (chosen)                 75  as after the largest batch alone
    #   arena, kSameAsRequested, no patterns       332  what fits one batch size fits no larger one
    #   no arena, no patterns                       65  75 at peak, but a network with wide layers
    #                                                   peaks at 163 instead of 138
    # Speed differs by less than the noise.
    options.enable_mem_pattern = False
    return options


def _spec(item: onnxruntime.NodeArg, path: pathlib.Path) -> TensorSpec:
    """What the runtime tells about an input or output, in the protocol's words."""
    if item.type not in DATATYPES:
        hint = (
            "; convert the classifier with the option zipmap=False" if "map(" in item.type else ""
        )
        raise ModelLoadFailed(
            str(path),
            f"{item.name!r} is of type {item.type}, expected one of {', '.join(DATATYPES)}{hint}",
        )
    names = tuple(
        size if isinstance(size, str) and _DIMENSION.fullmatch(size) else "" for size in item.shape
    )
    return TensorSpec(
        name=item.name,
        datatype=DATATYPES[item.type],
        shape=tuple(size if isinstance(size, int) else -1 for size in item.shape),
        dimensions=names if any(names) else (),
    )


def _why_unbatched(path: pathlib.Path) -> str | None:
    """Why a file's answers differ from batch to batch; None: it does not tell."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        if any(data.find(mark) >= 0 for mark in _DYNAMIC):
            return "it is quantised dynamically: its scales are those of all items of a batch"
    return None


def _as_text(array: np.ndarray) -> np.ndarray:
    """Strings for the runtime, which turns bytes in an object array into their repr."""
    flat = [
        item.decode("utf-8") if isinstance(item, bytes) else str(item) for item in array.ravel()
    ]
    return np.array(flat, dtype=object).reshape(array.shape)


def _reason(error: Exception, *, lines: int = 1) -> str:
    """The telling part of a message that reads `[ONNXRuntimeError] : 2 : NAME : reason`."""
    kept = " ".join(line.strip() for line in str(error).splitlines()[:lines])
    reason = kept.split(" : ", 3)[-1].rpartition(" failed:")[2]
    return _SOURCE_PLACE.sub("", reason) or type(error).__name__
