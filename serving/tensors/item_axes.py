"""Detect the item axis of each input and output, or why a model is not batched.

Without axes in `model.yaml`, axis 0 of every tensor is assumed unless something speaks against it.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping

from serving.error_text import nearest
from serving.errors import ModelLoadFailed
from serving.values import Signature, TensorSpec

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_LENGTHS = frozenset(
    {
        *("seq", "seqlen", "sequence", "sequences", "len", "length", "lengths", "token", "tokens"),
        *("time", "times", "timestep", "timesteps", "frame", "frames", "height", "width"),
    }
)
"""Words in dimension names that denote a size within one item."""


def detect_item_axes(
    signature: Signature,
    *,
    item_axis: Mapping[str, int],
    shared: Collection[str],
    where: str,
) -> Signature:
    """Return the signature with its item axes, or with the reason why requests run alone.

    `item_axis` and `shared` come from `model.yaml`. Raises ModelLoadFailed, which names the model
    as `where`, if they do not fit.
    """
    if item_axis or shared:
        return _apply_declared_axes(signature, item_axis, shared, where)
    if signature.unbatched is not None:
        return signature
    return dataclasses.replace(signature, unbatched=_why_not(signature))


def _apply_declared_axes(
    signature: Signature, item_axis: Mapping[str, int], shared: Collection[str], where: str
) -> Signature:
    inputs = {spec.name for spec in signature.inputs}
    known = inputs | {spec.name for spec in signature.outputs}
    for key, names, group, kind in (
        ("item_axis", item_axis, known, "input or output"),
        ("shared", shared, inputs, "input"),
    ):
        for name in names:
            if name not in group:
                raise ModelLoadFailed(
                    where,
                    f"{key}: {name!r} is no {kind} of the model{nearest(name, group)} "
                    f"(known: {', '.join(sorted(group))})",
                )
    for name in item_axis:
        if name in shared:
            raise ModelLoadFailed(
                where, f"item_axis and shared: {name!r} is in both, expected in one"
            )
    if signature.inputs and inputs <= set(shared):
        raise ModelLoadFailed(
            where, "shared: all inputs are shared, expected at least one with items"
        )

    def with_axis(spec: TensorSpec) -> TensorSpec:
        if spec.name in shared:
            return dataclasses.replace(spec, item_axis=None)
        axis = item_axis.get(spec.name, 0)
        is_unknown = not spec.shape and spec.name not in inputs
        if not 0 <= axis < len(spec.shape) and not is_unknown:
            hint = "; list it under shared" if spec.name in inputs and not spec.shape else ""
            raise ModelLoadFailed(
                where,
                f"item_axis: {spec.name!r} has no axis {axis}: its shape is {list(spec.shape)}{hint}",
            )
        if spec.name in inputs and spec.shape[axis] >= 0:
            raise ModelLoadFailed(
                where,
                f"item_axis: axis {axis} of {spec.name!r} is fixed at {spec.shape[axis]}, expected a free one",
            )
        return dataclasses.replace(spec, item_axis=axis)

    return dataclasses.replace(
        signature,
        inputs=tuple(map(with_axis, signature.inputs)),
        outputs=tuple(map(with_axis, signature.outputs)),
        unbatched="",
    )


def why_no_rows(signature: Signature) -> str:
    """Return why items are not stacked along axis 0 of every tensor; empty if they are.

    They are also stacked in an unbatched model if its inputs fix their number, or if its shapes
    would allow batches.
    """
    inputs, outputs = _labelled(signature)
    if not signature.is_batched:
        is_fixed = all(spec.shape and spec.shape[0] >= 0 for spec in signature.inputs)
        return "" if is_fixed else _why_not(signature)
    for label, spec in inputs:
        if spec.item_axis is None:
            return f"{label} is shared by all items"
        if not spec.shape:
            return f"{label} is a scalar"
    for label, spec in inputs + outputs:
        if spec.item_axis:
            return f"the items of {label} lie along axis {spec.item_axis}"
    return ""


def _is_length(name: str) -> bool:
    words = {word.lower() for word in _WORDS.findall(name)}
    return bool(words & _LENGTHS) and "batch" not in words


_Labelled = list[tuple[str, TensorSpec]]


def _labelled(signature: Signature) -> tuple[_Labelled, _Labelled]:
    inputs = [(f"input {spec.name!r}", spec) for spec in signature.inputs]
    return inputs, [(f"output {spec.name!r}", spec) for spec in signature.outputs]


def _why_not(signature: Signature) -> str:
    inputs, outputs = _labelled(signature)
    for label, spec in inputs:
        if not spec.shape:
            return f"{label} is a scalar"
    outputs = [one for one in outputs if one[1].shape]  # an empty shape may be an unknown rank
    for label, spec in inputs + outputs:
        if spec.shape[0] >= 0:
            return f"{label} has a first dimension that is fixed at {spec.shape[0]}"
        if _is_length(spec.dimension(0)):
            return f"the first dimension of {label} is called {spec.dimension(0)!r}"
    named = [(label, spec.dimension(0)) for label, spec in inputs if spec.dimension(0)]
    for label, name in named[1:]:
        if name != named[0][1]:
            return (
                f"the first dimensions of {named[0][0]} and {label} differ: "
                f"{named[0][1]!r} and {name!r}"
            )
    lengths = {
        spec.dimension(axis): label
        for label, spec in inputs
        for axis in range(1, len(spec.shape))
        if spec.dimension(axis)
    }
    for label, spec in inputs + outputs:
        if spec.dimension(0) in lengths:
            return (
                f"the first dimension of {label} is called {spec.dimension(0)!r}, as a later one of "
                f"{lengths[spec.dimension(0)]} is"
            )
    return ""
