"""Collation, which groups the requests of a batch and joins each group into arrays for a model.

Requests of a group have the same names, datatypes and shapes apart from the item axis, perhaps
after padding. An invalid request fails alone. A large batch of requests that differ only in their
data becomes one block, without work per request.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving import wire
from serving.errors import InvalidRequest
from serving.replica.padding import Padding
from serving.replica.request_plan import (
    RequestPlan,
    TensorLayout,
    cut_items,
    padded_arrays,
    plan_request,
)
from serving.tensors import arrays, json_tensors
from serving.values import Signature

_MAX_CACHED_PLANS = 1024
MIN_ROWS = 32
"""Number of requests from which a block (some twenty NumPy calls) is cheaper."""
_TENSORS = int(wire.Encoding.TENSORS)
_OIP_JSON = int(wire.Encoding.OIP_JSON)

Arrays = dict[str, NDArray[Any]]


class Failure(NamedTuple):
    """Reason why a request has no outputs."""

    status: wire.ActionStatus
    text: str


@dataclasses.dataclass(slots=True)
class RequestGroup:
    """Requests that run in one model call."""

    key: tuple[tuple[str, str, tuple[int, ...]], ...]
    has_items: bool
    indexes: list[int] = dataclasses.field(default_factory=list)
    counts: list[int] = dataclasses.field(default_factory=list)
    parts: list[list[Any]] = dataclasses.field(default_factory=list)
    """Raw bytes, or BYTES elements, per request and tensor; empty if `rows` is set."""
    rows: NDArray[np.uint8] | None = None
    """Data of the requests in a block, of shape (requests, bytes)."""
    cuts: tuple[tuple[int, int], ...] = ()
    """Byte range of each tensor in a row."""
    axes: tuple[int | None, ...] | None = None
    """Item axis per tensor, if `parts` holds arrays; None if all are 0 and `parts` holds bytes."""
    shapes: list[dict[str, tuple[int, ...]]] = dataclasses.field(default_factory=list)
    """Unpadded input shapes per request, if the requests are padded."""

    def halves(self) -> tuple[RequestGroup, RequestGroup]:
        """Split a group of at least two requests into two groups."""
        middle = len(self.indexes) // 2
        first, second = (
            dataclasses.replace(
                self,
                indexes=self.indexes[cut],
                counts=self.counts[cut],
                parts=self.parts[cut],
                rows=None if self.rows is None else self.rows[cut],
                shapes=self.shapes[cut],
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
    """Collator of requests for one model, with a cache of layouts."""

    def __init__(self, signature: Signature, padding: Padding | None = None) -> None:
        """The signature must have item axes."""
        self._signature = signature
        self._padding = padding
        self._plans: dict[wire.Layout, RequestPlan] = {}
        self._last_plan: RequestPlan | None = None
        self._last_prefix = b""
        self._last_frame_bytes = 0

    def groups(
        self, entries: Sequence[wire.InferEntry]
    ) -> tuple[list[RequestGroup], dict[int, Failure]]:
        """Sort the requests of a batch into groups; also return failures by index."""
        groups: dict[object, RequestGroup] = {}
        failures: dict[int, Failure] = {}
        group_plan: RequestPlan | None = None
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
                    parts = padded_arrays(plan, laid, parts, start, stop)
                    count = stop - start if stop else count
                elif stop:
                    parts = cut_items(count, parts, start, stop)
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
        """Return requests that differ only in data as one block, or None for other batches."""
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

    def _parts(self, encoding: int, frame: memoryview) -> tuple[RequestPlan, list[Any]]:
        if encoding == _TENSORS:
            plan, prefix = self._last_plan, self._last_prefix
            if (
                plan is not None  # mostly the same as in the last frame
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
            plan = plan_request([tensor[:3] for tensor in tensors], self._signature, self._padding)
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

    def _new_plan(self, layout: wire.Layout) -> RequestPlan:
        plan = plan_request(
            [tensor[:3] for tensor in layout.tensors], self._signature, self._padding
        )
        spans = [(tensor.start, tensor.stop) for tensor in layout.tensors]
        plan = plan._replace(cuts=tuple(spans[place] for place in plan.places))
        if len(self._plans) >= _MAX_CACHED_PLANS:
            self._plans.clear()
        self._plans[layout] = plan
        return plan


def _laid_group(
    groups: dict[object, RequestGroup], key: Any, laid: tuple[TensorLayout, ...], parts: list[Any]
) -> RequestGroup:
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
