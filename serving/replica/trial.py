"""Whether a model's answers stay the same in company: tried on samples when it is loaded, before it takes requests.

What a file says of its first dimensions is a hint and no promise. A detector whose rows are found objects, a sequence
without a batch, weights that are scaled by all that is in a batch: each gives wrong answers in a batch, without a word.
So two requests are run alone and together, and where their answers differ the model is served whole. The same is done
with requests that are filled up to a larger size (`padding`).

In: a model of which nothing is known but what it computes, and samples. Out: its signature, with what was found.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.models import Arrays, LoadedModel
from serving.replica import arrays, wire
from serving.replica.answers import BrokenContract
from serving.replica.execution import Execution
from serving.replica.padding import Padding
from serving.replica.samples import Samples
from serving.replica.warmup import entries_of
from serving.values import Signature, Tensor, TensorSpec, ToldInputs

TOLERANCES = {"FP16": 1e-2, "FP32": 1e-4, "FP64": 1e-6}
"""Largest difference of an output, as a share of its largest value, that is rounding; other datatypes must be equal."""
_SMALLEST_MULTIPLE = 8
"""To a multiple of which requests are filled up where no other one is asked for."""

Outputs = Sequence[Tensor]


def tried(
    model: LoadedModel, samples: Samples | str, told: ToldInputs
) -> tuple[Signature, Padding | None]:
    """The signature of a model after its answers alone were held against those in company, and how it is filled up.

    Args:
        model: loaded, its signature judged; one that does nothing but compute.
        samples: what it is run on, or why there is nothing: what could not be tried is not done.
        told: of its inputs; where axes are told, or another replica has tried it, that stands.
    """
    signature = model.signature
    if not signature.is_batched:
        return signature, None
    if told.unbatched is None and not told.item_axis and not told.shared:
        is_untried = isinstance(samples, str)
        reason = samples if isinstance(samples, str) else _why_alone(model, samples)
        signature = dataclasses.replace(signature, unbatched=reason, is_untried=is_untried)
    is_wanted = told.pad_to is not None if told.padding is not None else bool(told.pad)
    if not is_wanted or not signature.is_batched:
        return signature, None
    found = samples if isinstance(samples, str) else padding_of(model, samples, told)
    if isinstance(found, str):
        return dataclasses.replace(signature, padding=found), None
    return dataclasses.replace(signature, padding=""), found if told.pad_to is not None else None


def padding_of(model: LoadedModel, samples: Samples, told: ToldInputs) -> Padding | str:
    """How requests of a model are filled up, or why they cannot be.

    Args:
        model: loaded, its signature judged.
        samples: requests that are filled up on trial.
        told: with the values, and the multiple.
    """
    signature = model.signature
    free = {spec.name: _free_axes(spec) for spec in signature.inputs}
    lacking = [name for name, axes in free.items() if axes and name not in told.pad]
    if lacking:
        return (
            f"no value is told that fills up input {lacking[0]!r}; set model.pad, as {lacking[0]}=0"
        )
    if not any(free.values()):
        return "no dimension of its inputs is free beside the items"
    multiple = told.pad_to or _SMALLEST_MULTIPLE
    try:
        return _padding(model, samples.requests(1)[0], told, multiple)
    except Exception as error:  # a model may raise anything
        return f"it fails on inputs that are filled up: {type(error).__name__}: {str(error)[:200]}"


def _padding(model: LoadedModel, request: Arrays, told: ToldInputs, multiple: int) -> Padding | str:
    """The padding, with the outputs' axes as a request shows them that is one short of a multiple."""
    signature = model.signature
    counter = itertools.count(1)
    short: Arrays = {}
    sizes: dict[int, tuple[str, int]] = {}
    """Size in the short request -> input and axis."""
    wide = Padding(multiple, told.pad, {})
    known: dict[str, int] = {}
    for spec in signature.inputs:
        array = request[spec.name]
        for axis in _free_axes(spec):
            name = spec.dimension(axis) or f"{array.shape[axis]} along axis {axis}"
            if (
                name not in known
            ):  # each its own number below a multiple: so they are told apart in outputs
                multiples = -(-array.shape[axis] // multiple)
                known[name] = max(1, multiples * multiple - next(counter))
            array = _resized(array, axis, known[name])
            sizes.setdefault(known[name], (spec.name, axis))
        short[spec.name] = array
    alone = Execution(model, quiet=True).together(entries_of([short], signature))[0]
    filled = {
        spec.name: _filled(short[spec.name], wide.padded(spec, short[spec.name].shape), told, spec)
        for spec in signature.inputs
    }
    grown = Execution(model, quiet=True).together(entries_of([filled], signature))[0]
    outputs: dict[str, Mapping[int, tuple[str, int]]] = {}
    for small, large in zip(alone, grown, strict=True):
        axes = {}
        for axis, (size, more) in enumerate(zip(small.shape, large.shape, strict=True)):
            if size == more:
                continue
            source = sizes.get(size)
            if source is None or filled[source[0]].shape[source[1]] != more:
                return (
                    f"axis {axis} of output {small.name!r} grows from {size} to {more} where inputs are "
                    "filled up, as none of theirs does"
                )
            axes[axis] = source
        if axes:
            outputs[small.name] = axes
    padding = Padding(multiple, told.pad, outputs)
    cut = Execution(model, padding=padding, quiet=True).together(entries_of([short], signature))[0]
    difference = _difference(alone, cut)
    return f"answers change where inputs are filled up: {difference}" if difference else padding


def _why_alone(model: LoadedModel, samples: Samples) -> str:
    """Why requests cannot run together; empty: they can, or nothing can be said.

    Rounding is another one in another batch, and an input that makes no sense can magnify it; what truly depends on
    its company does so with every pair.
    """
    execution = Execution(model, quiet=True)
    reason = failure = ""
    for pair in samples.pairs():
        entries = entries_of(pair, model.signature)
        try:
            alone = [execution.together([entry])[0] for entry in entries]
            again = execution.together(entries[:1])[0]
        except BrokenContract as error:
            return str(error)
        except Exception as error:  # a model may raise anything
            failure = (
                f"batches of it could not be tried: {type(error).__name__}: {str(error)[:200]}"
            )
            continue
        if _difference(alone[0], again):
            return "its answers to one request differ from call to call"
        reason = _difference_in_company(execution, entries, alone)
        if not reason:
            return ""
    return reason or failure


def _difference_in_company(
    execution: Execution, entries: list[wire.InferEntry], alone: Sequence[Outputs]
) -> str:
    try:
        company = execution.together(entries)
    except Exception as error:  # a model may raise anything
        return f"it fails on two items together: {type(error).__name__}: {str(error)[:200]}"
    for one, other in zip(alone, company, strict=True):
        difference = _difference(one, other)
        if difference:
            return f"answers depend on what else is in the batch: {difference}"
    return ""


def _difference(one: Outputs, other: Outputs) -> str:
    """Where two answers to the same request differ by more than rounding; empty: nowhere."""
    for a, b in zip(one, other, strict=True):
        if a.shape != b.shape:
            return f"output {a.name!r} has shape {list(a.shape)} and {list(b.shape)}"
        if a.datatype not in TOLERANCES:
            if bytes(a.data) != bytes(b.data):
                return f"output {a.name!r} is not equal"
            continue
        x, y = _floats(a), _floats(b)
        finite = x[np.isfinite(x)]
        largest = float(np.abs(finite).max(initial=0.0)) or 1.0
        if not np.allclose(x, y, rtol=0, atol=TOLERANCES[a.datatype] * largest, equal_nan=True):
            share = float(np.nanmax(np.abs(x - y))) / largest
            return f"output {a.name!r} by {share:.2g} of its largest value"
    return ""


def _floats(tensor: Tensor) -> NDArray[np.float64]:
    return arrays.array_of(tensor.datatype, tensor.shape, [tensor.data]).astype(np.float64)


def _free_axes(spec: TensorSpec) -> list[int]:
    return [axis for axis, size in enumerate(spec.shape) if size < 0 and axis != spec.item_axis]


def _resized(array: NDArray[Any], axis: int, size: int) -> NDArray[Any]:
    """The array with another size along an axis: cut, or repeated."""
    places = [place % array.shape[axis] for place in range(size)]
    return np.take(array, places, axis)


def _filled(
    array: NDArray[Any], shape: tuple[int, ...], told: ToldInputs, spec: TensorSpec
) -> NDArray[Any]:
    fill: Any = b"" if spec.datatype == "BYTES" else told.pad.get(spec.name, 0.0)
    wider = [(0, more - size) for size, more in zip(array.shape, shape, strict=True)]
    return np.pad(array, wider, constant_values=fill)
