"""Knowledge gradient: how far one more evaluation is expected to lower the best posterior mean.

What the next evaluation says of the machine's drift tells of those just before it, too.
Evaluated candidates are scored too, so replicates are possible (Frazier et al., INFORMS Journal on
Computing 21:599, 2009). `NODES` equally likely outcomes replace their exact sweep, so gains are
slightly too small.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

from tuner.sampling.arrays import Array, Positions
from tuner.sampling.surrogates.gaussian_process import GaussianProcess, Posterior

NODES = 32
MAX_BEST = 150
MAX_TRIED = 500
_OPTIMISM = 2.0
_CHUNK = 64


def knowledge_gradient(process: GaussianProcess, posterior: Posterior) -> tuple[Positions, Array]:
    """Return the scored positions (k,) and their expected gains (k,) >= 0.

    Args:
        posterior: that of the process at all candidates (m,).
    """
    mean, sd = posterior.mean, posterior.sd
    optimistic = mean - _OPTIMISM * sd
    tried = _lowest(optimistic, MAX_TRIED)
    surest = int(np.argmin(mean))
    best = np.union1d(_lowest(optimistic, MAX_BEST), [surest])
    z = ndtri((np.arange(NODES) + 0.5) / NODES)
    now = float(mean[surest])
    with_drift, drift_variance = process.next_drift(posterior)
    gains = np.empty(len(tried))
    for first in range(0, len(tried), _CHUNK):
        part = slice(first, first + _CHUNK)
        at = tried[part]
        covariance = process.covariance(posterior.among(best), posterior.among(at))
        whole = sd[at] ** 2 + process.told_sd**2 + 2 * with_drift[at] + drift_variance
        told = np.sqrt(np.maximum(whole, 1e-12))
        shift = (covariance + with_drift[best][:, None]) / told  # (best, at)
        # Only what an outcome may lower below the surest one can become the best.
        apart = z[-1] * np.abs(shift - shift[best == surest]).max(axis=1)
        rivals = mean[best] - now <= apart
        lowest = (mean[best][rivals, None, None] + shift[rivals, :, None] * z).min(axis=0)
        own = mean[at][:, None] + ((sd[at] ** 2 + with_drift[at]) / told)[:, None] * z
        gains[part] = now - np.minimum(lowest, own).mean(axis=1)
    return tried, np.maximum(gains, 0.0)


def _lowest(values: Array, count: int) -> Positions:
    if len(values) <= count:
        return np.arange(len(values))
    return np.argpartition(values, count)[:count]
