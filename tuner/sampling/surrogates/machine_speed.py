"""Covariance of machines' speed in time: Ornstein-Uhlenbeck processes over seconds and minutes.

Typical shares of the variance between evaluations, on several recorded machines
(docs/measurement.md), are those of `SHARES`; the rest is an evaluation's own. Machines move
independently. Where there are several, each has its own lasting speed: a process that forgets
nothing in the time of a study.
"""

from __future__ import annotations

import numpy as np

from tuner.sampling.arrays import Array, Positions

SHARES = (0.45, 0.25)
FORGETS_S = (8.0, 100.0)
OWN_SHARE = 1 - sum(SHARES)
NODE_SD, NODE_FORGETS_S = 0.05, 1e7
"""Prior median of the sd of machines' lasting speeds, and the seconds in which those are forgotten.

TUNA (Freischuetz et al., EuroSys 2025) finds 5 % and more between machines of the same kind.
"""
_NEVER_S = 1e9


def away(at_s: Array, other_s: Array) -> Array:
    """Return the seconds (n, m) between times; those from an unknown time to any are many."""
    found = np.abs(at_s[:, None] - other_s[None, :])
    return np.where(np.isfinite(found), found, _NEVER_S)


def among(at_s: Array, nodes: Positions | None) -> Array:
    """Return the seconds (n, n) between evaluations; those between machines `nodes` (n,) are many."""
    found = away(at_s, at_s)
    if nodes is not None:
        found = np.where(nodes[:, None] == nodes[None, :], found, _NEVER_S)
    np.fill_diagonal(found, 0.0)
    return found


def process(away_s: Array, forgets_s: float) -> Array:
    """Return the correlation (...) of an Ornstein-Uhlenbeck process over so many seconds."""
    return np.asarray(np.exp(-away_s / forgets_s))


def typical(at_s: Array, nodes: Positions | None = None) -> Array:
    """Return the typical covariance (n, n) of evaluations, as a share of the variance of one.

    The lasting speeds of several machines `nodes` (n,) come on top.
    """
    away_s = among(at_s, nodes)
    parts = [
        share * process(away_s, forgets_s)
        for share, forgets_s in zip(SHARES, FORGETS_S, strict=True)
    ]
    if nodes is not None:
        parts.append(process(away_s, NODE_FORGETS_S))
    return np.asarray(sum(parts) + OWN_SHARE * np.eye(len(at_s)))
