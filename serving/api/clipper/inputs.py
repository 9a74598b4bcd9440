"""Conversion of one input of Clipper's query protocol to a model request.

Numbers take the shape and datatype of the model's only input; strings and bytes become one BYTES
element.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.api.open_inference.infer_request import DecodedRequest, tensor_request
from serving.api.parsing.tensors import item_shape
from serving.errors import InvalidRequest
from serving.tensors.json_tensors import NUMPY
from serving.values import Signature, Tensor, TensorSpec

INPUT_TYPES: dict[str, str] = {
    **dict.fromkeys(("integers", "ints", "integer", "int", "i"), "integers"),
    **dict.fromkeys(("floats", "float", "f"), "floats"),
    **dict.fromkeys(("doubles", "double", "d"), "doubles"),
    **dict.fromkeys(("strings", "string", "str", "strs", "s"), "strings"),
    **dict.fromkeys(("bytes", "byte", "b"), "bytes"),
}
"""Accepted name -> canonical name."""


class ApplicationInput(NamedTuple):
    """One input of an application."""

    kind: str
    value: Sequence[int | float] | bytes
    """Numbers, or the bytes of a `strings` or `bytes` input."""

    @property
    def key(self) -> bytes:
        """Bytes that identify the input within its application, for feedback."""
        if isinstance(self.value, bytes):
            return self.value
        form = "<i4" if self.kind == "integers" else "<f4" if self.kind == "floats" else "<f8"
        with np.errstate(over="ignore"):
            return np.array(self.value, dtype=np.float64).astype(form).tobytes()

    def query(self, signature: Signature, timeout_s: float | None = None) -> DecodedRequest:
        """Return a model request, or raise InvalidRequest if the model cannot take the input."""
        return tensor_request([self._tensor(signature)], 1, timeout_s=timeout_s)

    def _tensor(self, signature: Signature) -> Tensor:
        if len(signature.inputs) != 1:
            names = ", ".join(spec.name for spec in signature.inputs) or "none"
            raise InvalidRequest(
                "a query of this protocol has one input, the model has "
                f"{len(signature.inputs)} ({names}); use another protocol"
            )
        spec = signature.inputs[0]
        if not _takes_one_item(spec, signature):
            raise InvalidRequest(
                f"input {spec.name!r} of shape {list(spec.shape)} does not accept one "
                "item as its first dimension; use another protocol"
            )
        if self.kind not in _fitting_kinds(spec):
            raise InvalidRequest(
                f"input {spec.name!r} of the model takes {spec.datatype}, the application's input "
                f"type is {self.kind}"
            )
        is_text = spec.datatype == "BYTES"
        shape = (1, *item_shape(spec, 1 if is_text else len(self.value)))
        if not isinstance(self.value, bytes):
            data = _number_bytes(self.value, spec)
        else:
            data = struct.pack("<I", len(self.value)) + self.value if is_text else self.value
        return Tensor(spec.name, spec.datatype, shape, data)


def input_type(text: str) -> str:
    """Return the canonical name of an input type, or raise InvalidRequest."""
    if text not in INPUT_TYPES:
        raise InvalidRequest(f"{text} is not a valid input string")
    return INPUT_TYPES[text]


def input_types(signature: Signature) -> tuple[str, ...]:
    """Return the input types that fit a model."""
    if len(signature.inputs) != 1:
        return ()
    spec = signature.inputs[0]
    return _fitting_kinds(spec) if _takes_one_item(spec, signature) else ()


def _fitting_kinds(spec: TensorSpec) -> tuple[str, ...]:
    if spec.datatype == "BYTES":
        return "bytes", "strings"
    numbers = ("integers", "floats", "doubles")
    return (*numbers, "bytes") if spec.datatype == "UINT8" else numbers


def _takes_one_item(spec: TensorSpec, signature: Signature) -> bool:
    is_first = spec.item_axis == 0 or not signature.is_batched
    return is_first and bool(spec.shape) and spec.shape[0] in {-1, 1}


def _number_bytes(values: Sequence[int | float], spec: TensorSpec) -> bytes:
    wanted = np.dtype(NUMPY[spec.datatype])
    wide: NDArray[np.float64] = np.array(values, dtype=np.float64)
    if wanted.kind == "f":
        with np.errstate(over="ignore"):
            array = wide.astype(wanted)
        if not np.isfinite(array).all():
            raise _out_of_range(values, spec)
        return array.tobytes()
    if not np.array_equal(np.floor(wide), wide):
        raise InvalidRequest(
            f"input {spec.name!r} of the model takes {spec.datatype}, but not all values are whole"
        )
    low, high = (0, 1) if wanted.kind == "b" else (np.iinfo(wanted).min, np.iinfo(wanted).max)
    # float64 is exact: Clipper's integers have 32 bits, and the others were floats.
    if wide.size and not (low <= int(wide.min()) and int(wide.max()) <= high):
        raise _out_of_range(values, spec)
    return wide.astype(wanted).tobytes()


def _out_of_range(values: Sequence[int | float], spec: TensorSpec) -> InvalidRequest:
    return InvalidRequest(
        f"input {spec.name!r} of the model takes {spec.datatype}, but the values range "
        f"from {min(values)} to {max(values)}"
    )
