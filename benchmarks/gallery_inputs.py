"""Requests of a model of the gallery, made up from what is told of it, as the tuner makes them up.

In: a signature, and the entry's shapes and values. Out: arrays by input name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gallery_models import Entry
from numpy.typing import NDArray

from serving import shapes, sizes
from serving.values import Signature, TensorSpec
from tuner.traffic import oip_body

MOST_INTEGER = 9


def made(
    signature: Signature, entry: Entry, n: int, *, same_shape: bool = False
) -> list[dict[str, NDArray[Any]]]:
    """So many requests of one item each.

    Args:
        signature: of the model.
        entry: with what is told.
        n: how many.
        same_shape: whether sizes that vary are taken at their median, so that all can meet in a batch.
    """
    axes = shapes.bind(signature, sizes.sizes_of([f"{k}={v}" for k, v in entry.shapes.items()]))
    rng = np.random.default_rng(0)
    found = []
    for _ in range(n):
        drawn = shapes.typical(axes) if same_shape else shapes.drawn(signature, axes, rng)
        found.append(
            {
                spec.name: _values(
                    spec, drawn[spec.name], str(entry.values.get(spec.name, "")), rng
                )
                for spec in signature.inputs
            }
        )
    return found


def _values(
    spec: TensorSpec, shape: Sequence[int], told: str, rng: np.random.Generator
) -> NDArray[Any]:
    kind = oip_body.DTYPES[spec.datatype]
    low, dots, high = told.partition("..")
    if told and not dots:
        return np.full(shape, float(low), kind)
    if told or kind.kind in "iu":
        return rng.integers(int(low or 0), int(high or MOST_INTEGER) + 1, shape).astype(kind)
    return np.asarray(rng.standard_normal(shape)).astype(kind)
