"""Configurations apart from the machine, in values that were recorded one after another.

    log value = configuration + session + machine speed + own error

Values close in time share the speed of the machine (`machine_speed`), so the configurations are
estimated by generalised least squares (Aitken, 1936). Own errors are reweighted towards Student's t.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from tuner.sampling.arrays import Array
from tuner.sampling.surrogates import machine_speed
from tuner.sampling.surrogates.machine_speed import OWN_SHARE

SESSION_S = 600.0
"""Pause after which a recording counts as continued on another occasion."""
TAIL_DEGREES = 4.0
REWEIGHTINGS = 3
_RIDGE = 1e-9


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Effects:
    """Estimated effects of m configurations on n logarithms."""

    mean: Array  # (m,)
    se: Array  # (m,) standard errors
    left: Array  # (n,) what is left of the logarithms
    machine: Array  # (n,) the same without sessions, with the spread that machine and errors have


def fit(configurations: NDArray[np.int64], at_s: Array, logs: Array) -> Effects:
    """Estimate the effects.

    Args:
        configurations: (n,) numbers from 0 to m - 1, each at least once.
        at_s: (n,) times in seconds, ascending.
        logs: (n,) logarithms.
    """
    sessions = np.cumsum(np.diff(at_s, prepend=at_s[0]) > SESSION_S)
    design = np.eye(int(configurations.max()) + 1)[configurations]
    width = design.shape[1]
    counts = np.bincount(sessions)
    for session in range(1, len(counts)):  # means over evaluations are those of all sessions
        contrast = (sessions == session) - (sessions == 0) * counts[session] / counts[0]
        design = np.column_stack([design, contrast])
    own = np.full(len(logs), OWN_SHARE)
    speed = machine_speed.typical(at_s) - np.diag(own)
    for _ in range(REWEIGHTINGS):
        covariance = speed + np.diag(own)
        factor = linalg.cho_factor(covariance, lower=True, check_finite=False)
        pull = linalg.cho_solve(factor, design, check_finite=False)
        errors = np.linalg.inv(design.T @ pull + _RIDGE * np.eye(design.shape[1]))
        effects = errors @ (pull.T @ logs)
        left = logs - design @ effects
        degrees = max(1, len(logs) - design.shape[1])
        scale = float(left @ linalg.cho_solve(factor, left, check_finite=False)) / degrees
        told = ((design @ errors) * design).sum(axis=1)
        spread = np.maximum(np.diag(covariance) - told, 1e-3)
        squared = left**2 / (max(scale, 1e-12) * spread)
        own = OWN_SHARE * np.maximum(1.0, (TAIL_DEGREES + squared) / (TAIL_DEGREES + 1))
    return Effects(
        mean=effects[:width],
        se=np.sqrt(scale * np.diag(errors)[:width]),
        left=logs - effects[configurations],
        machine=left * np.sqrt(1 / np.clip(1 - told / np.diag(covariance), 0.2, 1.0)),
    )
