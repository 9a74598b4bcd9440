"""Requests of a batch -> arrays for a model.

In: the entries of an INFER, each a frame of one request. Out: groups of requests that can run together
(equal names, datatypes and shapes beside the item axis, so that requests of variable length share a
call only with their like, or with those that are filled up to the same length), and failures of those that fit no
group. A bad request fails alone.
A large batch of requests that differ in nothing but their data is one block of rows, and nothing is
done for each of them. Pure: it neither runs the model nor knows sockets or clocks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving import json_tensors
from serving.errors import InvalidRequest
from serving.replica import arrays, wire
from serving.replica.padding import Padding
from serving.values import Signature, TensorSpec

_MAX_CACHED_PLANS = 1024
FEWEST_ROWS = 32
"""Requests from which on a block is cheaper than one after the other: it takes some twenty calls of NumPy."""
_TENSORS = int(wire.Encoding.TENSORS)
_OIP_JSON = int(wire.Encoding.OIP_JSON)

Arrays = dict[str, NDArray[Any]]


class Failure(NamedTuple):
    """Why a request has no outputs."""

    status: wire.ActionStatus
    text: str


class _Plan(NamedTuple):
    """How frames of one layout become arrays; its tensors are in the order of their names."""

    key: tuple[tuple[str, str, tuple[int, ...]], ...]
    """(name, datatype, shape without the item axis) per tensor: equal keys can share a batch."""
    items: int | None
    """Items of such a frame; None: a tensor has no item axis, or a fixed one, so the request runs alone."""
    has_bytes: bool
    places: tuple[int, ...]
    """Where each tensor stands in the frame."""
    cuts: tuple[tuple[int, int], ...]
    """Where each tensor's bytes lie in a frame of the tensors encoding."""
    laid: tuple[_Laid, ...] | None = None
    """How each tensor lies where items are not rows of all of them, or are filled up; None: they are, and are not."""


class _Laid(NamedTuple):
    """How one tensor of a request lies in a batch."""

    axis: int | None
    """Of the items; None: the tensor is one for all of them."""
    shape: tuple[int, ...]
    """As it came."""
    padded: tuple[int, ...]
    """As it is filled up."""
    fill: float
    """With what."""


@dataclasses.dataclass(slots=True)
class Group:
    """Requests that run together."""

    key: tuple[tuple[str, str, tuple[int, ...]], ...]
    has_items: bool
    indexes: list[int] = dataclasses.field(default_factory=list)
    """Places of the requests in the batch."""
    counts: list[int] = dataclasses.field(default_factory=list)
    """Items of each request."""
    parts: list[list[Any]] = dataclasses.field(default_factory=list)
    """Per request, per tensor: raw bytes, or for BYTES a list of elements. Empty where there are rows."""
    rows: NDArray[np.uint8] | None = None
    """(requests, bytes): the data of equal requests, which are a whole batch or a part of it."""
    cuts: tuple[tuple[int, int], ...] = ()
    """Where each tensor's bytes lie in a row."""
    axes: tuple[int | None, ...] | None = None
    """Item axis of each tensor, whose parts are arrays; None: all lie along axis 0, and their parts are bytes."""
    shapes: list[dict[str, tuple[int, ...]]] = dataclasses.field(default_factory=list)
    """Where requests are filled up, of each request the inputs' shapes as they came."""

    def halves(self) -> tuple[Group, Group]:
        """The requests in two groups, in order; there are at least two."""
        middle = len(self.indexes) // 2
        first, second = (
            Group(
                self.key,
                self.has_items,
                self.indexes[cut],
                self.counts[cut],
                self.parts[cut],
                None if self.rows is None else self.rows[cut],
                self.cuts,
                self.axes,
                self.shapes[cut],
            )
            for cut in (slice(None, middle), slice(middle, None))
        )
        return first, second

    def inputs(self) -> Arrays:
        """The model's inputs: all requests one after another along the item axis."""
        count = sum(self.counts)
        inputs: Arrays = {}
        if self.rows is not None:
            for (name, datatype, rest), (start, stop) in zip(self.key, self.cuts, strict=True):
                rows = self.rows[:, start:stop]
                inputs[name] = arrays.array_of_rows(datatype, (count, *rest), rows)
            return inputs
        if self.axes is not None:
            for (name, _, _), axis, parts in zip(
                self.key, self.axes, zip(*self.parts, strict=True), strict=True
            ):
                inputs[name] = parts[0] if axis is None else np.concatenate(parts, axis)
            return inputs
        for (name, datatype, rest), parts in zip(
            self.key, zip(*self.parts, strict=True), strict=True
        ):
            shape = (count, *rest) if self.has_items else rest
            if datatype == "BYTES":
                elements = list(itertools.chain.from_iterable(parts))
                inputs[name] = arrays.bytes_array(shape, elements)
            else:
                inputs[name] = arrays.array_of(datatype, shape, parts)
        return inputs


