"""Non-negative least squares by the active-set method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def not_negative(a: Array, b: Array, *, count: int, start: Sequence[float] = ()) -> Array:
    """Minimise w'aw / 2 - b'w with the first `count` weights non-negative.

    This is the Lawson-Hanson method on normal equations (Bro and De Jong 1997), which finds the
    unique minimum in finitely many steps.

    Args:
        a: (d, d), symmetric and positive definite.
        b: (d,).
        count: number of weights that must not be negative.
        start: earlier solution; if the same weights are 0, one step is enough.
    """
    d = len(b)
    is_bound = np.arange(d) < count
    enough = 1e-12 * max(1.0, float(np.abs(b).max(initial=0.0)))
    if start:
        is_open = ~is_bound | (np.array(start) > 0)
        w = _solve(a, b, is_open)
        slope = b - a @ w
        if (w[is_bound & is_open] > 0).all() and (slope[~is_open] <= enough).all():
            return w
    is_open = ~is_bound
    w = _solve(a, b, is_open)
    for _ in range(3 * d + 10):
        slope = np.where(is_open, -np.inf, b - a @ w)
        if not d or slope.max() <= enough:
            break
        is_open[slope.argmax()] = True
        while True:
            goal = _solve(a, b, is_open)
            falls = is_open & is_bound & (goal <= 0)
            if not falls.any():
                w = goal
                break
            # Move towards the goal while all weights stay at 0 or above; those at 0 are bound.
            steps = w[falls] / np.maximum(w[falls] - goal[falls], np.finfo(float).tiny)
            w = w + min(1.0, float(steps.min())) * (goal - w)
            met = falls & (w <= 1e-15)
            is_open &= ~(met if met.any() else falls)
            w = np.where(is_open, w, 0.0)
    return w


def _solve(a: Array, b: Array, is_open: NDArray[np.bool_]) -> Array:
    """Return the minimum (d,) in which weights that are not open are 0."""
    w = np.zeros(len(b))
    if is_open.all():
        w[:] = np.linalg.solve(a, b)
    else:
        places = np.flatnonzero(is_open)
        w[places] = np.linalg.solve(a[np.ix_(places, places)], b[places])
    return w
