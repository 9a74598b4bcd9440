"""Knowledge gradient: the expected gain of one more evaluation of each candidate.

The gain is how much lower the best posterior mean is expected to be, in units of the targets.
Evaluated candidates count too, so replicates are proposed where they are worth more (Frazier,
Powell and Dayanik, "The Knowledge-Gradient Policy for Correlated Normal Beliefs", INFORMS Journal
on Computing 21:599, 2009).

`NODES` equally likely outcomes replace their exact sweep by one array operation; gains are slightly
too small.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tuner.sampling.surrogates.gaussian_process import GaussianProcess

Array = NDArray[np.float64]

NODES = 32
MAX_BEST = 150
MAX_TRIED = 500
_OPTIMISM = 2.0
_CHUNK = 64


def knowledge_gradient(
    process: GaussianProcess,
    vectors: Array,
    prior_mean: Array | None,
    *,
    may_launch: NDArray[np.intp],
    may_be_best: NDArray[np.intp],
) -> tuple[NDArray[np.intp], Array]:
    """Scored positions (k,) and their expected gains (k,) >= 0.

    Args:
        process: fitted to the targets so far.
        vectors: (m, d) of all candidates.
        prior_mean: (m,), if fitted with one.
        may_launch: positions to evaluate; not empty.
        may_be_best: positions to recommend; not empty.
    """
    mean, sd = process.predict(vectors, prior_mean)
    optimistic = mean - _OPTIMISM * sd
    tried = _lowest(optimistic, may_launch, MAX_TRIED)
    best = _lowest(optimistic, may_be_best, MAX_BEST)
    surest = may_be_best[int(np.argmin(mean[may_be_best]))]
    best = np.union1d(best, [surest])
    z = ndtri((np.arange(NODES) + 0.5) / NODES)
    now = float(mean[surest])
    gains = np.empty(len(tried))
    recommendable = np.isin(tried, may_be_best)
    for first in range(0, len(tried), _CHUNK):
        part = slice(first, first + _CHUNK)
        at = tried[part]
        covariance = process.covariance(
            vectors[best],
            vectors[at],
            None if prior_mean is None else prior_mean[best],
            None if prior_mean is None else prior_mean[at],
        )
        told = np.sqrt(sd[at] ** 2 + process.told_sd**2)
        shift = covariance / told  # (best, at)
        lowest = (mean[best][:, None, None] + shift[:, :, None] * z).min(axis=0)
        own = mean[at][:, None] + (sd[at] ** 2 / told)[:, None] * z
        own = np.where(recommendable[part][:, None], own, np.inf)
        gains[part] = now - np.minimum(lowest, own).mean(axis=1)
    return tried, np.maximum(gains, 0.0)


def _lowest(values: Array, among: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    if len(among) <= count:
        return among
    return among[np.argpartition(values[among], count)[:count]]
