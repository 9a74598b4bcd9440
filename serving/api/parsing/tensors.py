"""Checks of tensors and parameters, for all encodings of the inference protocols."""

from __future__ import annotations

import math
from collections.abc import Sequence

from serving.api.parsing.parse_budget import ParseBudget
from serving.error_text import short_repr, shown_names
from serving.errors import InvalidRequest
from serving.values import ITEM_BYTES, Buffer, Signature, Tensor, TensorSpec, is_shape

MAX_TIMEOUT_US = 86_400_000_000


def check_declared(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Raise InvalidRequest if an input's datatype or shape is invalid."""
    if datatype not in ITEM_BYTES:
        raise InvalidRequest(
            f"input {short_repr(name)}: datatype is {short_repr(datatype)}, expected one of {', '.join(ITEM_BYTES)}"
        )
    if not is_shape(shape):
        raise InvalidRequest(
            f"invalid shape for input {short_repr(name)}: {short_repr(list(shape))}"
        )


def check_count(model: str, signature: Signature, given: int) -> None:
    """Raise InvalidRequest if there are too many inputs, before any is read."""
    if given > len(signature.inputs):
        names = ", ".join([spec.name for spec in signature.inputs])
        raise InvalidRequest(f"{given} inputs are given; model {model!r} takes exactly {names}")


def checked_items(model: str, signature: Signature, tensors: Sequence[Tensor]) -> int:
    """Check a request's tensors, whose data may be absent, and return the number of items.

    Raises:
        InvalidRequest: the tensors do not fit the signature.
    """
    specs = {spec.name: spec for spec in signature.inputs}
    names = {tensor.name for tensor in tensors}
    if len(names) < len(tensors) or names != specs.keys():
        given = shown_names(tensor.name for tensor in tensors)
        raise InvalidRequest(
            f"inputs are {given}; model {model!r} takes exactly {', '.join(specs)}"
        )
    items: int | None = None
    is_batched = signature.is_batched
    for tensor in tensors:
        spec = specs[tensor.name]
        if tensor.datatype != spec.datatype:
            raise InvalidRequest(
                f"input {tensor.name!r}: datatype is {tensor.datatype}, model {model!r} takes {spec.datatype}"
            )
        if len(tensor.shape) != len(spec.shape) or any(
            wanted not in (-1, given)
            for given, wanted in zip(tensor.shape, spec.shape, strict=True)
        ):
            raise InvalidRequest(
                f"input {tensor.name!r}: shape is {list(tensor.shape)}, model {model!r} takes "
                f"{list(spec.shape)} (-1: any)"
            )
        axis = spec.item_axis
        if axis is None or not is_batched:
            continue
        length = tensor.shape[axis] if tensor.shape else 1
        if items is not None and length != items:
            nth = "0th-dimension" if axis == 0 else f"axis {axis}"
            raise InvalidRequest(
                f"Input tensors must have equal {nth} size: {items} and {length}, of {tensor.name!r}"
            )
        items = length
    if not is_batched:
        return 1  # unbatched: one request at a time
    return max(1, items or 0)  # empty items count too: walking them takes time


def check_bytes(
    name: str, datatype: str, shape: Sequence[int], data: Buffer, budget: ParseBudget
) -> None:
    """Raise InvalidRequest unless raw data fits its shape and the budget."""
    elements = math.prod(shape)
    expected = elements * ITEM_BYTES[datatype]
    if ITEM_BYTES[datatype]:
        if len(data) != expected:
            raise InvalidRequest(
                f"unexpected size for input {name!r}: {len(data)} bytes, but shape {list(shape)} of "
                f"{datatype} takes {expected}"
            )
        return
    budget.spend(elements)
    position = count = 0
    while position + 4 <= len(data) and count < elements:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
        count += 1
    if position != len(data) or count != elements:
        raise InvalidRequest(
            f"input {name!r}: the raw data does not hold {elements} BYTES elements, each with its 4-byte length"
        )


def item_shape(spec: TensorSpec, elements: int) -> tuple[int, ...]:
    """Return the shape, without the batch axis, of one item with the given number of values.

    3072 values fit [-1, 3, 32, 32] as (3, 32, 32); one free dimension is deduced.

    Raises:
        InvalidRequest: no shape fits, or several shapes fit.
    """
    inner = spec.shape[1:]
    fixed = math.prod(length for length in inner if length >= 0)
    free = sum(length < 0 for length in inner)
    if free == 1 and fixed and elements % fixed == 0:
        return tuple(elements // fixed if length < 0 else length for length in inner)
    if free == 0 and fixed == elements:
        return inner
    values = "1 value" if elements == 1 else f"{elements} values"
    raise InvalidRequest(
        f"input {spec.name!r} takes items of shape {list(inner)} (-1: any), which {values} "
        "in a row cannot be"
    )


def timeout_s(timeout_us: object) -> float | None:
    """Convert the parameter `timeout`, in microseconds, to seconds, or raise InvalidRequest."""
    if timeout_us is None:
        return None
    if (
        isinstance(timeout_us, bool)
        or not isinstance(timeout_us, int | float)
        or not 0 < timeout_us <= MAX_TIMEOUT_US
    ):
        raise InvalidRequest(
            f"parameter timeout is {str(timeout_us)[:40]}, expected microseconds above 0 "
            f"and at most {MAX_TIMEOUT_US} (a day)"
        )
    return timeout_us * 1e-6


def priority(value: object) -> int:
    """Return the parameter `priority` (1: highest, 0: default), or raise InvalidRequest."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**31:
        raise InvalidRequest(
            f"parameter priority is {str(value)[:40]}, expected 1 (the highest) and up, or 0 (the default)"
        )
    return value
