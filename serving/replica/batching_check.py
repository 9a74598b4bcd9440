"""Batching check: whether outputs depend on the rest of the batch, tried on samples at load time.

A model file only suggests that the first dimension counts items. If it does not (rows may be
detected objects or a sequence), batches silently give wrong outputs. So two requests are run
together, each with a copy of itself, and each alone; if outputs differ, the model is served
unbatched.

Batches of the same size are compared closely, as they compute an item in the same way. Other sizes
may use kernels that round differently (TF32 keeps 10 bits, bfloat16 7), which hides smaller
dependencies. Padded requests are compared closely with unpadded ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from serving import wire
from serving.models import Arrays, LoadedModel
from serving.replica.execution import Execution, error_text
from serving.replica.output_frames import BrokenContract
from serving.replica.padding import Padding
from serving.replica.request_plan import pad
from serving.replica.samples import Samples
from serving.replica.warmup import entries_of
from serving.tensors import arrays
from serving.values import DeclaredInputs, Signature, Tensor, TensorSpec

TOLERANCES = {"FP16": 1e-2, "FP32": 1e-4, "FP64": 1e-6}
"""Datatype -> maximum rounding error as a share of an output's largest value; 0 for others."""
_OF_ANOTHER_SIZE = TOLERANCES | {"FP16": 5e-2, "FP32": 5e-2}
"""The same for different batch sizes.

On an H100, TF32 changed the outputs of a ResNet-18 by 0.0006; bfloat16 is eight times as coarse,
and other networks are deeper.
"""
_MIN_MULTIPLE = 8

_UNTRIED = "batches of it could not be checked"
_PADDED_REQUESTS = 8
_MIN_PADDED = 6
"""Minimum number of padded runs, regardless of time; each request has three runs."""

Outputs = Sequence[Tensor]


def check_batching(
    model: LoadedModel, samples: Samples | str, told: DeclaredInputs, *, within_s: float = 2.0
) -> tuple[Signature, Padding | None]:
    """Check batching and padding; return the updated signature and the padding.

    Args:
        model: a loaded, pure model with detected item axes.
        samples: its samples, or why there are none; unchecked batching or padding is not used.
        told: declared inputs; declared axes and other replicas' findings are trusted.
        within_s: time for padded runs beyond the minimum.
    """
    signature = model.signature
    if not signature.is_batched:
        return signature, None
    if told.unbatched is None and not told.item_axis and not told.shared:
        reason = samples if isinstance(samples, str) else _why_alone(model, samples)
        is_untried = isinstance(samples, str) or reason.startswith(_UNTRIED)
        signature = dataclasses.replace(signature, unbatched=reason, is_untried=is_untried)
    is_wanted = told.pad_to is not None if told.padding is not None else bool(told.pad)
    if not is_wanted or not signature.is_batched or told.padding:
        return signature, None
    if isinstance(samples, str):
        return dataclasses.replace(signature, padding=samples), None
    found = _padding_of(model, samples, told, within_s=within_s)
    if isinstance(found, str):
        return dataclasses.replace(signature, padding=found), None
    return dataclasses.replace(signature, padding=""), found if told.pad_to is not None else None


def _padding_of(
    model: LoadedModel, samples: Samples, told: DeclaredInputs, *, within_s: float
) -> Padding | str:
    free = {spec.name: _free_axes(spec) for spec in model.signature.inputs}
    lacking = [name for name, axes in free.items() if axes and name not in told.pad]
    if lacking:
        return f"no fill value for input {lacking[0]!r} is set; set model.pad, for example {lacking[0]}=0"
    if not any(free.values()):
        return "no dimension of its inputs is free apart from the items"
    multiple = told.pad_to or _MIN_MULTIPLE
    try:
        padding = _laid_padding(model, samples.requests(1)[0], told, multiple)
        if isinstance(padding, str) or told.padding is not None:  # checked by another replica
            return padding
        difference = _difference_filled_up(model, samples, padding, within_s)
    except Exception as error:  # a model may raise anything
        return f"it fails on padded inputs: {error_text(error)}"
    return f"responses change with padded inputs: {difference}" if difference else padding


def _laid_padding(
    model: LoadedModel, request: Arrays, told: DeclaredInputs, multiple: int
) -> Padding | str:
    signature = model.signature
    wanted: dict[str, int] = {}
    sizes: dict[int, tuple[str, int]] = {}
    """Size in the request -> input and axis."""
    for spec in signature.inputs:
        for axis in _free_axes(spec):
            size = request[spec.name].shape[axis]
            key = _dimension(spec, axis, size)
            if key not in wanted:
                candidates = itertools.chain(range(size, 0, -1), itertools.count(size + 1))
                used = wanted.values()
                wanted[key] = next(n for n in candidates if n % multiple and n not in used)
            sizes.setdefault(wanted[key], (spec.name, axis))
    short = _resize(request, signature, wanted)
    wide = Padding(multiple, told.pad, {})
    filled: Arrays = {}
    for spec in signature.inputs:
        array = short[spec.name]
        padded = wide.pad_shape(spec, array.shape)
        filled[spec.name] = pad(array, array.shape, padded, told.pad.get(spec.name, 0.0))
    execution = Execution(model, quiet=True)
    alone = execution.together(entries_of([short], signature))[0]
    grown = execution.together(entries_of([filled], signature))[0]
    outputs: dict[str, Mapping[int, tuple[str, int]]] = {}
    for small, large in zip(alone, grown, strict=True):
        axes = {}
        for axis, (size, more) in enumerate(zip(small.shape, large.shape, strict=True)):
            if size == more:
                continue
            source = sizes.get(size)
            if source is None or filled[source[0]].shape[source[1]] != more:
                return (
                    f"axis {axis} of output {small.name!r} grows from {size} to {more} "
                    "with padded inputs, unlike any axis of the inputs"
                )
            axes[axis] = source
        if axes:
            outputs[small.name] = axes
    return Padding(multiple, told.pad, outputs)


