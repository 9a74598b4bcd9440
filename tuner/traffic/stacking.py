"""Several items in one request: the batch that a client makes before the server makes its own.

In: items, each one array per input with an item axis of its own. Out: which items share a request, and
their arrays one after another along that axis; an input without one is shared by all of them, and must
be equal. One request has one shape, so items of unequal lengths share none. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serving import shapes
from serving.values import Signature
from tuner.errors import WrongUse
from tuner.traffic.oip_body import Input


def groups(items: int, client_batch: int) -> NDArray[np.intp]:
    """(requests, client_batch) places of the items of each request, in order.

    Every item is in a request; where they do not divide evenly, the last request is filled up from
    the first items on.
    """
    requests = -(-items // client_batch)
    return (np.arange(requests * client_batch) % items).reshape(requests, client_batch)


def stacked(items: Sequence[Sequence[Input]], where: str) -> Sequence[Input]:
    """The inputs of one request that holds all items.

    Args:
        items: of the request; at least one.
        where: what to call them in an error.

    Raises:
        WrongUse: they differ in shape.
    """
    if len(items) == 1:
        return items[0]
    return [_joined(inputs, len(items), where) for inputs in zip(*items, strict=True)]


def _joined(inputs: Sequence[Input], count: int, where: str) -> Input:
    """One input of all items."""
    spec, first = inputs[0].spec, inputs[0].array
    found = sorted({item.array.shape for item in inputs})
    if len(found) > 1:
        raise WrongUse(
            f"--client-batch {count}: items of {where} differ in the shape of input "
            f"{spec.name!r} ({list(found[0])} and {list(found[-1])}), and one request "
            "has one shape; pad them in the file, or use --client-batch 1"
        )
    if spec.item_axis is not None:
        return Input(spec, np.concatenate([item.array for item in inputs], axis=spec.item_axis))
    if any(not np.array_equal(first, item.array) for item in inputs):
        raise WrongUse(
            f"--client-batch {count}: items of {where} differ in input {spec.name!r}, which all items of a "
            "request share; use --client-batch 1"
        )
    return inputs[0]


def check_free(signature: Signature, client_batch: int, model: str) -> None:
    """Whether a model takes several items in one request.

    Raises:
        WrongUse: more than one item is asked for, and it is served whole.
    """
    reason = shapes.why_whole(signature)
    if client_batch > 1 and reason:
        raise WrongUse(
            f"--client-batch {client_batch}: {model} takes one request at a time, whole ({reason}), so that a "
            "request cannot hold several items; use --client-batch 1"
        )
