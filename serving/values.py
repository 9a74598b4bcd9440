"""Values that cross the rooms of the serving core: models, tensors, queries, predictions.

Pure data: no sockets, no clocks, no model code. A tensor's bytes stay as they came off the wire
(little-endian, row-major, the binary form of the Open Inference Protocol) until a replica needs
them, so the gateway never copies a payload into an array.
"""

from __future__ import annotations

import dataclasses
import glob
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from serving.errors import InvalidSettings, nearest

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
"""Open Inference Protocol datatypes and the bytes of one element (0: variable, BYTES)."""

MAX_RANK = 32
"""Dimensions of a tensor: what numpy allowed before its version 2."""
MAX_ELEMENTS = 2**40
"""Of a tensor of a request; its bytes can be counted in 63 bits, whatever their type."""
MAX_NOTHING = 2**16
"""Rows of nothing: a request names as many as it likes in a few bytes, and code that walks them takes its time."""

Buffer = bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, datatype and shape of one input or output; -1 marks a free dimension."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    dimensions: tuple[str, ...] = ()
    """Names of the dimensions as the model's file has them, an empty one where it has none; or nothing at all."""
    item_axis: int | None = 0
    """Where the items of a batch lie, if the model is batched. None: an input that all items share."""

    def __post_init__(self) -> None:
        if self.datatype not in ITEM_BYTES:
            raise ValueError(
                f"tensor {self.name!r}: datatype {self.datatype!r} is not one of {', '.join(ITEM_BYTES)}"
            )
        if not all(type(size) is int and size >= -1 for size in self.shape):
            raise ValueError(
                f"tensor {self.name!r}: shape {list(self.shape)!r} is none; expected whole numbers, "
                f"-1 for a free dimension"
            )

    def dimension(self, axis: int) -> str:
        """The name of a dimension; empty where it has none."""
        return self.dimensions[axis] if self.dimensions else ""

    def as_json(self) -> dict[str, Any]:
        """The form of the protocol's metadata: name, datatype, shape; what else is known as its `parameters`."""
        data = {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}
        known: dict[str, Any] = {}
        if any(self.dimensions):
            known["dimensions"] = list(self.dimensions)
        if self.item_axis != 0:
            known["item_axis"] = self.item_axis
        return {**data, "parameters": known} if known else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        """Inverse of `as_json`; raises KeyError, TypeError or ValueError on a malformed mapping."""
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
    """Whether its replica reads requests in JSON as they came; not part of the JSON form."""
    unbatched: str | None = None
    """Why requests run one at a time, whole; empty: items of several run together. None: the shapes alone tell."""
    is_untried: bool = False
    """Whether that is so only until sizes or values are told with which a batch can be tried."""
    padding: str | None = None
    """Why requests of different sizes are not filled up to one; empty: they can be. None: nothing is known."""

    @property
    def is_batched(self) -> bool:
        """Whether items of several requests can run together."""
        if self.unbatched is None:
            return not any(spec.shape and spec.shape[0] >= 0 for spec in self.inputs)
        return not self.unbatched

    def as_json(self) -> dict[str, Any]:
        """JSON form that travels in the replica wire's LOAD result."""
        data = {
            "inputs": [spec.as_json() for spec in self.inputs],
            "outputs": [spec.as_json() for spec in self.outputs],
            "platform": self.platform,
        }
        return {**data, "parameters": self.parameters} if self.parameters else data

    @property
    def parameters(self) -> dict[str, str | bool]:
        """What is known of batches, for the model's metadata; see `unbatched` and `padding`."""
        told = {
            "unbatched": self.unbatched,
            "untried": self.is_untried or None,
            "padding": self.padding,
        }
        return {name: value for name, value in told.items() if value is not None}

    @property
    def asked(self) -> Signature:
        """The signature by which sizes are asked for: with item axes, as long as these were not tried."""
        return (
            dataclasses.replace(self, unbatched="", is_untried=False) if self.is_untried else self
        )

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Inverse of `as_json`."""
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
class ToldInputs:
    """What a replica is told of a model's inputs beside what the model's file says."""

    shapes: tuple[str, ...] = ()
    """Sizes of free dimensions, as `sizes.sizes_of` reads them."""
    values: tuple[str, ...] = ()
    """What stands in inputs that are made up, as `input_values` reads it."""
    item_axis: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Input or output -> axis of the items; what is not named, where any is, has them along axis 0."""
    shared: tuple[str, ...] = ()
    """Inputs that must be equal in all requests of a batch."""
    pad: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Input -> value that fills it up to a larger size."""
    pad_to: int | None = None
    """Free dimensions are filled up to a multiple of it; None: not at all."""
    unbatched: str | None = None
    """What another replica has found of it; see `Signature`."""
    padding: str | None = None
    """The same."""

    def as_json(self) -> dict[str, Any]:
        """JSON form that travels in the replica wire's LOAD."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToldInputs:
        """Inverse of `as_json`; raises TypeError or ValueError on a malformed mapping."""
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
    """Name and version of one model; versions are any string."""

    name: str
    version: str


