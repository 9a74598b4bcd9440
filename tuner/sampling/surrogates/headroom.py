"""Probability that replicas stay within their memory, from a model of log(peak / limit)."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy.special import log_ndtr

from tuner.sampling.arrays import Array
from tuner.sampling.surrogates import gaussian_process
from tuner.sampling.surrogates.gaussian_process import GaussianProcess, NoisePrior

MIN_KNOWN = 3
MIN_OVER = 0.1
NOISE = NoisePrior(sd=0.03, spread=0.5)
"""Prior of a peak's noise: peaks of one configuration differ by a few per cent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Headroom:
    """Fitted model of log (peak / limit)."""

    _process: GaussianProcess

    def log_probability(self, vectors: Array) -> Array:
        """Return log P(peak < limit) (m,) at vectors (m, d)."""
        mean, sd = self._process.predict(vectors)
        return np.asarray(log_ndtr(-mean / np.hypot(sd, self._process.noise_sd)))


def fit(vectors: Array, log_shares: Array, killed: Array) -> Headroom | None:
    """Fit the model, or return None if too few peaks are known.

    Args:
        vectors: (n, d) of successful evaluations.
        log_shares: (n,) log(peak / limit); NaN if unknown.
        killed: (k, d) of evaluations that ran out of memory.
    """
    known = np.isfinite(log_shares)
    if np.count_nonzero(known) < MIN_KNOWN:
        return None
    process = gaussian_process.fit(vectors[known], log_shares[known], noise=NOISE)
    if len(killed):
        wanted = np.maximum(process.predict(killed)[0], MIN_OVER)
        process = gaussian_process.fit(
            np.vstack([vectors[known], killed]),
            np.concatenate([log_shares[known], wanted]),
            noise=NOISE,
        )
    return Headroom(process)
