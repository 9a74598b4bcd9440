"""Gaussian-process regression with GPy: Matern-5/2, with a length scale per axis.

Log-normal priors (median, spread of the logarithm): length scales (0.6 sqrt(d), 1.3), kernel
variance (1, 1), noise sd (5 % of a latency, 0.5; at least 1 %).
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from typing import Any

import numpy as np

from tuner.sampling.arrays import Array

Hyperparameters = tuple[float, ...]
"""Logs of kernel variance, length scales (d) and noise variance, for standardised targets."""

NOISE_SD = 0.05
NOISE_FLOOR_SD = 0.01
"""Minimum noise; a smaller estimate is luck and makes the matrix ill-conditioned."""
_NOISE_SPREAD = 1.0
_LENGTH_SCALE = 0.6
_LENGTH_SCALE_SPREAD = 1.3
_VARIANCE_SPREAD = 1.0
_ITERATIONS = 60
_MIN_SD = 0.02


@dataclasses.dataclass(frozen=True, slots=True)
class GpyModel:
    """Fitted process."""

    _model: Any
    _shift: float
    _factor: float
    hyperparameters: Hyperparameters

    def predict(self, vectors: Array) -> tuple[Array, Array]:
        """Return mean and sd (m,) of the latent function at (m, d)."""
        mean, variance = self._model.predict_noiseless(vectors)
        sd = np.sqrt(np.maximum(variance[:, 0], 1e-12))
        return self._shift + self._factor * mean[:, 0], self._factor * sd

    def expecting(self, pending: Array) -> GpyModel:
        """Return the process as if running trials (p, d) had returned their predicted means."""
        if not len(pending):
            return self
        mean, _ = self._model.predict_noiseless(pending)
        vectors, targets = np.vstack([self._model.X, pending]), np.vstack([self._model.Y, mean])
        model = _model(vectors, targets, self.hyperparameters)
        return dataclasses.replace(self, _model=model)

    @property
    def noise_sd(self) -> float:
        """Sd of one observation, in units of the targets."""
        return self._factor * math.exp(0.5 * self.hyperparameters[-1])


def fit(
    vectors: Array, targets: Array, *, noise_sd: float, start: Hyperparameters = ()
) -> GpyModel:
    """Fit vectors (n, d) and targets (n,) by maximum a posteriori, from one or two starts.

    Args:
        noise_sd: prior median, in units of the targets.
        start: hyper-parameters of an earlier fit.
    """
    width = vectors.shape[1]
    shift = float(np.mean(targets))
    factor = max(float(np.std(targets)), _MIN_SD / NOISE_SD * noise_sd, 1e-12)
    standard = ((targets - shift) / factor)[:, None]
    prior_noise = 2 * math.log(noise_sd / factor)
    floor = prior_noise + 2 * math.log(NOISE_FLOOR_SD / NOISE_SD)
    middle = (0.0, *[math.log(_LENGTH_SCALE * math.sqrt(width))] * width, prior_noise)
    starts = [middle, start] if len(start) == len(middle) else [middle]
    reached = [_climb(vectors, standard, first, middle) for first in starts]
    _, best = min([(math.inf, middle), *reached], key=lambda pair: pair[0])
    chosen = (*best[:-1], max(best[-1], floor))
    return GpyModel(_model(vectors, standard, chosen), shift, factor, chosen)


def _climb(
    vectors: Array, targets: Array, start: Hyperparameters, prior: Hyperparameters
) -> tuple[float, Hyperparameters]:
    gpy = _gpy()
    try:
        with np.errstate(all="ignore"):  # the line search tries absurd values, and leaves them
            model = _model(vectors, targets, start)
            lengths = gpy.priors.LogGaussian(prior[1], _LENGTH_SCALE_SPREAD)
            model.kern.lengthscale.set_prior(lengths, warning=False)
            variance = gpy.priors.LogGaussian(prior[0], _VARIANCE_SPREAD)
            model.kern.variance.set_prior(variance, warning=False)
            noise = gpy.priors.LogGaussian(prior[-1], _NOISE_SPREAD)
            model.likelihood.variance.set_prior(noise, warning=False)
            model.optimize(optimizer="lbfgsb", max_iters=_ITERATIONS, messages=False)
            found = [model.kern.variance[0], *model.kern.lengthscale, model.likelihood.variance[0]]
            reached, height = np.log(found), float(model.objective_function())
    except np.linalg.LinAlgError:
        return math.inf, start
    if not np.isfinite(height) or not np.isfinite(reached).all():
        return math.inf, start
    return height, tuple(float(value) for value in reached)


def _model(vectors: Array, targets: Array, hyperparameters: Hyperparameters) -> Any:
    gpy = _gpy()
    variance, *lengths, noise = np.exp(hyperparameters)
    kernel = gpy.kern.Matern52(
        vectors.shape[1], variance=variance, lengthscale=np.array(lengths), ARD=True
    )
    return gpy.models.GPRegression(vectors, targets, kernel, noise_var=noise)


@functools.cache
def _gpy() -> Any:
    # takes 1.5 s, and changes the warning filters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import GPy  # noqa: PLC0415 - see the docstring
    return GPy