class Collator:
    """Groups requests for one model. Remembers what it found out about a frame's layout."""

    def __init__(self, signature: Signature, padding: Padding | None = None) -> None:
        """Nothing is known of any layout.

        Args:
            signature: with item axes.
            padding: how requests are filled up; None: they are not.
        """
        self._signature = signature
        self._padding = padding
        self._plans: dict[wire.Layout, _Plan] = {}
        self._last_plan: _Plan | None = None
        self._last_prefix = b""
        self._last_frame_bytes = 0

    def groups(self, entries: Sequence[wire.InferEntry]) -> tuple[list[Group], dict[int, Failure]]:
        """Sort the requests of a batch into groups.

        Returns:
            The groups, and by place in the batch the failures of requests that are in none.
        """
        groups: dict[object, Group] = {}
        failures: dict[int, Failure] = {}
        group_plan: _Plan | None = None
        group: Group | None = None
        for index, (encoding, start, stop, frame) in enumerate(entries):
            try:
                plan, parts = self._parts(encoding, frame)
                count = plan.items
                if count is None:
                    groups[index] = Group(plan.key, False, [index], [1], [parts])
                    continue
                laid = plan.laid
                if laid is not None:
                    parts = _laid_out(plan, laid, parts, start, stop)
                    count = stop - start if stop else count
                elif stop:
                    parts = _cut(count, parts, start, stop)
                    count = stop - start
            except (InvalidRequest, wire.WireError) as error:
                failures[index] = Failure(wire.ActionStatus.INVALID_INPUT, str(error))
                continue
            if laid is not None:
                group = _laid_group(groups, plan.key, laid, parts)
                if self._padding is not None:
                    names = [name for name, _, _ in plan.key]
                    shapes = dict(zip(names, [one.shape for one in laid], strict=True))
                    group.shapes.append(shapes)
            elif (
                group is None or plan is not group_plan
            ):  # most batches are of one plan: no look-up
                group_plan = plan
                group = groups.get(plan.key)
                if group is None:
                    group = groups[plan.key] = Group(plan.key, True)
            group.indexes.append(index)
            group.counts.append(count)
            group.parts.append(parts)
        return list(groups.values()), failures

    def block(self, message: wire.InferMessage) -> Group | None:
        """The whole batch as one group, where its requests differ in nothing but their data.

        None: they differ, or are few, or one is bad; `groups` sorts them.
        """
        entries = message.entries
        if message.even is None or len(entries) < FEWEST_ROWS:
            return None
        encoding, _, stop, frame = entries[0]
        if encoding != _TENSORS or stop:
            return None
        try:
            plan, _ = self._parts(encoding, frame)
        except (InvalidRequest, wire.WireError):
            return None
        count, cuts = plan.items, plan.cuts
        if plan.laid is not None or not count or plan.has_bytes or not cuts:
            return None
        frames = np.frombuffer(message.even, np.uint8).reshape(len(entries), len(frame))
        prefix = len(frame) - max(stop for _, stop in cuts)
        heads = frames[:, :prefix]
        if not (heads == heads[0]).all():
            return None
        indexes, counts = list(range(len(entries))), [count] * len(entries)
        return Group(plan.key, True, indexes, counts, [], frames[:, prefix:], cuts)

    def _parts(self, encoding: int, frame: memoryview) -> tuple[_Plan, list[Any]]:
        """How a frame's tensors become arrays, and their data: raw, or elements of BYTES."""
        if encoding == _TENSORS:
            plan, prefix = self._last_plan, self._last_prefix
            if (
                plan is not None  # the next frame is mostly as the last one
                and len(frame) == self._last_frame_bytes
                and frame[: len(prefix)].tobytes() == prefix
            ):
                data = frame[len(prefix) :]
            else:
                layout, data = wire.split_frame(frame)
                plan = self._plans.get(layout) or self._new_plan(layout)
                self._last_plan, self._last_frame_bytes = plan, len(frame)
                self._last_prefix = frame[: layout.prefix_bytes].tobytes()
            cuts = plan.cuts
            parts: list[Any] = (
                [data] if len(cuts) == 1 else [data[start:stop] for start, stop in cuts]
            )
        elif encoding == _OIP_JSON:
            tensors = json_tensors.decode_inputs(frame)
            plan = _plan([tensor[:3] for tensor in tensors], self._signature, self._padding)
            parts = [tensors[place].data for place in plan.places]
        else:
            raise InvalidRequest(f"frames of encoding {encoding} are not known here")
        if plan.has_bytes:
            for place, (_, datatype, rest) in enumerate(plan.key):
                if datatype == "BYTES":
                    if plan.laid is not None:
                        count = math.prod(plan.laid[place].shape)
                    else:
                        count = math.prod(rest) * (1 if plan.items is None else plan.items)
                    parts[place] = arrays.split_bytes(parts[place], count)
        return plan, parts

    def _new_plan(self, layout: wire.Layout) -> _Plan:
        plan = _plan([tensor[:3] for tensor in layout.tensors], self._signature, self._padding)
        spans = [(tensor.start, tensor.stop) for tensor in layout.tensors]
        plan = plan._replace(cuts=tuple(spans[place] for place in plan.places))
        if len(self._plans) >= _MAX_CACHED_PLANS:
            self._plans.clear()
        self._plans[layout] = plan
        return plan


