"""Shape of one item from its flat values, for protocols without shapes."""

from __future__ import annotations

import math

from serving.errors import InvalidRequest
from serving.values import TensorSpec


def item_shape(spec: TensorSpec, elements: int) -> tuple[int, ...]:
    """Return the shape of one item, without the batch axis.

    3072 values fit [-1, 3, 32, 32] as (3, 32, 32); one free dimension is deduced.

    Raises:
        InvalidRequest: no shape fits, or several.
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
