"""Client-side batching: several items in one request.

Items of equal shape are concatenated along the item axis; inputs without one must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving.tensors import shapes
from serving.values import Signature
from tuner.errors import UsageError
from tuner.load_generator.oip_body import RequestInput


def groups(items: int, client_batch: int) -> NDArray[np.intp]:
    """Item indexes by request, (requests, client_batch).

    The first items fill up the last request.
    """
    requests = -(-items // client_batch)
    return (np.arange(requests * client_batch) % items).reshape(requests, client_batch)


def stack(items: Sequence[Sequence[RequestInput]], where: str) -> Sequence[RequestInput]:
    """Inputs of one request with all items; errors call it `where`.

    Raises:
        UsageError: they differ in shape, or in a shared input.
    """
    if len(items) == 1:
        return items[0]
    return [_stack_input(inputs, len(items), where) for inputs in zip(*items, strict=True)]


def _stack_input(inputs: Sequence[RequestInput], count: int, where: str) -> RequestInput:
    spec, first = inputs[0].spec, inputs[0].array
    found = sorted({item.array.shape for item in inputs})
    if len(found) > 1:
        raise UsageError(
            f"--client-batch {count}: items of {where} differ in the shape of input "
            f"{spec.name!r} ({list(found[0])} and {list(found[-1])}), and one request "
            "has one shape; pad them in the file, or use --client-batch 1"
        )
    if spec.item_axis is not None:
        return RequestInput(
            spec, np.concatenate([item.array for item in inputs], axis=spec.item_axis)
        )
    if any(not np.array_equal(first, item.array) for item in inputs):
        raise UsageError(
            f"--client-batch {count}: items of {where} differ in input {spec.name!r}, which all items of a "
            "request share; use --client-batch 1"
        )
    return inputs[0]


def check_free(signature: Signature, client_batch: int, model: str) -> None:
    """Check that a model takes `client_batch` items per request.

    Raises:
        UsageError: several items for an unbatched model.
    """
    reason = shapes.why_unbatched(signature)
    if client_batch > 1 and reason:
        raise UsageError(
            f"--client-batch {client_batch}: {model} takes one request at a time, whole ({reason}), so that a "
            "request cannot hold several items; use --client-batch 1"
        )