def _plan(
    declared: Sequence[tuple[str, str, tuple[int, ...]]],
    signature: Signature,
    padding: Padding | None,
) -> _Plan:
    check_inputs(declared, signature)
    places = sorted(range(len(declared)), key=lambda place: declared[place][0])
    ordered = [declared[place] for place in places]
    has_bytes = any(kind == "BYTES" for _, kind, _ in ordered)
    specs = {spec.name: spec for spec in signature.inputs}
    is_whole = any(not shape and specs[name].item_axis is not None for name, _, shape in ordered)
    if is_whole or not signature.is_batched or not ordered:
        return _Plan(tuple(ordered), None, has_bytes, tuple(places), ())
    laid = tuple(_laid(specs[name], shape, padding) for name, _, shape in ordered)
    key = tuple(
        (name, kind, one.padded if one.axis is None else _without(one.padded, one.axis))
        for (name, kind, _), one in zip(ordered, laid, strict=True)
    )
    items = next(one.shape[one.axis] for one in laid if one.axis is not None)
    is_plain = all(one.axis == 0 and one.padded == one.shape for one in laid) and padding is None
    return _Plan(key, items, has_bytes, tuple(places), (), None if is_plain else laid)


def _laid(spec: TensorSpec, shape: tuple[int, ...], padding: Padding | None) -> _Laid:
    padded = shape if padding is None else padding.padded(spec, shape)
    fill = 0.0 if padding is None else padding.fills.get(spec.name, 0.0)
    return _Laid(spec.item_axis if shape else None, shape, padded, fill)


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]


def _laid_out(
    plan: _Plan, laid: tuple[_Laid, ...], parts: list[Any], start: int, stop: int
) -> list[Any]:
    """The arrays of a request, or of its items [start, stop), filled up."""
    if stop and not start < stop <= (plan.items or 0):
        raise InvalidRequest(
            f"items {start} to {stop} are asked for of a request of {plan.items} items"
        )
    found: list[Any] = []
    for (_, datatype, _), one, part in zip(plan.key, laid, parts, strict=True):
        if datatype == "BYTES":
            array: NDArray[Any] = arrays.bytes_array(one.shape, part)
        else:
            array = arrays.array_of(datatype, one.shape, [part])
        if stop and one.axis is not None:
            array = array.take(range(start, stop), one.axis)
        wider = [(0, more - size) for size, more in zip(one.shape, one.padded, strict=True)]
        if any(more for _, more in wider):
            fill: Any = b"" if datatype == "BYTES" else one.fill
            array = np.pad(array, wider, constant_values=fill)
        found.append(array)
    return found


def _laid_group(
    groups: dict[object, Group], key: Any, laid: tuple[_Laid, ...], parts: list[Any]
) -> Group:
    """The group of a request: one in which what all items share is equal, too."""
    axes = tuple(one.axis for one in laid)
    shared = tuple(
        part.tobytes() if part.dtype != object else tuple(part.ravel().tolist())
        for axis, part in zip(axes, parts, strict=True)
        if axis is None
    )
    group = groups.get((key, shared))
    if group is None:
        group = groups[key, shared] = Group(key, True, axes=axes)
    return group


def _cut(items: int, parts: list[Any], start: int, stop: int) -> list[Any]:
    """Items [start, stop) of one request."""
    if not start < stop <= items:
        raise InvalidRequest(f"items {start} to {stop} are asked for of a request of {items} items")
    cut = []
    for part in parts:
        row = len(part) // items
        cut.append(part[start * row : stop * row])
    return cut


def check_inputs(
    declared: Sequence[tuple[str, str, tuple[int, ...]]], signature: Signature
) -> None:
    """Hold (name, datatype, shape) of a request's inputs against a signature.

    Raises:
        InvalidRequest: names, datatypes or shapes differ, or inputs disagree in their first dimension.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    names = [name for name, _, _ in declared]
    if len(set(names)) < len(names) or set(names) != specs.keys():
        raise InvalidRequest(
            f"inputs are {', '.join(names) or 'none'}; the model takes exactly {', '.join(specs)}"
        )
    for name, datatype, shape in declared:
        spec = specs[name]
        if datatype != spec.datatype:
            raise InvalidRequest(
                f"input {name!r}: datatype is {datatype}, the model takes {spec.datatype}"
            )
        if len(shape) != len(spec.shape) or any(
            wanted not in (-1, given) for given, wanted in zip(shape, spec.shape, strict=True)
        ):
            raise InvalidRequest(
                f"input {name!r}: shape is {list(shape)}, "
                f"the model takes {list(spec.shape)} (-1: any)"
            )
    if not signature.is_batched:
        return
    items = {
        name: shape[axis]
        for name, _, shape in declared
        if shape and (axis := specs[name].item_axis) is not None
    }
    if len(set(items.values())) > 1:
        raise InvalidRequest(f"inputs differ in their number of items: {_counted(items)}")


def _counted(items: Mapping[str, int]) -> str:
    """The number of items of each input, in words."""
    return ", ".join(f"{name!r} has {count}" for name, count in items.items())
