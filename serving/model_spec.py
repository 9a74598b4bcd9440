"""Model spec: everything needed to load a model or one of its variants."""

from __future__ import annotations

import dataclasses
import glob
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving.error_text import nearest
from serving.errors import InvalidSettings
from serving.values import ModelId


class Program(NamedTuple):
    """Program that acts as a replica, and its working folder."""

    words: tuple[str, ...]
    """Path and arguments of the program; the socket's path is appended."""
    folder: pathlib.Path


class Variant(NamedTuple):
    """Alternative weights for the same inputs and outputs, for example with fewer layers."""

    path: pathlib.Path
    """Absolute path of the weights."""
    quality: Mapping[str, Any]
    """Measured quality; see `ModelSpec`."""

    @property
    def accuracy(self) -> float | None:
        """Accuracy from 0 to 1, if measured."""
        return _accuracy(self.quality)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Everything needed to load a model, read from `model.yaml` or derived from a path."""

    name: str
    version: str
    kind: str
    """One of `serving.models.KINDS` (onnx, sklearn, torch, python, ...)."""
    path: pathlib.Path | None
    """Absolute path of the weights; None if the kind needs none."""
    program: Program | None = None
    """Program to start as the replica; only for the `command` kind."""
    description: str = ""
    sample: pathlib.Path | None = None
    """npz file of real inputs: an array per input, with items along axis 0; optionally `labels`."""
    quality: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Measured quality, with keys such as dataset, metric, value and n."""
    shapes: tuple[str, ...] = ()
    """Sizes of free dimensions; `model.shapes` overrides them by name."""
    values: tuple[str, ...] = ()
    """Values of synthetic inputs; `model.values` overrides them by input."""
    item_axis: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Item axes, as in `DeclaredInputs`."""
    shared: tuple[str, ...] = ()
    """Shared inputs, as in `DeclaredInputs`."""
    pad: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Fill values of padding, as in `DeclaredInputs`."""
    variants: Mapping[str, Variant] = dataclasses.field(default_factory=dict)
    """Variants by name, as in `model.variant`; one has the weights at `path`."""

    @property
    def accuracy(self) -> float | None:
        """Accuracy from 0 to 1, if measured."""
        return _accuracy(self.quality)

    @property
    def default_variant(self) -> str | None:
        """Variant that is served by default, if there are variants."""
        return next((name for name, one in self.variants.items() if one.path == self.path), None)

    def weights(self, variant: str | None) -> pathlib.Path | None:
        """Return the path of a variant's weights; None means the default variant.

        Raises:
            InvalidSettings: there is no such variant.
        """
        if variant is None:
            return self.path
        if variant not in self.variants:
            names = ", ".join(self.variants)
            known = f"its variants are {names}" if names else "it has no variants"
            raise InvalidSettings(
                f"model.variant = {variant!r}: {self.name} has no such "
                f"variant{nearest(variant, self.variants)}; {known} "
                "(models.NAME.model.variant sets it for one model)"
            )
        return self.variants[variant].path

    @property
    def id(self) -> ModelId:
        """Name and version of the model."""
        return ModelId(self.name, self.version)

    @property
    def files(self) -> tuple[pathlib.Path, ...]:
        """Absolute paths that replicas of any variant read, to be mounted into containers.

        Programs and Python code need their folder, as they may use files next to them; other models
        need their file or folder, files whose names extend its name (ONNX weights), and the
        signature file.
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
        """Readable name: the model's name and the path of its weights."""
        return self.name if self.path is None else f"{self.name} ({self.path})"


def _accuracy(quality: Mapping[str, Any]) -> float | None:
    value = quality.get("value")
    if quality.get("metric") != "accuracy" or not isinstance(value, int | float):
        return None
    return float(value)
