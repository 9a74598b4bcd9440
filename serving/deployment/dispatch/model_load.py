"""Model loads: orders to a replica, and its reports.

Replicas may be written in any language, so invalid values in their reports are left out.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from serving import wire
from serving.model_spec import ModelSpec
from serving.settings.replica import ModelSettings
from serving.tensors.input_values import values_of
from serving.tensors.item_axes import detect_item_axes
from serving.tensors.sizes import pads_of, sizes_of, to_texts
from serving.values import DeclaredInputs, Signature, StageTimes

Number = TypeVar("Number", int, float)

_MAX_DIGITS = 7


class LoadSpec(NamedTuple):
    """A model to load, and how."""

    spec: ModelSpec
    threads: int
    max_items: int = 1
    warmup_s: float = 0.0
    device: str = "auto"
    weights: pathlib.Path | None = None
    root: pathlib.Path | None = None
    """Staging root, below which staged files keep their paths; None if not staged."""
    pages: int = 0
    budget: int | None = None
    """Maximum number of pages for all models in the replica."""
    digest: str | None = None
    """SHA-256 of the file if an optimised model may be loaded instead."""
    optimises: bool = False
    inputs: DeclaredInputs = DeclaredInputs()
    max_response_bytes: int | None = None


class LoadReport(NamedTuple):
    """A replica's report on a loaded model; values are None or empty if not reported."""

    signature: Signature
    load_s: float | None
    """Seconds of the model load, including the warm-up."""
    warmup: Mapping[str, Any]
    device: str | None
    memory_bytes: int | None = None
    optimised: str | None = None

    @property
    def batch_s(self) -> dict[int, float]:
        """Seconds that warm-up batches took, by number of items."""
        return {
            items: seconds
            for items, seconds in self._by_size("batch_s").items()
            if isinstance(seconds, float) and 0.0 < seconds < math.inf
        }

    @property
    def stages_s(self) -> dict[int, tuple[float, float, float]]:
        """Seconds for a batch's inputs, model and outputs, by number of items."""
        return {
            items: (stages[0], stages[1], stages[2])
            for items, stages in self._by_size("stages_s").items()
            if isinstance(stages, list)
            and len(stages) == 3
            and all(isinstance(each_s, float) and 0.0 <= each_s < math.inf for each_s in stages)
        }

    def _by_size(self, name: str) -> dict[int, Any]:
        told = self.warmup.get(name)
        return {
            int(items): value
            for items, value in (told.items() if isinstance(told, dict) else ())
            if isinstance(items, str)
            and items.isdecimal()
            and len(items) <= _MAX_DIGITS
            and int(items) > 0
        }

    @property
    def warmed_s(self) -> float:
        """Seconds that the warm-up took; 0 if not reported."""
        return _number(self.warmup, "warmup_s", float) or 0.0


def declared_inputs(
    spec: ModelSpec,
    settings: ModelSettings,
    *,
    pad_to: int | None,
    known: Signature | None = None,
) -> DeclaredInputs:
    """Return a model's declared inputs.

    Args:
        settings: the model's own settings, which override the spec.
        known: signature reported by another replica.
    """
    shapes = sizes_of(spec.shapes, source="shapes")
    if settings.shapes is not None:
        shapes |= sizes_of(settings.shapes.split(), source="model.shapes")
    values = values_of(spec.values, source="values")
    if settings.values is not None:
        values |= values_of(settings.values.split(), source="model.values")
    return DeclaredInputs(
        shapes=to_texts(shapes),
        values=tuple(f"{name}={told}" for name, told in values.items()),
        item_axis=spec.item_axis,
        shared=spec.shared,
        pad={**spec.pad, **(pads_of(settings.pad) if settings.pad else {})},
        pad_to=pad_to if pad_to is not None and pad_to > 1 else None,
        unbatched=None if known is None or known.is_untried else known.unbatched,
        padding=None if known is None else known.padding,
    )


def parse_load_report(detail: Mapping[str, Any]) -> LoadReport:
    """Parse the report in a LOADED message.

    Raises:
        WireError: the report has no valid signature.
    """
    try:
        signature = Signature.from_json(detail["signature"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"LOADED holds no signature: {error!r}") from error
    # Programs in other languages do not detect item axes.
    signature = detect_item_axes(signature, item_axis={}, shared=(), where="")
    warmup, device, optimised = (detail.get(name) for name in ("warmup", "device", "optimised"))
    return LoadReport(
        signature,
        _number(detail, "load_s", float),
        warmup if isinstance(warmup, dict) else {},
        device if isinstance(device, str) else None,
        _number(detail, "memory_bytes", int),
        optimised if isinstance(optimised, str) else None,
    )


def load_times(detail: Mapping[str, Any], sent_s: float) -> StageTimes | None:
    """Return the delay and duration of a model load, or None if they were not reported."""
    started_ns, load_s = _number(detail, "started_ns", int), _number(detail, "load_s", float)
    if started_ns is None or load_s is None:
        return None
    return StageTimes(max(0.0, started_ns * 1e-9 - sent_s), 0.0, load_s, 0.0)


def _number(detail: Mapping[str, Any], name: str, kind: type[Number]) -> Number | None:
    value = detail.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    is_one = isinstance(value, kind) and not isinstance(value, bool) and 0 <= value < math.inf
    return value if is_one else None
