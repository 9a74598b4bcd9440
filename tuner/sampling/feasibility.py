"""Probability that a configuration is feasible, learnt from trials that ended well and trials that were lost.

In: vectors (n, d) in [0, 1] of observed and (k, d) of lost trials. Out: log P(feasible) (m,) at
any vectors. Pure.

Gaussian-process classification with a logistic likelihood and Laplace's approximation: Rasmussen
& Williams, "Gaussian Processes for Machine Learning", 2006, algorithms 3.1 and 3.2. With at most
a few hundred labels it is ten solves of an n x n system, about a millisecond, so nothing simpler
is needed: regression on 0/1 labels would be as dear, and is not a probability.

The prior says what walls look like in serving: out of memory is a plane through a few knobs
(replicas, batch, limit), so the kernel is linear; what is not plane is left to a Matern-5/2 term.
How much of each, and how far a label reaches, is chosen among a few pairs by the marginal
likelihood. The latent mean is above zero: without labels, a configuration is believed feasible.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import expit, log_expit

Array = NDArray[np.float64]

_MEAN = 1.5
"""Latent mean, in logits: 82 % of a space is believed feasible before anything was tried."""
_BIAS_SD = 1.5
_SLOPES = (0.0, 5.0, 20.0)
"""Prior standard deviations of the slope of the plane along an axis, in logits over its whole
length: no influence, gentle, a wall."""
_TEXTURES = ((2.0, 1.0), (4.0, 0.2))
"""Standard deviation in logits and reach (times the square root of the number of axes) of what is
not plane: faint and far, or strong and near."""
_SWEEPS = 2
_ITERATIONS = 30
_LEAST_CURVATURE = 1e-10


@dataclasses.dataclass(frozen=True, slots=True)
class Feasibility:
    """A fitted classifier."""

    _vectors: Array  # (n, d)
    prior: Prior
    _pull: Array  # (n,) gradient of the log likelihood at the mode
    _root: Array  # (n,) square root of the likelihood's curvature
    _factor: Array  # (n, n) lower Cholesky factor of I + root K root
    log_evidence: float
    """Laplace's estimate of the log marginal likelihood."""

    def log_probability(self, vectors: Array) -> Array:
        """Natural logarithm (m,) of P(feasible) at vectors (m, d)."""
        cross = self.prior.covariance(vectors, self._vectors)
        mean = _MEAN + cross @ self._pull
        spread = solve_triangular(self._factor, (self._root * cross).T, lower=True)
        variance = np.maximum(self.prior.variance(vectors) - (spread**2).sum(axis=0), 0.0)
        # The logistic function averaged over a normal latent value:
        # MacKay, Neural Computation 4 (1992), equation 10.
        return np.asarray(log_expit(mean / np.sqrt(1 + np.pi * variance / 8)))


@dataclasses.dataclass(frozen=True, slots=True)
class Prior:
    """Covariance of the latent function: a constant, a plane and a Matern-5/2 term."""

    slopes: Array  # (d,)
    texture: tuple[float, float]

    def covariance(self, a: Array, b: Array) -> Array:
        """(len(a), len(b))."""
        sd, reach = self.texture
        squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
        r = np.sqrt(5 * np.maximum(squared, 0.0)) / (reach * np.sqrt(a.shape[1]))
        matern = (1 + r + r**2 / 3) * np.exp(-r)
        plane = ((a - 0.5) * self.slopes) @ ((b - 0.5) * self.slopes).T
        return np.asarray(_BIAS_SD**2 + plane + sd**2 * matern)

    def variance(self, a: Array) -> Array:
        """(len(a),): the diagonal of the covariance of `a` with itself."""
        plane = (((a - 0.5) * self.slopes) ** 2).sum(axis=1)
        return np.asarray(_BIAS_SD**2 + plane + self.texture[0] ** 2)

    def others(self, coordinate: int) -> Iterator[Prior]:
        """Priors that differ in the slope of one axis or, for the coordinate d, in the texture."""
        if coordinate == len(self.slopes):
            yield from (Prior(self.slopes, t) for t in _TEXTURES if t != self.texture)
            return
        for slope in _SLOPES:
            if slope != self.slopes[coordinate]:
                slopes = self.slopes.copy()
                slopes[coordinate] = slope
                yield Prior(slopes, self.texture)


def fit(observed: Array, lost: Array) -> Feasibility | None:
    """The classifier of these labels.

    Args:
        observed: (n, d) of trials that were measured.
        lost: (k, d) of trials that were infeasible or failed.

    Returns:
        None where nothing was lost: then everything is believed feasible alike.
    """
    if not len(lost):
        return None
    vectors = np.vstack([observed, lost])
    labels = np.concatenate([np.ones(len(observed)), np.zeros(len(lost))])
    best = _laplace(vectors, labels, Prior(np.full(vectors.shape[1], _SLOPES[1]), _TEXTURES[0]))
    for _ in range(_SWEEPS):
        before = best
        for coordinate in range(vectors.shape[1] + 1):
            tried = (_laplace(vectors, labels, prior) for prior in best.prior.others(coordinate))
            best = max([best, *tried], key=lambda found: found.log_evidence)
        if best is before:
            break
    return best


def _laplace(vectors: Array, labels: Array, prior: Prior) -> Feasibility:
    """Newton's method for the posterior mode (algorithm 3.1), for the deviation from the mean."""
    kernel = prior.covariance(vectors, vectors)
    latent = np.zeros(len(labels))
    for _ in range(_ITERATIONS):
        share = expit(_MEAN + latent)
        curvature = np.maximum(share * (1 - share), _LEAST_CURVATURE)
        root = np.sqrt(curvature)
        factor = cho_factor(np.eye(len(labels)) + root[:, None] * kernel * root, lower=True)
        right = curvature * latent + labels - share
        weights = right - root * cho_solve(factor, root * (kernel @ right))
        before, latent = latent, kernel @ weights
        if float(np.max(np.abs(latent - before))) < 1e-6:
            break
    likelihood = float(np.sum(log_expit((2 * labels - 1) * (_MEAN + latent))))
    volume = float(np.sum(np.log(np.diag(factor[0]))))
    return Feasibility(
        _vectors=vectors,
        prior=prior,
        _pull=labels - expit(_MEAN + latent),
        _root=root,
        _factor=np.tril(factor[0]),
        log_evidence=likelihood - 0.5 * float(weights @ latent) - volume,
    )
