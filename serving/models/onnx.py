"""Kind onnx: an ONNX file through ONNX Runtime, on the CPU or, where it is built for CUDA, on a GPU.

In: {input name: (n, ...) array}; strings as object arrays of bytes or str. Out: every output of the
graph, strings as object arrays of str. The signature is read from the file; a dimension without a
number is free (-1).

Where it is told what the file holds, an optimised copy of that may be loaded instead, in a part of the time: the graph
as the runtime has optimised it for this processor, and the weights in a file of their own, which the runtime maps
instead of reading it. Sessions of a copy share that memory with one another, also between processes.

    SHA-256 of the content, version of the runtime, options, processor, version of Luthier
    -> a folder in the user's cache, there once a replica was asked to write it

Such a folder is whole as soon as it is there, and never changed, for replicas map what is in it; it may be removed at
any time. The least recently loaded go where all together take too much. What is in it decides what a model answers,
so nothing is used but what nobody else can have written.

It must not know how arrays come and go, nor which limits the process has: it only keeps to
`threads` and is frugal with memory.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import mmap
import os
import pathlib
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from serving import __version__, machine, private_folder
from serving.errors import InvalidRequest, ModelLoadFailed
from serving.models import Arrays, cuda
from serving.values import Signature, TensorSpec

log = logging.getLogger(__name__)

PLATFORM = "onnxruntime_onnx"

COPIES = "optimised"
"""Folder of all optimised copies, in the user's cache."""
MOST_BYTES = 16 * 2**30
"""Of all of them together: the least recently loaded go."""
MOST_DAYS = 30
"""What was not loaded for so long goes, too."""
_LEAST_FREE = 4
"""Nothing is written where there is not room for so many times the size of the model."""
_UNFINISHED = ".new-"
"""How names of folders begin that are no copies yet."""
_LEFT_S = 3600.0
"""What nobody has finished for so long, nobody will."""
_DAY_S = 86_400.0
_GRAPH, _WEIGHTS = "model.onnx", "weights.bin"
"""Files of a copy."""
_MAPPED_BYTES = 65_536
"""Weights from so many bytes on are mapped: a smaller array is copied as quickly."""
_WRITING: Mapping[str, str] = {
    "session.optimized_model_external_initializers_file_name": _WEIGHTS,
    "session.optimized_model_external_initializers_min_size_in_bytes": str(_MAPPED_BYTES),
}
"""Options of the session that writes a copy."""
_FITS = json.dumps([__version__, onnxruntime.__version__, _WRITING, machine.cpu_digest()])
"""What a copy fits, beside the content: found out once, before replicas are forked."""
_ADVICE = "set XDG_CACHE_HOME"
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
        digest: str | None = None,
        optimises: bool = False,
    ) -> None:
        """Load a model.

        Args:
            path: the file.
            threads: inside one operator.
            device: `auto`, `cpu` or `cuda`.
            digest: SHA-256 of what the file holds; an optimised copy of that is loaded instead where there is one.
                None: unknown.
            optimises: whether one is written first where there is none. What keeps from that is told in the log.
        """
        path = _checked(path)
        _quieten()
        self.device = _device(device, path)
        quick = None
        copy = None if digest is None or self.device != cuda.CPU else _copy_of(digest)
        if digest is not None and copy is not None:
            quick = _of_copy(copy, threads)
            if quick is None and optimises and _write_copy(copy, path, digest):
                quick = _of_copy(copy, threads)
        self.optimised = None if quick is None else str(copy)
        """The copy that was loaded."""
        try:
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


def _copy_of(digest: str) -> pathlib.Path | None:
    """Where the optimised copy of a content is, or may be written; None: nowhere that nobody else can change."""
    name = hashlib.sha256(f"{digest} {_FITS}".encode()).hexdigest()[:32]
    try:
        folder = private_folder.made(private_folder.cache_folder() / COPIES, advice=_ADVICE)
        copy = folder / name
        if copy.is_symlink() or copy.exists():
            private_folder.check(copy, advice=_ADVICE)
    except OSError as error:
        _tell(str(error))
        return None
    return copy


