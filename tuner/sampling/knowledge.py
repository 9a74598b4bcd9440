"""What is known of a study's cells before its own launches: a prediction, and launches of earlier studies.

Pure values, in the axes and on the scale of the study that uses them; `tuner.prediction` and
`tuner.transfer` make them. Everything on the logarithmic scale.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Earlier:
    """k launches of the same model under other loads, as rows of one process with those of the study."""

    vectors: Array  # (k, d) as the candidates' are
    context: Array  # (k, c) what differed of their load
    targets: (
        Array  # (k,) logarithms of the objective, as far as a load's size explains it taken out
    )
    errors: Array  # (k,) standard error of each within its launch; NaN where not known
    guess: Array | None
    """(k,) logarithms of what the profile predicts under their load."""
    own_context: Array  # (c,) of the study itself

    def __post_init__(self) -> None:
        lengths = {len(self.vectors), len(self.context), len(self.targets), len(self.errors)}
        if len(lengths) > 1:
            raise ValueError(f"columns of unequal length: {sorted(lengths)}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Knowledge:
    """Both; nothing by default."""

    guess: Array | None = None
    """(m,) of the candidates: logarithms of the predicted objective."""
    earlier: Earlier | None = None
    latency: Array | None = None
    """(m,) of the candidates: logarithms of the predicted mean round trip, for limits that go with it."""


NOTHING = Knowledge()
