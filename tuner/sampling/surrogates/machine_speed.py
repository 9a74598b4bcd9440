"""Covariance of a machine's speed in time: Ornstein-Uhlenbeck processes over seconds and minutes.

Typical shares of the variance between evaluations, on several recorded machines
(docs/measurement.md), are those of `SHARES`; the rest is an evaluation's own.
"""

from __future__ import annotations

import numpy as np

from tuner.sampling.arrays import Array

SHARES = (0.45, 0.25)
FORGETS_S = (8.0, 100.0)
OWN_SHARE = 1 - sum(SHARES)
_NEVER_S = 1e9


def away(at_s: Array, other_s: Array) -> Array:
    """Return the seconds (n, m) between times; those from an unknown time to any are many."""
    found = np.abs(at_s[:, None] - other_s[None, :])
    return np.where(np.isfinite(found), found, _NEVER_S)


def process(away_s: Array, forgets_s: float) -> Array:
    """Return the correlation (...) of an Ornstein-Uhlenbeck process over so many seconds."""
    return np.asarray(np.exp(-away_s / forgets_s))


def typical(at_s: Array) -> Array:
    """Return the typical covariance (n, n) of evaluations, as a share of the variance of one."""
    away_s = away(at_s, at_s)
    np.fill_diagonal(away_s, 0.0)
    parts = (
        share * process(away_s, forgets_s)
        for share, forgets_s in zip(SHARES, FORGETS_S, strict=True)
    )
    return np.asarray(sum(parts) + OWN_SHARE * np.eye(len(at_s)))
