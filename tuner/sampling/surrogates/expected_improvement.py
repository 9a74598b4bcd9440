"""Expected improvement of a minimised target under a normal prediction.

The plain formula s (phi(z) + z Phi(z)), z = (incumbent - mean) / s, loses all digits below z = -8.
`log_expected_improvement` stays finite and increasing (Ament et al., NeurIPS 2023,
arXiv:2310.20708, equation 9).
"""

from __future__ import annotations

import numpy as np
from scipy.special import erfcx, log_ndtr, ndtr

from tuner.sampling.arrays import Array

_HALF_LOG_2_PI = 0.5 * np.log(2 * np.pi)
_TAIL = -1e4
"""Value of z below which the limit 1 / z^2 is exact to 3e-8."""


def log_expected_improvement(mean: Array, sd: Array, incumbent: float) -> Array:
    """Return log E[max(0, incumbent - target)] for targets with mean (m,) and positive sd (m,)."""
    z = (incumbent - mean) / sd
    result = np.empty_like(z)
    near, far = z > -1.0, z < _TAIL
    middle = ~near & ~far
    a = z[near]
    result[near] = np.log(np.exp(-0.5 * a**2 - _HALF_LOG_2_PI) + a * ndtr(a))
    b = z[middle]
    # phi(b) + b Phi(b) = phi(b) (1 - |b| sqrt(pi/2) erfcx(|b|/sqrt 2))
    bracket = -np.abs(b) * np.sqrt(np.pi / 2) * erfcx(np.abs(b) / np.sqrt(2))
    result[middle] = -0.5 * b**2 - _HALF_LOG_2_PI + np.log1p(bracket)
    c = z[far]
    result[far] = -0.5 * c**2 - _HALF_LOG_2_PI - 2 * np.log(np.abs(c))
    return np.asarray(np.log(sd) + result)


def gain_ratio(mean: Array, sd: Array, incumbent: float, *, is_log: bool) -> Array:
    """Return the expected improvement (m,) as a share of the incumbent (0.01 is 1 %).

    For log targets, with Y = exp(target) (its reciprocal if maximised) and I = exp(incumbent):
    E[max(0, I - Y)] / I = Phi(z) - exp(mean - incumbent + sd^2 / 2) Phi(z - sd). For raw targets:
    E[max(0, incumbent - target)] / |incumbent|; infinite for an incumbent of 0.
    """
    if not is_log:
        improvement = np.exp(log_expected_improvement(mean, sd, incumbent))
        return np.asarray(improvement / abs(incumbent) if incumbent else np.full_like(mean, np.inf))
    z = (incumbent - mean) / sd
    log_second = mean - incumbent + 0.5 * sd**2 + log_ndtr(z - sd)
    return np.asarray(np.clip(ndtr(z) - np.exp(np.minimum(log_second, 0.0)), 0.0, 1.0))
