"""How a replica is to load a model, and what it says of it when it has. Values, and LOADED's details as such.

A replica may be written in any language, so what it tells is checked, and left out where it makes no sense.
"""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

from serving.input_values import values_of
from serving.item_axes import judged
from serving.replica import wire
from serving.settings import ModelSettings
from serving.sizes import pads_of, sizes_of, written
from serving.values import ModelCard, Signature, StageTimes, ToldInputs

Number = TypeVar("Number", int, float)

_MOST_DIGITS = 7
"""Of a batch's size."""


class Wanted(NamedTuple):
    """What a replica is to load, and how."""

    card: ModelCard
    """The model version."""
    threads: int
    """What the model may use inside one operator."""
    max_items: int = 1
    """Items of the largest batch that it is warmed up with."""
    warmup_s: float = 0.0
    """Time for that; 0: it is not warmed up."""
    device: str = "auto"
    """Where it shall run: `accelerator.device`."""
    weights: pathlib.Path | None = None
    """Of the variant that it is to load; None: the card's."""
    root: pathlib.Path | None = None
    """Below which the replica finds the model's files, by their paths; None: where they are."""
    pages: int = 0
    """Memory that is counted for it."""
    budget: int | None = None
    """Pages of all models in the replica together, at most; None: no limit."""
    digest: str | None = None
    """SHA-256 of the file, where an optimised copy of it may be loaded instead."""
    optimises: bool = False
    """Whether such a copy is to be written first where there is none."""
    inputs: ToldInputs = ToldInputs()
    """What it is told of the model's inputs."""
    max_answer_bytes: int | None = None
    """Of a message from this replica; None: as many as there can be."""


class Loaded(NamedTuple):
    """What a replica says of a model that it has loaded."""

    signature: Signature
    load_s: float | None
    """Seconds that loading took, the warm-up included; None: it does not say."""
    warmup: Mapping[str, Any]
    """What was run before the first request, as docs/replica-wire.md has it; empty: it does not say."""
    device: str | None
    """Where it runs, `cpu` or `cuda`; None: it does not say."""
    memory_bytes: int | None = None
    """By how much the process has grown; None: it does not say."""
    optimised: str | None = None
    """Folder of the optimised copy that was loaded instead of its file; None: none was."""

    @property
    def batch_s(self) -> dict[int, float]:
        """Items -> seconds of a batch in the warm-up; what makes no sense is left out, as any language may tell it."""
        return {
            items: seconds
            for items, seconds in self._by_size("batch_s").items()
            if isinstance(seconds, float) and 0.0 < seconds < math.inf
        }

    @property
    def stages_s(self) -> dict[int, tuple[float, float, float]]:
        """Items -> seconds of the same batch's inputs, model and outputs; empty where that is not told."""
        return {
            items: (stages[0], stages[1], stages[2])
            for items, stages in self._by_size("stages_s").items()
            if isinstance(stages, list)
            and len(stages) == 3
            and all(isinstance(each_s, float) and 0.0 <= each_s < math.inf for each_s in stages)
        }

    def _by_size(self, name: str) -> dict[int, Any]:
        """What the warm-up tells batch by batch, of sizes that make sense."""
        told = self.warmup.get(name)
        return {
            int(items): value
            for items, value in (told.items() if isinstance(told, dict) else ())
            if isinstance(items, str)
            and items.isdecimal()
            and len(items) <= _MOST_DIGITS
            and int(items) > 0
        }

    @property
    def warmed_s(self) -> float:
        """Seconds of the load that went into the warm-up."""
        return _number(self.warmup, "warmup_s", float) or 0.0


def told_inputs(
    card: ModelCard,
    settings: ModelSettings,
    *,
    pad_to: int | None,
    known: Signature | None = None,
) -> ToldInputs:
    """What a replica is told of a model's inputs.

    Args:
        card: the model.
        settings: its own; what they say of an input or a dimension wins over the card.
        pad_to: `batching.pad_to`.
        known: the signature that another replica has found; None: there was none before.
    """
    shapes = sizes_of(card.shapes, source="shapes")
    if settings.shapes is not None:
        shapes |= sizes_of(settings.shapes.split(), source="model.shapes")
    values = values_of(card.values, source="values")
    if settings.values is not None:
        values |= values_of(settings.values.split(), source="model.values")
    return ToldInputs(
        shapes=written(shapes),
        values=tuple(f"{name}={told}" for name, told in values.items()),
        item_axis=card.item_axis,
        shared=card.shared,
        pad={**card.pad, **(pads_of(settings.pad) if settings.pad else {})},
        pad_to=pad_to if pad_to is not None and pad_to > 1 else None,
        unbatched=None if known is None or known.is_untried else known.unbatched,
        padding=None if known is None else known.padding,
    )


def what_was_loaded(detail: Mapping[str, Any]) -> Loaded:
    """What LOADED says of a model.

    Raises:
        WireError: no signature, without which nothing can be asked.
    """
    try:
        signature = Signature.from_json(detail["signature"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise wire.WireError(f"LOADED holds no signature: {error!r}") from error
    # A program of another language has not judged it.
    signature = judged(signature, item_axis={}, shared=(), where="")
    warmup, device, optimised = (detail.get(name) for name in ("warmup", "device", "optimised"))
    return Loaded(
        signature,
        _number(detail, "load_s", float),
        warmup if isinstance(warmup, dict) else {},
        device if isinstance(device, str) else None,
        _number(detail, "memory_bytes", int),
        optimised if isinstance(optimised, str) else None,
    )


def load_times(detail: Mapping[str, Any], sent_s: float) -> StageTimes | None:
    """When a replica began to load, and how long it took; None where it does not say."""
    started_ns, load_s = _number(detail, "started_ns", int), _number(detail, "load_s", float)
    if started_ns is None or load_s is None:
        return None
    return StageTimes(max(0.0, started_ns * 1e-9 - sent_s), 0.0, load_s, 0.0)


def _number(detail: Mapping[str, Any], name: str, kind: type[Number]) -> Number | None:
    """One that a replica tells, which may be in any language; None where it is missing or makes no sense."""
    value = detail.get(name)
    if kind is float and type(value) is int:
        value = float(value)
    is_one = isinstance(value, kind) and not isinstance(value, bool) and 0 <= value < math.inf
    return value if is_one else None
