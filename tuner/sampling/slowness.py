"""How slow the machine was at each launch, as the CPU time of its requests tells.

In: vectors of launches, and the logarithm of the CPU time that a request of each has taken, in gateway,
replicas and client together. Out: what their moments have added to that, with its covariance. Pure.

Processes that are started anew take more or less CPU time for the same request, in some hours more so than
in others. So the CPU time of a request rises when latencies do, and unlike a latency it hardly depends on
queues: what a configuration costs is mostly a sum of what each knob does. What a launch lies above that is
its moment, and most of its latency's noise: on the recorded surfaces it explains three quarters and more
of it, with a slope near 1 (`benchmarks/search/noise_told.py`). Measurements of the system as a guide to
the noise of a trial: Freischuetz et al., "TUNA: Tuning Unstable and Noisy Cloud Applications", EuroSys
2025, which learns it by a random forest over many machines.

    log cpu = h(x) + e,      log latency = f(x) + SHARE x e + what else differs

With h and f independent and jointly normal the CPU times can be conditioned on first: the targets lose
SHARE x E[e], and their noise gains what is not known of it, and of the share. That h and f rise together
where cores are full is not modelled.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

Array = NDArray[np.float64]

SHARE, SHARE_SD = 1.0, 0.3
"""Of a moment's slowness in CPU time, what a latency sees of it: on the recorded surfaces 0.9 to 1.1."""
LEFT = 0.35
"""Of the standard deviation of launches' noise, what is left when their CPU time is known."""
COST_SD = 0.2
"""Of what each knob does to the CPU time of a request: twice what was seen, because what is not believed of
a knob is taken for a moment."""
COST_LENGTH = 0.7
"""In lengths of an axis."""
INTERACTION = 0.6
"""Standard deviation of what knobs do together, as a share of what each does alone."""
LEVEL_SD = 1.0
NOISES = (0.02, 0.04, 0.07, 0.11, 0.16)
"""Standard deviations of moments that are weighed against one another."""
NOISE_SD, NOISE_SPREAD = 0.09, 0.6
"""What they are before a study tells: median, and spread of the logarithm."""
LEAST_KNOWN = 3
"""Launches whose CPU time is known before it tells anything."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slowness:
    """Of n launches, in units of log latency."""

    mean: Array  # (n,) to be taken out of the targets; 0 where nothing is known
    covariance: Array  # (n, n) of what is left of it
    sd: float
    """Of a moment, before its CPU time is known."""
    left_sd: float
    """What is left of that when it is."""


def fit(vectors: Array, efforts: Array, drift: Array | None = None) -> Slowness | None:
    """What CPU times tell.

    Args:
        vectors: (n, d) of launches: knobs alone, without features.
        efforts: (n,) logarithms of the CPU time of a request; NaN where not known.
        drift: (n, n) prior covariance of what launches of one time have in common; None: nothing.

    Returns:
        None where too few are known.
    """
    known = np.flatnonzero(np.isfinite(efforts))
    if len(known) < LEAST_KNOWN:
        return None
    both = np.ix_(known, known)
    moments = None if drift is None else drift[both]
    told, left, sd = _moments(vectors[known], efforts[known], moments)
    mean, covariance = np.zeros(len(efforts)), np.zeros((len(efforts),) * 2)
    mean[known] = SHARE * told
    covariance[both] = (SHARE**2 + SHARE_SD**2) * left + SHARE_SD**2 * np.outer(told, told)
    left_sd = math.sqrt(float(np.mean(np.diag(covariance)[known])))
    return Slowness(mean=mean, covariance=covariance, sd=SHARE * sd, left_sd=left_sd)


def _moments(vectors: Array, efforts: Array, drift: Array | None) -> tuple[Array, Array, float]:
    """Posterior mean (n,) and covariance (n, n) of the moments, averaged over `NOISES`, and their spread."""
    count = len(efforts)
    centred = efforts - efforts.mean()
    smooth = _cost(vectors) + LEVEL_SD**2
    heights, parts = [], []
    for sd in NOISES:
        noise = sd**2 * np.eye(count) + (0.0 if drift is None else drift)
        chol = np.linalg.cholesky(smooth + noise)
        pull = solve_triangular(chol, centred, lower=True, check_finite=False)
        away = math.log(sd / NOISE_SD) / NOISE_SPREAD
        heights.append(
            -0.5 * float(pull @ pull) - float(np.log(np.diag(chol)).sum()) - 0.5 * away**2
        )
        reduced = solve_triangular(chol, noise, lower=True, check_finite=False)
        parts.append((reduced.T @ pull, noise - reduced.T @ reduced))
    weights = np.exp(np.array(heights) - max(heights))
    weights /= weights.sum()
    means = np.array([mean for mean, _ in parts])
    mean = weights @ means
    left = np.tensordot(weights, np.array([each for _, each in parts]), axes=1)
    apart = means - mean
    spread = math.sqrt(float(weights @ np.square(NOISES)))
    return mean, left + (weights[:, None] * apart).T @ apart, spread


def _cost(vectors: Array) -> Array:
    """Prior covariance (n, n) of the CPU time that configurations cost: knob by knob, and a little together."""
    away = np.abs(vectors[:, None, :] - vectors[None, :, :]) / COST_LENGTH
    together = _matern(np.sqrt((away**2).sum(axis=-1)))
    return np.asarray(COST_SD**2 * (_matern(away).sum(axis=-1) + INTERACTION**2 * together))


def _matern(r: Array) -> Array:
    scaled = math.sqrt(5.0) * r
    return np.asarray((1 + scaled + scaled**2 / 3) * np.exp(-scaled))
