"""Model kind `onnx`: an ONNX file in ONNX Runtime, on the CPU or a CUDA GPU.

String inputs are object arrays of bytes or str; string outputs are object arrays of str.
"""

from __future__ import annotations

import logging
import mmap
import pathlib
import re

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

from serving.errors import InvalidRequest, ModelLoadFailed
from serving.models import Arrays, check_file, cuda, decode_texts
from serving.models.onnx_copies import copy_of, open_copy, write_copy
from serving.models.onnx_session import (
    CUDA_PROVIDER,
    choose_device,
    open_session,
    reason_of,
    session_options,
)
from serving.tensors import arrays
from serving.values import ITEM_BYTES, Signature, TensorSpec

log = logging.getLogger(__name__)


_ELEMENTS = {"FP32": "float", "FP64": "double", "BYTES": "string"}
DATATYPES = {
    f"tensor({_ELEMENTS.get(name) or arrays.DTYPES[name].name})": name for name in ITEM_BYTES
}

_DIMENSION = re.compile(r"(?!unk__\d|(?:p2o\.)?DynamicDimension\.)[A-Za-z_][\w.-]*")
"""Pattern of dimension names that an author rather than an exporter chose."""

_DYNAMIC = tuple(
    b"\x22" + bytes([len(name)]) + name
    for name in (b"DynamicQuantizeLinear", b"DynamicQuantizeMatMul", b"DynamicQuantizeLSTM")
)
"""Encoded node types (field 4 of NodeProto) whose scale depends on all items of the batch."""

_UNREADABLE = re.compile(r"parsing failed|No graph was found")


class Model:
    """ONNX graph in an ONNX Runtime session."""

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
        """Load a model; on the CPU, load its optimised model if that exists.

        `digest` is the SHA-256 of the file; if None, the file itself is loaded. `optimises` writes
        a missing optimised model first; failures are logged.
        """
        path = check_file(path, "the kind onnx needs an .onnx file")
        onnxruntime.set_default_logger_severity(3)  # errors only
        onnxruntime.disable_telemetry_events()
        self.device = choose_device(device, path)
        quick = None
        copy = None if digest is None or self.device != cuda.CPU else copy_of(digest)
        if digest is not None and copy is not None:
            quick = open_copy(copy, threads)
            if quick is None and optimises and write_copy(copy, path, digest):
                quick = open_copy(copy, threads)
        self.optimised = None if quick is None else str(copy)
        try:
            options = session_options(threads=threads)
            self._session = quick or open_session(path, options, self.device)
        except Exception as error:  # the runtime has a dozen unrelated exception classes
            reason = reason_of(error)
            if _UNREADABLE.search(reason):
                reason = f"it is not a readable ONNX file: {reason}"
            raise ModelLoadFailed(
                str(path),
                f"{reason} (ONNX Runtime {onnxruntime.__version__}); "
                "expected an ONNX file that onnx.checker.check_model accepts",
            ) from error
        if self.device == cuda.CUDA and CUDA_PROVIDER not in self._session.get_providers():
            # The runtime logs missing CUDA libraries and continues without them.
            if device == cuda.CUDA:
                raise ModelLoadFailed(
                    str(path),
                    "accelerator.device is cuda, but ONNX Runtime's CUDA provider does "
                    "not start; the previous line names what is missing, mostly CUDA or "
                    "cuDNN of its version",
                )
            self.device = cuda.CPU
        self.signature = Signature(
            inputs=tuple(_spec(item, path) for item in self._session.get_inputs()),
            outputs=tuple(_spec(item, path) for item in self._session.get_outputs()),
            platform="onnxruntime_onnx",
            unbatched=_why_unbatched(path),
        )
        self._outputs = [spec.name for spec in self.signature.outputs]
        self._strings = [spec.name for spec in self.signature.inputs if spec.datatype == "BYTES"]

    def predict_batch(self, inputs: Arrays) -> Arrays:
        """Run the graph once; raise InvalidRequest if an input is missing or does not fit."""
        for name in self._strings:
            if name in inputs:
                inputs = {**inputs, name: decode_texts(inputs[name])}
        try:
            results = self._session.run(self._outputs, inputs)
        except (states.InvalidArgument, ValueError) as error:
            raise InvalidRequest(reason_of(error, lines=2)) from error
        return dict(zip(self._outputs, results, strict=True))


def _spec(item: onnxruntime.NodeArg, path: pathlib.Path) -> TensorSpec:
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
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        if any(data.find(mark) >= 0 for mark in _DYNAMIC):
            return "it is quantised dynamically, with scales that depend on all items of a batch"
    return None
