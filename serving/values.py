"""Shared values of the serving core: models, signatures, tensors.

A tensor keeps its wire bytes (Open Inference binary form: little-endian, row-major) until a replica
needs them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ITEM_BYTES: dict[str, int] = {
    "BOOL": 1,
    "UINT8": 1,
    "UINT16": 2,
    "UINT32": 4,
    "UINT64": 8,
    "INT8": 1,
    "INT16": 2,
    "INT32": 4,
    "INT64": 8,
    "FP16": 2,
    "FP32": 4,
    "FP64": 8,
    "BYTES": 0,
}
"""Open Inference datatype -> bytes per element; 0 means variable."""

MAX_RANK = 32
"""Maximum rank of a tensor: NumPy's limit before version 2."""
MAX_ELEMENTS = 2**40
"""Maximum number of elements in a request's tensor, so that its size in bytes fits into 63 bits."""
MAX_NOTHING = 2**16
"""Maximum number of rows in an empty tensor, as code iterates over them."""

Buffer = bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, datatype and shape of an input or output; -1 means a free dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    dimensions: tuple[str, ...] = ()
    """Dimension names in the model's file, "" if unnamed; empty if all are unnamed."""
    item_axis: int | None = 0
    """Item axis; None if the model is not batched or all items share the input."""

    def __post_init__(self) -> None:
        if self.datatype not in ITEM_BYTES:
            raise ValueError(
                f"tensor {self.name!r}: datatype {self.datatype!r} is not one of {', '.join(ITEM_BYTES)}"
            )
        if not all(type(size) is int and size >= -1 for size in self.shape):
            raise ValueError(
                f"tensor {self.name!r}: shape {list(self.shape)!r} is invalid; expected "
                "whole numbers, -1 for a free dimension"
            )

    def dimension(self, axis: int) -> str:
        """Return a dimension's name, or an empty string."""
        return self.dimensions[axis] if self.dimensions else ""

    def as_json(self) -> dict[str, Any]:
        """Return Open Inference metadata, with Luthier's additions under `parameters`."""
        data = {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
        known: dict[str, Any] = {}
        if any(self.dimensions):
            known["dimensions"] = list(self.dimensions)
        if self.item_axis != 0:
            known["item_axis"] = self.item_axis
        return {**data, "parameters": known} if known else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        """Parse the result of `as_json`, or raise KeyError, TypeError or ValueError."""
        known, shape = data.get("parameters") or {}, tuple(data["shape"])
        dimensions = tuple(map(str, known.get("dimensions", ())))
        axis = known.get("item_axis", 0)
        if len(dimensions) not in (0, len(shape)):
            raise ValueError(f"{len(dimensions)} names for {len(shape)} dimensions")
        if axis is not None and not (type(axis) is int and 0 <= axis < max(1, len(shape))):
            raise ValueError(f"item axis {axis!r} of {len(shape)} dimensions")
        return cls(
            name=str(data["name"]),
            datatype=str(data["datatype"]),
            shape=shape,
            dimensions=dimensions,
            item_axis=axis,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of a loaded model, as its replica reported them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str = ""
    reads_json: bool = True
    """Whether the replica parses JSON requests itself."""
    unbatched: str | None = None
    """Reason why requests run alone; empty if they are batched, None if the shapes decide."""
    is_untried: bool = False
    """Whether declared sizes or values could still allow a batching check."""
    padding: str | None = None
    """Reason why requests cannot be padded; empty if they can be, None if unknown."""

    @property
    def is_batched(self) -> bool:
        """Whether items of several requests can run together."""
        if self.unbatched is None:
            return not any(spec.shape and spec.shape[0] >= 0 for spec in self.inputs)
        return not self.unbatched

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for LOADED."""
        data = {
            "inputs": [spec.as_json() for spec in self.inputs],
            "outputs": [spec.as_json() for spec in self.outputs],
            "platform": self.platform,
        }
        return {**data, "parameters": self.parameters} if self.parameters else data

    @property
    def parameters(self) -> dict[str, str | bool]:
        """Facts about batching and padding, for the model's metadata."""
        told = {
            "unbatched": self.unbatched,
            "untried": self.is_untried or None,
            "padding": self.padding,
        }
        return {name: value for name, value in told.items() if value is not None}

    @property
    def sizing_signature(self) -> Signature:
        """Signature for which users give sizes; it has item axes if batching is unchecked."""
        return (
            dataclasses.replace(self, unbatched="", is_untried=False) if self.is_untried else self
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Parse the result of `as_json`."""
        return cls(
            inputs=tuple(TensorSpec.from_json(item) for item in data["inputs"]),
            outputs=tuple(TensorSpec.from_json(item) for item in data["outputs"]),
            platform=str(data.get("platform", "")),
            unbatched=_text(data.get("parameters"), "unbatched"),
            is_untried=(data.get("parameters") or {}).get("untried") is True,
            padding=_text(data.get("parameters"), "padding"),
        )


def _text(data: Mapping[str, Any] | None, name: str) -> str | None:
    value = (data or {}).get(name)
    return None if value is None else str(value)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredInputs:
    """Declarations about a model's inputs that go beyond the model's file."""

    shapes: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    item_axis: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Input or output -> item axis; if any is named, the others have axis 0."""
    shared: tuple[str, ...] = ()
    pad: Mapping[str, float] = dataclasses.field(default_factory=dict)
    pad_to: int | None = None
    """Free dimensions are padded to a multiple of this."""
    unbatched: str | None = None
    """Another replica's finding; see `Signature.unbatched`."""
    padding: str | None = None
    """Another replica's finding; see `Signature.padding`."""

    def as_json(self) -> dict[str, Any]:
        """Return the JSON form for LOAD."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> DeclaredInputs:
        """Parse the result of `as_json`, or raise TypeError or ValueError."""
        pad_to = data.get("pad_to")
        return cls(
            shapes=tuple(map(str, data.get("shapes", ()))),
            values=tuple(map(str, data.get("values", ()))),
            item_axis={str(name): int(axis) for name, axis in data.get("item_axis", {}).items()},
            shared=tuple(map(str, data.get("shared", ()))),
            pad={str(name): float(value) for name, value in data.get("pad", {}).items()},
            pad_to=None if pad_to is None else int(pad_to),
            unbatched=_text(data, "unbatched"),
            padding=_text(data, "padding"),
        )


class ModelId(NamedTuple):
    """Name and version of a model; a version is any string."""

    name: str
    version: str


def is_shape(shape: Sequence[object]) -> bool:
    """Return whether a request's tensor can have this shape.

    Dimensions before a 0 count too, as code iterates over them.
    """
    if len(shape) > MAX_RANK:
        return False
    elements = rows = 1
    for length in shape:
        if type(length) is not int or not 0 <= length < MAX_ELEMENTS:
            return False
        if length:
            elements *= length
        elif rows > MAX_NOTHING:
            return False
        rows *= length
    return elements < MAX_ELEMENTS


class Tensor(NamedTuple):
    """A tensor with its raw bytes; `data` may be valid only while the request lasts."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


class StageTimes(NamedTuple):
    """Seconds that a batch spent in a replica: in its buffer, then in each stage."""

    queue_s: float
    input_s: float
    exec_s: float
    output_s: float
