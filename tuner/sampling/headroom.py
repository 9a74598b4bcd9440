"""Probability that replicas stay within their memory, from how near to their limit earlier ones came.

In: vectors of configurations that worked, with the logarithm of peak memory over limit; vectors of those
that ran out of memory. Out: log P(enough memory) (m,) at any vectors. Pure.

A classifier learns from a launch only whether it was killed; a replica that worked with 96 % of its
limit says as much about its neighbours as one that did not. Both are values of one quantity, of which a
Gaussian process knows the rest; what was killed is known to lie above 0 only, and stands at what the
others say of it, but at least at `LEAST_OVER`.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from tuner.sampling import gaussian_process
from tuner.sampling.gaussian_process import NoisePrior, Process

Array = NDArray[np.float64]

LEAST_KNOWN = 3
"""Launches whose peak is known before it is believed."""
LEAST_OVER = 0.1
"""A replica that was killed wanted a tenth more than it had, or more."""
NOISE = NoisePrior(sd=0.03, spread=0.5)
"""Peaks of one configuration differ by a few per cent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Headroom:
    """A fitted model of log (peak / limit)."""

    _process: Process

    def log_probability(self, vectors: Array) -> Array:
        """Natural logarithm (m,) of P(peak < limit) at vectors (m, d)."""
        mean, sd = self._process.predict(vectors)
        return np.asarray(log_ndtr(-mean / np.hypot(sd, self._process.noise_sd)))


def fit(vectors: Array, log_shares: Array, killed: Array) -> Headroom | None:
    """The model of these launches.

    Args:
        vectors: (n, d) of launches that worked.
        log_shares: (n,) logarithm of peak memory over limit; NaN where one of them is not known.
        killed: (k, d) of launches that ran out of memory.

    Returns:
        None where too few peaks are known.
    """
    known = np.isfinite(log_shares)
    if np.count_nonzero(known) < LEAST_KNOWN:
        return None
    process = gaussian_process.fit(vectors[known], log_shares[known], noise=NOISE)
    if len(killed):
        wanted = np.maximum(process.predict(killed)[0], LEAST_OVER)
        process = gaussian_process.fit(
            np.vstack([vectors[known], killed]),
            np.concatenate([log_shares[known], wanted]),
            noise=NOISE,
        )
    return Headroom(process)