@functools.cache
def _tell(reason: str) -> None:
    """Say once why there are no copies."""
    log.warning("models are loaded from their own files", extra={"reason": reason})


def _write_copy(copy: pathlib.Path, path: pathlib.Path, digest: str) -> bool:
    """Write an optimised copy, with all that it holds in one step; whether it is there.

    It is made of another copy, for the file may be replaced at any time; and where that one is there are no weights
    beside it, so a model with such has none.

    Args:
        copy: where it is to be.
        path: the model's file.
        digest: SHA-256 of what the file must hold.
    """
    try:
        size = path.stat().st_size
        if _LEAST_FREE * size > min(shutil.disk_usage(copy.parent).free, MOST_BYTES):
            raise OSError(f"{copy.parent} has no room for {_LEAST_FREE} times the size of a model")
        with tempfile.TemporaryDirectory(dir=copy.parent, prefix=_UNFINISHED) as name:
            own, made = pathlib.Path(name, "own", "model.onnx"), pathlib.Path(name, "made")
            own.parent.mkdir(mode=0o700)
            made.mkdir(mode=0o700)
            if _duplicated(path, own) != digest:
                raise ValueError("it has changed since it was deployed")
            _optimise(own, made)
            made.rename(copy)
    except Exception as error:  # no room, or the runtime has one of its dozen reasons
        if not copy.is_dir():  # else another replica was quicker
            facts = {"model": str(path), "error": _reason(error)}
            log.warning("no optimised copy is written", extra=facts)
            return False
    _trim(copy.parent)
    return True


def _duplicated(file: pathlib.Path, copy: pathlib.Path) -> str:
    """Copy a file as it is; returns SHA-256 of what the copy holds."""
    digest = hashlib.sha256()
    with file.open("rb") as read, copy.open("xb") as written:
        while block := read.read(_BLOCK_BYTES):
            digest.update(block)
            written.write(block)
    return digest.hexdigest()


def _optimise(path: pathlib.Path, folder: pathlib.Path) -> None:
    """Write the files of a copy so that they are whole even after a loss of power, and try them."""
    options = session_options(threads=1)
    options.optimized_model_filepath = str(folder / _GRAPH)
    for name, value in _WRITING.items():
        options.add_session_config_entry(name, value)
    _session(path, options, cuda.CPU)
    for file in folder.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    _session(folder / _GRAPH, _as_it_is(session_options(threads=1)), cuda.CPU)


def _trim(folder: pathlib.Path) -> None:
    """Remove the least recently loaded copies where there are too many, and what a killed replica has left."""
    used_s: dict[pathlib.Path, float] = {}
    with contextlib.suppress(OSError):
        for copy in folder.iterdir():
            with contextlib.suppress(OSError):  # another replica has just removed it
                used_s[copy] = copy.stat().st_mtime
    together = 0
    for copy in sorted(used_s, key=lambda one: -used_s[one]):
        with contextlib.suppress(OSError):
            together += sum(file.stat().st_size for file in copy.glob("*"))
        most_s = _LEFT_S if copy.name.startswith(_UNFINISHED) else MOST_DAYS * _DAY_S
        if together > MOST_BYTES or time.time() - used_s[copy] > most_s:
            shutil.rmtree(copy, ignore_errors=True)


def _of_copy(copy: pathlib.Path, threads: int) -> onnxruntime.InferenceSession | None:
    """A session of an optimised copy; None where there is none, or it cannot be loaded."""
    if not copy.is_dir():
        return None
    try:
        with contextlib.suppress(OSError):  # of a file system that is read-only
            os.utime(copy)  # the least recently loaded are removed first
        _read_in(copy / _WEIGHTS)
        return _session(copy / _GRAPH, _as_it_is(session_options(threads=threads)), cuda.CPU)
    except Exception as error:  # it was removed meanwhile, or is not what was written
        facts = {"folder": str(copy), "error": _reason(error)}
        log.warning(
            "the optimised copy cannot be loaded and is of no use; the model's own file is loaded",
            extra=facts,
        )
        shutil.rmtree(copy, ignore_errors=True)
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
