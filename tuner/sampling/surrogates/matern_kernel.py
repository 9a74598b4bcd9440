"""Covariances in knobs and in time, and the posterior of their hyper-parameters."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Sequence

import numpy as np
from scipy import optimize

from tuner.sampling.arrays import Array, Positions
from tuner.sampling.surrogates import cholesky
from tuner.sampling.surrogates.machine_speed import FORGETS_S, NODE_FORGETS_S, SHARES, process

LENGTH_SCALE = 0.6
LENGTH_SCALE_SPREAD = 1.3
VARIANCE_SPREAD = 1.0
DRIFT_SD_SPREAD, FORGETS_SPREAD = 0.7, 0.6
LEVEL_SD = 1.0
"""Prior sd of b0, in units of the targets' sd."""
SLOPE_SD = 0.5
ROUGH_LENGTH = 0.25
ITERATIONS, TOLERANCE = 40, 1e-4
"""Most iterations of a fit, and the relative decrease below which it ends."""
JITTER = 1e-9
MOST_POINTS = 1_000
"""Points whose correlations a `Kernel` keeps."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Logarithms of the hyper-parameters, for standardised targets."""

    variance: float
    lengths: tuple[float, ...]
    noise: float
    drift: tuple[float, ...] = ()
    """Of machine drift: sd and seconds of each part (`machine_speed`); empty without drift."""

    def as_tuple(self) -> tuple[float, ...]:
        """Return plain numbers for the store."""
        return (self.variance, *self.lengths, self.noise, *self.drift)

    @property
    def node_sd(self) -> float:
        """Sd of the machines' own speeds, the last part of the drift; 0 for a single machine."""
        return math.exp(self.drift[-2]) if len(self.drift) > 2 * len(SHARES) else 0.0

    @classmethod
    def medians(
        cls,
        width: int,
        *,
        variance: float,
        noise_sd: float,
        drift_sd: float = 0.0,
        node_sd: float = 0.0,
    ) -> Hyperparameters:
        """Return the priors' medians for `width` axes; drift and machines, if any, have these sds."""
        length = math.log(LENGTH_SCALE * math.sqrt(width))
        drift: tuple[float, ...] = ()
        if drift_sd:
            sds = [drift_sd * math.sqrt(share / sum(SHARES)) for share in SHARES]
            drift = tuple(
                math.log(value) for pair in zip(sds, FORGETS_S, strict=True) for value in pair
            )
        if node_sd:
            drift += (math.log(node_sd), math.log(NODE_FORGETS_S))
        return cls(math.log(variance), (length,) * width, math.log(noise_sd), drift)

    @classmethod
    def of(cls, values: Array | Sequence[float], width: int) -> Hyperparameters:
        """Rebuild from the values of `as_tuple`, for `width` axes."""
        plain = [float(value) for value in values]
        return cls(
            plain[0], tuple(plain[1 : 1 + width]), plain[1 + width], tuple(plain[2 + width :])
        )

    def in_unit(self, factor: float) -> Hyperparameters:
        """Return the same for targets that are standardised to `factor` times as large values."""
        more = math.log(factor)
        drift = [value if place % 2 else value + more for place, value in enumerate(self.drift)]
        return Hyperparameters(
            self.variance + 2 * more, self.lengths, self.noise + more, tuple(drift)
        )

    def drift_parts(self, away_s: Array) -> list[Array]:
        """Return the covariance (...) of each part of the drift over so many seconds."""
        return [
            math.exp(2 * sd) * process(away_s, math.exp(seconds))
            for sd, seconds in zip(self.drift[::2], self.drift[1::2], strict=True)
        ]


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
        away_s: Array,
    ) -> None:
        self._residuals = residuals
        self._shares = shares
        self._medians = np.array(medians.as_tuple())
        self._width = width = vectors.shape[1]
        self._away_s = away_s
        spreads = [VARIANCE_SPREAD, *[LENGTH_SCALE_SPREAD] * width, noise_spread]
        drifts = len(medians.drift) // 2
        self._spreads = np.array([*spreads, *[DRIFT_SD_SPREAD, FORGETS_SPREAD] * drifts])
        self._squares = (vectors[:, None, :] - vectors[None, :, :]).transpose(2, 0, 1) ** 2
        self._basis = np.full((len(residuals),) * 2, LEVEL_SD**2)
        if prior_mean is not None:
            self._basis += SLOPE_SD**2 * np.outer(prior_mean, prior_mean)
        if drift is not None:
            self._basis += drift

    def most_probable(self) -> tuple[Hyperparameters, float]:
        """Climb from the medians; return the optimum and its negative log posterior."""
        reach = 4 * self._spreads
        found = optimize.minimize(
            self._height,
            self._medians,
            jac=True,
            method="L-BFGS-B",
            bounds=list(zip(self._medians - reach, self._medians + reach, strict=True)),
            options={"maxiter": ITERATIONS, "ftol": TOLERANCE},
        )
        return Hyperparameters.of(found.x, self._width), float(found.fun)

    def _height(self, at: Array) -> tuple[float, Array]:
        here = Hyperparameters.of(at, self._width)
        variance, lengths = math.exp(here.variance), np.exp(2 * np.array(here.lengths))
        noise = math.exp(2 * here.noise)
        r = np.sqrt(5 * np.tensordot(1 / lengths, self._squares, axes=1))
        decay = np.exp(-r)
        kernel = variance * (1 + r + r**2 / 3) * decay
        drift = here.drift_parts(self._away_s)
        covariance = kernel + self._basis + sum(drift)
        covariance[np.diag_indices_from(covariance)] += noise * self._shares + JITTER
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
        weighted = outer * (variance * (5 / 3) * (1 + r) * decay)
        by_length = np.tensordot(self._squares, weighted, axes=([1, 2], [0, 1])) / lengths
        by_drift = []
        for part, seconds in zip(drift, here.drift[1::2], strict=True):
            pulled = outer * part
            by_seconds = float((pulled * self._away_s).sum()) / math.exp(seconds)
            by_drift += [-float(pulled.sum()), -0.5 * by_seconds]
        gradient = np.concatenate(
            [
                [-0.5 * float((outer * kernel).sum())],
                -0.5 * by_length,
                [-float(np.diag(outer) @ self._shares) * noise],
                by_drift,
            ]
        )
        return height, gradient + away / self._spreads


