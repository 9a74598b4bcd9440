"""Host slowdown at each evaluation, estimated from the CPU time of its requests.

A request's CPU time hardly depends on queues: it is mostly a sum over knobs, and the excess is host
slowdown (`benchmarks/search/noise_told.py`). The method follows TUNA (Freischuetz et al., EuroSys
2025).

    log cpu = h(x) + e,      log latency = f(x) + SHARE x e + what else differs

With h and f independent and jointly normal, targets lose SHARE x E[e], and their noise gains the
uncertainty of e and of the share.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy.linalg import solve_triangular

from tuner.sampling.arrays import Array, Positions
from tuner.sampling.surrogates import machine_speed
from tuner.sampling.surrogates.matern_kernel import correlation

SHARE, SHARE_SD = 1.0, 0.3
"""Slope of log latency on log CPU slowdown (0.9 to 1.1 on recorded tables), and its sd."""
LEFT = 0.35
"""Share of the noise's sd that remains once CPU times are known."""
COST_SD = 0.2
"""Prior sd of one knob's effect on CPU time; effects beyond it would count as slowdown."""
COST_LENGTH = 0.7
INTERACTION = 0.6
"""Sd of knob interactions, as a share of single effects."""
LEVEL_SD = 1.0
NOISES = (0.02, 0.04, 0.07, 0.11, 0.16)
NOISE_SD, NOISE_SPREAD = 0.09, 0.6
"""Prior of the slowdown's sd: its median, and the spread of its logarithm."""
MIN_KNOWN = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostSlowdown:
    """Slowdowns of n evaluations, in log latency."""

    mean: Array  # (n,) to subtract from the targets; 0 if unknown
    covariance: Array  # (n, n) of the remaining uncertainty
    sd: float
    left_sd: float


def fit(
    vectors: Array,
    log_cpu_per_request: Array,
    at_s: Array | None = None,
    nodes: Positions | None = None,
) -> HostSlowdown | None:
    """Estimate the slowdowns, or return None if too few CPU times are known.

    Args:
        vectors: (n, d) of knobs only.
        log_cpu_per_request: (n,) log CPU time per request; NaN if unknown.
        at_s: (n,) Unix times, near which the machine is equally slow; NaN if unknown.
        nodes: (n,) numbers of the machines; None for a single one.
    """
    known = np.flatnonzero(np.isfinite(log_cpu_per_request))
    if len(known) < MIN_KNOWN:
        return None
    both = np.ix_(known, known)
    times = np.full(len(known), np.nan) if at_s is None else at_s[known]
    course = machine_speed.typical(times, None if nodes is None else nodes[known])
    told, left, sd = _moments(vectors[known], log_cpu_per_request[known], course)
    mean, covariance = np.zeros(len(log_cpu_per_request)), np.zeros((len(log_cpu_per_request),) * 2)
    mean[known] = SHARE * told
    covariance[both] = (SHARE**2 + SHARE_SD**2) * left + SHARE_SD**2 * np.outer(told, told)
    left_sd = math.sqrt(float(np.mean(np.diag(covariance)[known])))
    return HostSlowdown(mean=mean, covariance=covariance, sd=SHARE * sd, left_sd=left_sd)


def _moments(
    vectors: Array, log_cpu_per_request: Array, course: Array
) -> tuple[Array, Array, float]:
    centred = log_cpu_per_request - log_cpu_per_request.mean()
    smooth = _cost(vectors) + LEVEL_SD**2
    heights, parts = [], []
    for sd in NOISES:
        noise = sd**2 * course
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
    vectors, places = np.unique(vectors, axis=0, return_inverse=True)
    away = np.abs(vectors[:, None, :] - vectors[None, :, :]) / COST_LENGTH
    together = correlation(math.sqrt(5.0) * np.sqrt((away**2).sum(axis=-1)))
    single = correlation(math.sqrt(5.0) * away).sum(axis=-1)
    costs = COST_SD**2 * (single + INTERACTION**2 * together)
    return np.asarray(costs[np.ix_(places, places)])
