"""Matern-5/2 kernel, and the posterior of its hyper-parameters for `gaussian_process`."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy import optimize

from tuner.sampling.arrays import Array
from tuner.sampling.surrogates import cholesky

LENGTH_SCALE = 0.6
LENGTH_SCALE_SPREAD = 1.3
VARIANCE_SPREAD = 1.0
LEVEL_SD = 1.0
"""Prior sd of b0, in units of the targets' sd."""
SLOPE_SD = 0.5
ROUGH_LENGTH = 0.25
ITERATIONS = 40
JITTER = 1e-9


@dataclasses.dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Logarithms of the hyper-parameters, for standardised targets."""

    variance: float
    lengths: tuple[float, ...]
    noise: float

    def as_tuple(self) -> tuple[float, ...]:
        """Return plain numbers for the store."""
        return (self.variance, *self.lengths, self.noise)

    @classmethod
    def medians(cls, width: int, *, variance: float, noise_sd: float) -> Hyperparameters:
        """Return the priors' medians for `width` axes."""
        length = math.log(LENGTH_SCALE * math.sqrt(width))
        return cls(math.log(variance), (length,) * width, math.log(noise_sd))

    @classmethod
    def of(cls, values: Array | tuple[float, ...]) -> Hyperparameters:
        """Rebuild from the values of `as_tuple`."""
        return cls(float(values[0]), tuple(map(float, values[1:-1])), float(values[-1]))


class HyperparameterPosterior:
    """Negative log posterior of the hyper-parameters, with its gradient."""

    def __init__(
        self,
        vectors: Array,
        residuals: Array,
        prior_mean: Array | None,
        shares: Array,
        drift: Array | None,
        medians: Hyperparameters,
        noise_spread: float,
    ) -> None:
        self._residuals = residuals
        self._shares = shares
        self._medians = np.array(medians.as_tuple())
        width = vectors.shape[1]
        self._spreads = np.array([VARIANCE_SPREAD, *[LENGTH_SCALE_SPREAD] * width, noise_spread])
        self._squares = (vectors[:, None, :] - vectors[None, :, :]).transpose(2, 0, 1) ** 2
        self._basis = np.full((len(residuals),) * 2, LEVEL_SD**2)
        if prior_mean is not None:
            self._basis += SLOPE_SD**2 * np.outer(prior_mean, prior_mean)
        if drift is not None:
            self._basis += drift

    def most_probable(self, start: Hyperparameters | None) -> tuple[Hyperparameters, float]:
        """Return the best optimum, from the medians and, if it has the same axes, from `start`."""
        starts = [Hyperparameters.of(self._medians)]
        if start is not None and len(start.lengths) == len(starts[0].lengths):
            starts.insert(0, start)
        return min(map(self.climb, starts), key=lambda end: end[1])

    def climb(self, start: Hyperparameters) -> tuple[Hyperparameters, float]:
        """Minimise from `start`; return the optimum and its negative log posterior."""
        reach = 4 * self._spreads
        bounds = list(zip(self._medians - reach, self._medians + reach, strict=True))
        first = np.clip(
            np.array(start.as_tuple()), [low for low, _ in bounds], [high for _, high in bounds]
        )
        found = optimize.minimize(
            self._height,
            first,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"maxiter": ITERATIONS},
        )
        return Hyperparameters.of(found.x), float(found.fun)

    def _parts(self, at: Array) -> tuple[Array, Array, Array, Array]:
        variance, lengths, noise = math.exp(at[0]), np.exp(2 * at[1:-1]), math.exp(2 * at[-1])
        r = np.sqrt(5 * np.tensordot(1 / lengths, self._squares, axes=1))
        decay = np.exp(-r)
        kernel = variance * (1 + r + r**2 / 3) * decay
        covariance = kernel + self._basis
        covariance[np.diag_indices_from(covariance)] += noise * self._shares + JITTER
        return covariance, kernel, variance * (5 / 3) * (1 + r) * decay, lengths

    def _height(self, at: Array) -> tuple[float, Array]:
        covariance, kernel, slope, lengths = self._parts(at)
        try:
            chol = cholesky.factor(covariance)
        except np.linalg.LinAlgError:
            return 1e10, np.zeros_like(at)
        pull = cholesky.solve(chol, self._residuals)
        outer = np.outer(pull, pull) - cholesky.inverse(chol)
        away = (at - self._medians) / self._spreads
        height = (
            0.5 * float(self._residuals @ pull)
            + float(np.log(np.diag(chol)).sum())
            + 0.5 * len(pull) * math.log(2 * math.pi)
            + 0.5 * float(away @ away)
        )
        weighted = outer * slope
        by_length = np.tensordot(self._squares, weighted, axes=([1, 2], [0, 1])) / lengths
        noise = math.exp(2 * at[-1])
        gradient = np.concatenate(
            [
                [-0.5 * float((outer * kernel).sum())],
                -0.5 * by_length,
                [-float(np.diag(outer) @ self._shares) * noise],
            ]
        )
        return height, gradient + away / self._spreads


def roughness(a: Array, b: Array) -> Array:
    """Return the correlation (len(a), len(b)) of the rough part."""
    return correlation(scaled_distances(a, b) / ROUGH_LENGTH)


def matern(a: Array, b: Array, at: Hyperparameters) -> Array:
    """Return the Matern-5/2 covariance (len(a), len(b))."""
    lengths = np.exp(np.array(at.lengths))
    r = scaled_distances(a / lengths, b / lengths)
    return np.asarray(math.exp(at.variance) * (1 + r + r**2 / 3) * np.exp(-r))


def scaled_distances(a: Array, b: Array) -> Array:
    """Return the distances (len(a), len(b)) between points, times sqrt(5)."""
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.sqrt(5 * np.maximum(squared, 0.0)))


def correlation(r: Array) -> Array:
    """Return the Matern-5/2 correlation at distances times sqrt(5)."""
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r))