class Program(NamedTuple):
    """A program that is a replica itself, and the folder in which it is started."""

    words: tuple[str, ...]
    """Path and arguments; the socket's path is added as the last one."""
    folder: pathlib.Path


class Variant(NamedTuple):
    """One form of a model: other weights for the same inputs and outputs, for example fewer layers."""

    path: pathlib.Path
    """Weights, absolute."""
    quality: Mapping[str, Any]
    """Measured quality, as of a card."""

    @property
    def accuracy(self) -> float | None:
        """The measured accuracy, from 0 to 1; None where something else or nothing was measured."""
        return _accuracy(self.quality)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What is needed to load a model, and what is known about it before it is loaded.

    A card comes from a zoo folder's `model.yaml` or is made from the path that a user gave.
    """

    name: str
    version: str
    kind: str
    """Container that runs it: a key of `serving.models.KINDS` (onnx, sklearn, torch, python, ...)."""
    path: pathlib.Path | None
    """Weights, absolute; None where the kind needs none."""
    program: Program | None = None
    """What is started as its replica; for the kind command only."""
    description: str = ""
    sample: pathlib.Path | None = None
    """npz of real inputs: one array per input name, first axis = items, and optionally `labels`."""
    quality: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Measured quality, for example dataset, metric, value, n."""
    shapes: tuple[str, ...] = ()
    """Sizes of free dimensions, as `sizes.sizes_of` reads them; `model.shapes` wins over them, name by name."""
    values: tuple[str, ...] = ()
    """What stands in inputs that are made up, as `input_values` reads it; `model.values` wins, input by input."""
    item_axis: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Input or output -> axis of the items, where that is told; what it does not name has them along axis 0."""
    shared: tuple[str, ...] = ()
    """Inputs that must be equal in all requests of a batch."""
    pad: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Input -> value that fills it up to a larger size."""
    variants: Mapping[str, Variant] = dataclasses.field(default_factory=dict)
    """Forms of the model by name, from which `model.variant` chooses; one of them has the weights of `path`."""

    @property
    def accuracy(self) -> float | None:
        """The measured accuracy, from 0 to 1; None where something else or nothing was measured."""
        return _accuracy(self.quality)

    @property
    def default_variant(self) -> str | None:
        """The variant that is served where none is named; None: there are no variants."""
        return next((name for name, one in self.variants.items() if one.path == self.path), None)

    def weights(self, variant: str | None) -> pathlib.Path | None:
        """The weights of a variant; None: the default one's.

        Raises:
            InvalidSettings: the model has no variant of that name.
        """
        if variant is None:
            return self.path
        if variant not in self.variants:
            names = ", ".join(self.variants)
            known = f"its variants are {names}" if names else "it has no variants"
            raise InvalidSettings(
                f"model.variant = {variant!r}: {self.name} has none of that name"
                f"{nearest(variant, self.variants)}; {known} (models.NAME.model.variant is one model's own)"
            )
        return self.variants[variant].path

    @property
    def id(self) -> ModelId:
        """Name and version."""
        return ModelId(self.name, self.version)

    @property
    def files(self) -> tuple[pathlib.Path, ...]:
        """Files and folders, absolute, that a replica reads: all that a container of it needs to see.

        Of a program and of Python code their folder, for they may use what lies beside them; of another model
        its file or folder, with what has its name and more (weights beside an ONNX file) or is its signature.
        Of all its variants.
        """
        found: list[pathlib.Path] = []
        if self.program is not None:
            found.append(self.program.folder)
        elif self.path is not None and self.path.is_absolute():
            paths = dict.fromkeys([self.path, *(one.path for one in self.variants.values())])
            for path in paths:
                of_it = [path.parent]
                if self.kind != "python":
                    of_it = sorted(path.parent.glob(f"{glob.escape(path.name)}*"))
                    of_it += path.parent.glob(f"{glob.escape(path.stem)}.signature.yaml")
                found += [one for one in of_it if one not in found]
        if self.sample is not None and not any(self.sample.is_relative_to(path) for path in found):
            found.append(self.sample)
        return tuple(found)

    @property
    def label(self) -> str:
        """For people: the name, and where its weights are."""
        return self.name if self.path is None else f"{self.name} ({self.path})"


def _accuracy(quality: Mapping[str, Any]) -> float | None:
    value = quality.get("value")
    if quality.get("metric") != "accuracy" or not isinstance(value, int | float):
        return None
    return float(value)


def is_shape(shape: Sequence[object]) -> bool:
    """Whether a tensor of a request can have this shape.

    It has few dimensions, none of them negative, and so many elements. A dimension of 0 does not hide the others:
    arrays are laid out by their product, and walked from the first to the 0.
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
    """One tensor by its raw bytes; `data` may be a view that is only borrowed for the request's life."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    data: Buffer


class StageTimes(NamedTuple):
    """Seconds that one batch spent in a replica: waiting in its buffer, then per stage."""

    queue_s: float
    input_s: float
    exec_s: float
    output_s: float