def _difference_filled_up(
    model: LoadedModel, samples: Samples, padding: Padding, within_s: float
) -> str:
    """Return how outputs change with little, half and nearly full padding, or "" if they do not."""
    signature, multiple = model.signature, padding.multiple
    bare, filling = Execution(model, quiet=True), Execution(model, padding=padding, quiet=True)
    until_s = time.monotonic() + within_s
    tries = itertools.product(samples.requests(_PADDED_REQUESTS), (1, multiple // 2, multiple - 1))
    for count, (request, filled) in enumerate(tries):
        if count >= _MIN_PADDED and time.monotonic() > until_s:
            break
        wanted = {}
        for spec in signature.inputs:
            for axis in _free_axes(spec):
                size = request[spec.name].shape[axis]
                whole = max(1, size // multiple - count % 2) * multiple
                wanted[_dimension(spec, axis, size)] = max(1, whole - filled)
        entries = entries_of([_resize(request, signature, wanted)], signature)
        difference = _difference(bare.together(entries)[0], filling.together(entries)[0])
        if difference:
            return difference
    return ""


def _why_alone(model: LoadedModel, samples: Samples) -> str:
    """Return why requests cannot run together, or "" if they can.

    Nonsensical inputs can magnify rounding, but a true dependency shows with any unequal pair.
    """
    execution = Execution(model, quiet=True)
    reason = failure = ""
    for pair in samples.pairs():
        if _are_alike(pair):
            pair[1] = {
                spec.name: pair[0][spec.name]
                if spec.item_axis is None
                else np.flip(pair[0][spec.name])
                for spec in model.signature.inputs
            }
        if _are_alike(pair):
            failure = failure or f"{_UNTRIED}: its samples are all alike"
            continue
        entries = entries_of(pair, model.signature)
        try:
            alone = [execution.together([entry])[0] for entry in entries]
            again = execution.together(entries[:1])[0]
        except BrokenContract as error:
            return str(error)
        except Exception as error:  # a model may raise anything
            failure = f"{_UNTRIED}: {error_text(error)}"
            continue
        if _difference(alone[0], again):
            return "its answers to one request differ from call to call"
        reason = _difference_in_company(execution, entries, alone)
        if not reason:
            return ""
    return reason or failure


def _are_alike(pair: Sequence[Arrays]) -> bool:
    first, second = pair
    return all(np.array_equal(array, second[name]) for name, array in first.items())


def _difference_in_company(
    execution: Execution, entries: list[wire.InferEntry], alone: Sequence[Outputs]
) -> str:
    try:
        company = execution.together(entries)
        copies = [execution.together([entry] * len(entries)) for entry in entries]
    except Exception as error:  # a model may raise anything
        return f"it fails on two items together: {error_text(error)}"
    for place, (one, other) in enumerate(zip(alone, company, strict=True)):
        difference = _difference(copies[place][place], other) or _difference(
            one, other, _OF_ANOTHER_SIZE
        )
        if difference:
            return f"responses depend on the rest of the batch: {difference}"
    return ""


def _difference(one: Outputs, other: Outputs, tolerances: Mapping[str, float] = TOLERANCES) -> str:
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return f"output {a.name!r} has shape {list(a.shape)} and {list(b.shape)}"
        if a.datatype not in tolerances:
            if bytes(a.data) != bytes(b.data):
                return f"output {a.name!r} is not the same"
            continue
        x, y = _floats(a), _floats(b)
        finite = x[np.isfinite(x)]
        largest = float(np.abs(finite).max(initial=0.0)) or 1.0
        if not np.allclose(x, y, rtol=0, atol=tolerances[a.datatype] * largest, equal_nan=True):
            share = float(np.nanmax(np.abs(x - y))) / largest
            return f"output {a.name!r} by {share:.2g} of its largest value"
    return ""


def _floats(tensor: Tensor) -> NDArray[np.float64]:
    return arrays.array_of(tensor.datatype, tensor.shape, [tensor.data]).astype(np.float64)


def _free_axes(spec: TensorSpec) -> list[int]:
    return [axis for axis, size in enumerate(spec.shape) if size < 0 and axis != spec.item_axis]


def _dimension(spec: TensorSpec, axis: int, size: int) -> str:
    """Return the key of dimensions that have the same size: their name, or else size and axis."""
    return spec.dimension(axis) or f"{size} along axis {axis}"


def _resize(request: Arrays, signature: Signature, sizes: Mapping[str, int]) -> Arrays:
    resized: Arrays = {}
    for spec in signature.inputs:
        array = request[spec.name]
        for axis in _free_axes(spec):
            size = request[spec.name].shape[axis]
            places = [place % size for place in range(sizes[_dimension(spec, axis, size)])]
            array = np.take(array, places, axis)
        resized[spec.name] = array
    return resized
