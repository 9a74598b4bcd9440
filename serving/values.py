"""Values that cross the rooms of the serving core: models, tensors, queries, predictions.

Pure data: no sockets, no clocks, no model code. A tensor's bytes stay as they came off the wire
(little-endian, row-major, the binary form of the Open Inference Protocol) until a replica needs
them, so the gateway never copies a payload into an array.
"""

from __future__ import annotations

import dataclasses
import glob
import pathlib
from collections.abc import Mapping
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

Buffer = bytes | bytearray | memoryview


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, datatype and shape of one input or output; -1 marks a free dimension, the first is the batch."""

    name: str
    datatype: str
    shape: tuple[int, ...]

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

    def as_json(self) -> dict[str, Any]:
        """The form of the protocol's metadata: name, datatype, shape."""
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TensorSpec:
        """Inverse of `as_json`; raises KeyError or ValueError on a malformed mapping."""
        return cls(
            name=str(data["name"]), datatype=str(data["datatype"]), shape=tuple(data["shape"])
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """Inputs and outputs of a loaded model, as its replica reported them."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str = ""
    reads_json: bool = True
    """Whether its replica reads requests in JSON as they came; not part of the JSON form."""

    @property
    def is_batched(self) -> bool:
        """Whether items of several requests can run together: no input has a fixed first dimension."""
        return not any(spec.shape and spec.shape[0] >= 0 for spec in self.inputs)

    def as_json(self) -> dict[str, Any]:
        """JSON form that travels in the replica wire's LOAD result."""
        return {
            "inputs": [spec.as_json() for spec in self.inputs],
            "outputs": [spec.as_json() for spec in self.outputs],
            "platform": self.platform,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Inverse of `as_json`."""
        return cls(
            inputs=tuple(TensorSpec.from_json(item) for item in data["inputs"]),
            outputs=tuple(TensorSpec.from_json(item) for item in data["outputs"]),
            platform=str(data.get("platform", "")),
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
