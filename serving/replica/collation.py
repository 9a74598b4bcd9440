"""Collation: groups the requests of a batch and joins them to arrays for a model.

Requests of a group have equal names, datatypes and shapes beside the item axis, perhaps after
padding. An invalid request fails alone. A large batch of requests that differ only in their data is
one block, without work per request. Pure.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving import wire
from serving.errors import InvalidRequest
from serving.replica.padding import Padding
from serving.tensors import arrays, json_tensors
from serving.values import Signature, TensorSpec

_MAX_CACHED_PLANS = 1024
MIN_ROWS = 32
"""Requests from which a block (some twenty NumPy calls) is cheaper."""
_TENSORS = int(wire.Encoding.TENSORS)
_OIP_JSON = int(wire.Encoding.OIP_JSON)

Arrays = dict[str, NDArray[Any]]


class Failure(NamedTuple):
    """Why a request has no outputs."""

    status: wire.ActionStatus
    text: str


class _Plan(NamedTuple):
    """Conversion of frames of one layout into arrays; tensors are sorted by name."""

    key: tuple[tuple[str, str, tuple[int, ...]], ...]
    """(name, datatype, shape without the item axis) per tensor; equal keys share a batch."""
    items: int | None
    """Items per frame; None: no item axis, or a fixed one, so the request runs alone."""
    has_bytes: bool
    places: tuple[int, ...]
    """Index of each tensor in the frame."""
    cuts: tuple[tuple[int, int], ...]
    """Byte range of each tensor in a frame of the tensors encoding."""
    laid: tuple[_Laid, ...] | None = None
    """Layout of tensors; None: all have items along axis 0, without padding."""


class _Laid(NamedTuple):
    """Layout of one tensor of a request in a batch."""

    axis: int | None
    """Item axis; None: shared by all items."""
    shape: tuple[int, ...]
    """Unpadded."""
    padded: tuple[int, ...]
    """Padded shape."""
    fill: float
    """Fill value."""


@dataclasses.dataclass(slots=True)
class RequestGroup:
    """Requests that run together."""

    key: tuple[tuple[str, str, tuple[int, ...]], ...]
    has_items: bool
    indexes: list[int] = dataclasses.field(default_factory=list)
    """Indexes of the requests in the batch."""
    counts: list[int] = dataclasses.field(default_factory=list)
    """Items per request."""
    parts: list[list[Any]] = dataclasses.field(default_factory=list)
    """Per request and tensor: raw bytes, or BYTES elements. Empty with `rows`."""
    rows: NDArray[np.uint8] | None = None
    """(requests, bytes): the data of equal requests."""
    cuts: tuple[tuple[int, int], ...] = ()
    """Byte range of each tensor in a row."""
    axes: tuple[int | None, ...] | None = None
    """Item axis per tensor, with arrays as `parts`; None: all axis 0, with bytes."""
    shapes: list[dict[str, tuple[int, ...]]] = dataclasses.field(default_factory=list)
    """If padded, the unpadded input shapes per request."""

    def halves(self) -> tuple[RequestGroup, RequestGroup]:
        """Split at least two requests into two groups."""
        middle = len(self.indexes) // 2
        first, second = (
            RequestGroup(
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
        """Return the model's inputs, joined along the item axis."""
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
    """Groups requests for one model, with a cache of layouts."""

    def __init__(self, signature: Signature, padding: Padding | None = None) -> None:
        """Start with an empty cache; the signature has item axes."""
        self._signature = signature
        self._padding = padding
        self._plans: dict[wire.Layout, _Plan] = {}
        self._last_plan: _Plan | None = None
        self._last_prefix = b""
        self._last_frame_bytes = 0

    def groups(
        self, entries: Sequence[wire.InferEntry]
    ) -> tuple[list[RequestGroup], dict[int, Failure]]:
        """Sort the requests of a batch into groups; return also failures by index."""
        groups: dict[object, RequestGroup] = {}
        failures: dict[int, Failure] = {}
        group_plan: _Plan | None = None
        group: RequestGroup | None = None
        for index, (encoding, start, stop, frame) in enumerate(entries):
            try:
                plan, parts = self._parts(encoding, frame)
                count = plan.items
                if count is None:
                    groups[index] = RequestGroup(plan.key, False, [index], [1], [parts])
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
            elif group is None or plan is not group_plan:  # skips the lookup for most batches
                group_plan = plan
                group = groups.get(plan.key)
                if group is None:
                    group = groups[plan.key] = RequestGroup(plan.key, True)
            group.indexes.append(index)
            group.counts.append(count)
            group.parts.append(parts)
        return list(groups.values()), failures

    def block(self, message: wire.InferMessage) -> RequestGroup | None:
        """Return the whole batch as one block.

        None if its requests are few, or differ in more than their data, or one is invalid.
        """
        entries = message.entries
        if message.even is None or len(entries) < MIN_ROWS:
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
        return RequestGroup(plan.key, True, indexes, counts, [], frames[:, prefix:], cuts)

    def _parts(self, encoding: int, frame: memoryview) -> tuple[_Plan, list[Any]]:
        """Return a frame's plan and its data: raw, or elements of BYTES."""
        if encoding == _TENSORS:
            plan, prefix = self._last_plan, self._last_prefix
            if (
                plan is not None  # mostly equal to the last frame
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
            raise InvalidRequest(f"frames of encoding {encoding} are not supported")
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
    """Return the padded arrays of a request, or of its items [start, stop)."""
    if stop and not start < stop <= (plan.items or 0):
        raise InvalidRequest(
            f"items {start} to {stop} are outside of a request of {plan.items} items"
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
    groups: dict[object, RequestGroup], key: Any, laid: tuple[_Laid, ...], parts: list[Any]
) -> RequestGroup:
    """Return the group of a request, which also has equal shared inputs."""
    axes = tuple(one.axis for one in laid)
    shared = tuple(
        part.tobytes() if part.dtype != object else tuple(part.ravel().tolist())
        for axis, part in zip(axes, parts, strict=True)
        if axis is None
    )
    group = groups.get((key, shared))
    if group is None:
        group = groups[key, shared] = RequestGroup(key, True, axes=axes)
    return group


def _cut(items: int, parts: list[Any], start: int, stop: int) -> list[Any]:
    """Return items [start, stop) of a request."""
    if not start < stop <= items:
        raise InvalidRequest(f"items {start} to {stop} are outside of a request of {items} items")
    cut = []
    for part in parts:
        row = len(part) // items
        cut.append(part[start * row : stop * row])
    return cut


def check_inputs(
    declared: Sequence[tuple[str, str, tuple[int, ...]]], signature: Signature
) -> None:
    """Check (name, datatype, shape) of a request's inputs.

    Raises:
        InvalidRequest: they do not match the signature, or their numbers of items differ.
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
        raise InvalidRequest(f"inputs differ in their number of items: {_counts_text(items)}")


def _counts_text(items: Mapping[str, int]) -> str:
    """Describe the number of items of each input."""
    return ", ".join(f"{name!r} has {count}" for name, count in items.items())
