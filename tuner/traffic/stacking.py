"""Several items in one request: the batch that a client makes before the server makes its own.

In: items, each one array per input with a batch dimension of its own. Out: which items share a
request, and their arrays one after another along that dimension. The replica's host runs requests
together only where the shapes behind the batch dimension are equal, and pads nothing; so items of
unequal lengths share no request here either. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    joined = []
    for inputs in zip(*items, strict=True):
        shapes = sorted({item.array.shape[1:] for item in inputs})
        if len(shapes) > 1:
            raise WrongUse(
                f"--client-batch {len(items)}: items of {where} differ in the shape of input "
                f"{inputs[0].spec.name!r} ({list(shapes[0])} and {list(shapes[-1])}), and one request "
                "has one shape; pad them in the file, or use --client-batch 1"
            )
        joined.append(Input(inputs[0].spec, np.concatenate([item.array for item in inputs])))
    return joined


def check_free(signature: Signature, client_batch: int, model: str) -> None:
    """Whether a model takes several items in one request.

    Raises:
        WrongUse: more than one item is asked for, and an input's first dimension is not free.
    """
    is_free = signature.is_batched and all(spec.shape for spec in signature.inputs)
    if client_batch > 1 and not is_free:
        shapes = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in signature.inputs)
        raise WrongUse(
            f"--client-batch {client_batch}: the first dimension of the inputs of {model} is not "
            f"free ({shapes}), so that a request cannot hold several items; use --client-batch 1"
        )
