"""Requests of a model of the gallery: what the tuner would send, as arrays that the bare runtime takes too.

In: a signature, and what is told of the entry. Out: arrays by input name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gallery_models import Entry
from numpy.typing import NDArray

from serving.tensors import shapes
from serving.values import Signature
from tuner.evaluation import request_source
from tuner.settings.target import TargetSettings


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
    told = TargetSettings(
        model=entry.name,
        shape=tuple(f"{name}={size}" for name, size in entry.shapes.items()),
        values=tuple(f"{name}={value}" for name, value in entry.values.items()),
    )
    plan = request_source.make_request_source(told, None, signature).plan
    rng = np.random.default_rng(0)
    found = []
    for _ in range(n):
        drawn = (
            shapes.typical(plan.axes)
            if same_shape
            else shapes.sample_shapes(signature, plan.axes, rng)
        )
        found.append(
            {
                spec.name: plan.contents[spec.name].draw(rng, drawn[spec.name])
                for spec in signature.inputs
            }
        )
    return found