class Kernel:
    """Smooth and rough correlations between points, those of a pair computed once.

    A search asks again and again for those of its few candidates.
    """

    def __init__(self, lengths: Sequence[float]) -> None:
        """Take logarithms of the length scales (d,)."""
        self._lengths = np.exp(np.array(lengths))
        self._places: dict[bytes, int] = {}
        self._points = np.empty((0, len(lengths)))
        self._known = np.empty((2, 0, 0))
        self._lock = threading.Lock()

    def between(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return the correlations (len(a), len(b)) of the smooth and of the rough part."""
        with self._lock:
            rows = self._places_of(a)
            columns = rows if b is a else self._places_of(b)
            known = self._known
        if rows is None or columns is None:
            return self._compute(a, b)
        smooth, rough = (part.take(rows, axis=0).take(columns, axis=1) for part in known)
        return smooth, rough

    def _places_of(self, points: Array) -> Positions | None:
        """Return the places (n,) of points in the table, to which new ones are added; None if full."""
        raw, width = np.ascontiguousarray(points).tobytes(), 8 * points.shape[1]
        keys = [raw[first : first + width] for first in range(0, len(raw), width)]
        new = {key: row for row, key in enumerate(keys) if key not in self._places}
        if len(self._points) + len(new) > MOST_POINTS:
            return None
        if new:
            self._add(points[list(new.values())])
            self._places |= {key: len(self._places) + place for place, key in enumerate(new)}
        return np.array([self._places[key] for key in keys], dtype=np.intp)

    def _add(self, points: Array) -> None:
        before = len(self._points)
        self._points = np.vstack([self._points, points])
        found = np.empty((2, len(self._points), len(self._points)))
        found[:, :before, :before] = self._known
        found[:, :, before:] = self._compute(self._points, points)
        found[:, before:, :before] = found[:, :before, before:].transpose(0, 2, 1)
        self._known = found

    def _compute(self, a: Array, b: Array) -> tuple[Array, Array]:
        smooth = correlation(scaled_distances(a / self._lengths, b / self._lengths))
        return smooth, roughness(a, b)


def roughness(a: Array, b: Array) -> Array:
    """Return the correlation (len(a), len(b)) of the rough part."""
    return correlation(scaled_distances(a, b) / ROUGH_LENGTH)


def scaled_distances(a: Array, b: Array) -> Array:
    """Return the distances (len(a), len(b)) between points, times sqrt(5)."""
    squared = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2 * a @ b.T
    return np.asarray(np.sqrt(5 * np.maximum(squared, 0.0)))


def correlation(r: Array) -> Array:
    """Return the Matern-5/2 correlation at distances times sqrt(5)."""
    return np.asarray((1 + r + r**2 / 3) * np.exp(-r))
