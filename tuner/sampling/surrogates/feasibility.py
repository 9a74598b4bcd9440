"""Probability that a configuration is feasible, learned from successful and failed trials.

Gaussian-process classification with a logistic likelihood and Laplace's approximation: Rasmussen
and Williams, Gaussian Processes for Machine Learning, algorithms 3.1 and 3.2. Memory use is mostly
linear in a few knobs, so the kernel, chosen by marginal likelihood, is a plane plus a Matern-5/2
term.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import expit, log_expit

from tuner.sampling.arrays import Array
from tuner.sampling.surrogates import cholesky
from tuner.sampling.surrogates.matern_kernel import correlation, scaled_distances

_MEAN = 1.5
"""Latent mean in logits: 82 % of a space is feasible by default."""
_BIAS_SD = 1.5
_SLOPES = (0.0, 5.0, 20.0)
"""Prior sds of a slope, in logits per axis."""
_TEXTURES = ((2.0, 1.0), (4.0, 0.2))
"""Sd (logits) and length (times sqrt(d)) of the Matern term."""
_SWEEPS = 2
_ITERATIONS = 30
_MIN_CURVATURE = 1e-10


@dataclasses.dataclass(frozen=True, slots=True)
class Feasibility:
    """Fitted classifier."""

    _vectors: Array  # (n, d)
    prior: Prior
    _pull: Array  # (n,) gradient of the log likelihood at the mode
    _root: Array  # (n,) square root of the likelihood's curvature
    _factor: Array  # (n, n) lower Cholesky factor of I + root K root
    log_evidence: float

    def log_probability(self, vectors: Array) -> Array:
        """Return log P(feasible) (m,) at vectors (m, d)."""
        cross = self.prior.covariance(vectors, self._vectors)
        mean = _MEAN + cross @ self._pull
        scaled = (self._root * cross).T
        spread = solve_triangular(self._factor, scaled, lower=True, check_finite=False)
        variance = np.maximum(self.prior.variance(vectors) - (spread**2).sum(axis=0), 0.0)
        # The logistic averaged over a normal latent value: MacKay, Neural Computation 4 (1992),
        # equation 10.
        return np.asarray(log_expit(mean / np.sqrt(1 + np.pi * variance / 8)))


@dataclasses.dataclass(frozen=True, slots=True)
class Prior:
    """Covariance of the latent function: constant, plane and Matern-5/2."""

    slopes: Array  # (d,)
    texture: tuple[float, float]

    def covariance(self, a: Array, b: Array) -> Array:
        """Return the covariance (len(a), len(b))."""
        sd, reach = self.texture
        matern = correlation(scaled_distances(a, b) / (reach * np.sqrt(a.shape[1])))
        plane = ((a - 0.5) * self.slopes) @ ((b - 0.5) * self.slopes).T
        return np.asarray(_BIAS_SD**2 + plane + sd**2 * matern)

    def variance(self, a: Array) -> Array:
        """Return the diagonal (len(a),) of the covariance."""
        plane = (((a - 0.5) * self.slopes) ** 2).sum(axis=1)
        return np.asarray(_BIAS_SD**2 + plane + self.texture[0] ** 2)

    def others(self, coordinate: int) -> Iterator[Prior]:
        """Yield priors that differ in one axis's slope or, for coordinate d, in the texture."""
        if coordinate == len(self.slopes):
            yield from (Prior(self.slopes, t) for t in _TEXTURES if t != self.texture)
            return
        for slope in _SLOPES:
            if slope != self.slopes[coordinate]:
                slopes = self.slopes.copy()
                slopes[coordinate] = slope
                yield Prior(slopes, self.texture)


def fit(observed: Array, lost: Array) -> Feasibility | None:
    """Fit observed (n, d) and lost (k, d) trials, or return None if none was lost."""
    if not len(lost):
        return None
    vectors = np.vstack([observed, lost])
    labels = np.concatenate([np.ones(len(observed)), np.zeros(len(lost))])
    known: dict[bytes, Feasibility] = {}  # the sweeps try some priors twice

    def of(prior: Prior) -> Feasibility:
        key = prior.slopes.tobytes() + bytes([_TEXTURES.index(prior.texture)])
        if key not in known:
            known[key] = _laplace(vectors, labels, prior)
        return known[key]

    best = of(Prior(np.full(vectors.shape[1], _SLOPES[1]), _TEXTURES[0]))
    for _ in range(_SWEEPS):
        before = best
        for coordinate in range(vectors.shape[1] + 1):
            best = max(
                [best, *map(of, best.prior.others(coordinate))],
                key=lambda found: found.log_evidence,
            )
        if best is before:
            break
    return best


def _laplace(vectors: Array, labels: Array, prior: Prior) -> Feasibility:
    kernel = prior.covariance(vectors, vectors)
    latent, identity = np.zeros(len(labels)), np.eye(len(labels))
    for _ in range(_ITERATIONS):
        share = expit(_MEAN + latent)
        curvature = np.maximum(share * (1 - share), _MIN_CURVATURE)
        root = np.sqrt(curvature)
        factor = cholesky.factor(identity + root[:, None] * kernel * root)
        right = curvature * latent + labels - share
        weights = right - root * cholesky.solve(factor, root * (kernel @ right))
        before, latent = latent, kernel @ weights
        if float(np.max(np.abs(latent - before))) < 1e-6:
            break
    likelihood = float(np.sum(log_expit((2 * labels - 1) * (_MEAN + latent))))
    volume = float(np.sum(np.log(np.diag(factor))))
    return Feasibility(
        _vectors=vectors,
        prior=prior,
        _pull=labels - expit(_MEAN + latent),
        _root=root,
        _factor=factor,
        log_evidence=likelihood - 0.5 * float(weights @ latent) - volume,
    )
