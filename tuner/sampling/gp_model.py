"""Gaussian-process regression of the targets: GPy, Matern-5/2 with a length scale per axis, priors against few points.

In: vectors (n, d) in [0, 1] and targets (n,). Out: a `Surrogate` that predicts mean and standard
deviation of the latent function, in units of the targets. This is the only file that knows GPy;
it knows nothing of trials, cells or acquisition.

Priors, each log-normal (median, spread of the logarithm):

- length scales 0.6 sqrt(d), 1.3: distances grow with sqrt(d), so the prior of a function's
  roughness does not depend on the number of knobs (Hvarfner et al., "Vanilla Bayesian
  Optimization Performs Great in High Dimensions", ICML 2024). An axis that explains nothing moves
  out, one that matters moves in, and ten points cannot buy a length scale of 0.05.
- kernel variance 1, 1: targets are standardised.
- noise standard deviation 5 % of a latency, factor 1.65: launches of one configuration differ by
  3 to 10 % on a quiet machine, and without repeats the data cannot tell noise from roughness.
  Floor 1 %.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Hyperparameters = tuple[float, ...]
"""Logarithms of kernel variance, length scales (d) and noise variance, of standardised targets."""

NOISE_SD = 0.05
"""Prior median of the noise on the log scale: 5 % of a latency."""
NOISE_FLOOR_SD = 0.01
"""Least noise on the log scale: a smaller estimate is luck, and a matrix that is hard to invert."""
_NOISE_SPREAD = 1.0
_LENGTH_SCALE = 0.6
_LENGTH_SCALE_SPREAD = 1.3
_VARIANCE_SPREAD = 1.0
_ITERATIONS = 60
_LEAST_SD = 0.02
"""Targets that differ by less are standardised by this, so that noise is not blown up to look like a function."""


@dataclasses.dataclass(frozen=True, slots=True)
class Surrogate:
    """A fitted process."""

    _model: Any
    _shift: float
    _factor: float
    hyperparameters: Hyperparameters
    """What was found, for the start of the next fit."""

    def predict(self, vectors: Array) -> tuple[Array, Array]:
        """Mean (m,) and standard deviation (m,) of the latent function, without noise, at vectors (m, d)."""
        mean, variance = self._model.predict_noiseless(vectors)
        sd = np.sqrt(np.maximum(variance[:, 0], 1e-12))
        return self._shift + self._factor * mean[:, 0], self._factor * sd

    def expecting(self, pending: Array) -> Surrogate:
        """The process as it would be if the trials under way (p, d) gave their predicted means.

        Means stay, uncertainty near the pending points shrinks, so that parallel trials spread
        out ("kriging believer": Ginsbourger et al., "Kriging is well-suited to parallelize
        optimization", 2010).
        """
        if not len(pending):
            return self
        mean, _ = self._model.predict_noiseless(pending)
        vectors, targets = np.vstack([self._model.X, pending]), np.vstack([self._model.Y, mean])
        model = _model(vectors, targets, self.hyperparameters)
        return dataclasses.replace(self, _model=model)

    @property
    def noise_sd(self) -> float:
        """Standard deviation of one observation, in units of the targets."""
        return self._factor * math.exp(0.5 * self.hyperparameters[-1])


def fit(
    vectors: Array, targets: Array, *, noise_sd: float, start: Hyperparameters = ()
) -> Surrogate:
    """Most probable hyper-parameters given the data (maximum a posteriori), from two starts at most.

    Args:
        vectors: (n, d) in [0, 1], n >= 1.
        targets: (n,).
        noise_sd: prior median of the noise, in units of the targets.
        start: hyper-parameters of an earlier fit; other lengths are ignored.
    """
    width = vectors.shape[1]
    shift = float(np.mean(targets))
    factor = max(float(np.std(targets)), _LEAST_SD / NOISE_SD * noise_sd, 1e-12)
    standard = ((targets - shift) / factor)[:, None]
    prior_noise = 2 * math.log(noise_sd / factor)
    floor = prior_noise + 2 * math.log(NOISE_FLOOR_SD / NOISE_SD)
    middle = (0.0, *[math.log(_LENGTH_SCALE * math.sqrt(width))] * width, prior_noise)
    starts = [middle, start] if len(start) == len(middle) else [middle]
    reached = [_climb(vectors, standard, first, middle) for first in starts]
    _, best = min([(math.inf, middle), *reached], key=lambda pair: pair[0])
    chosen = (*best[:-1], max(best[-1], floor))
    return Surrogate(_model(vectors, standard, chosen), shift, factor, chosen)


def _climb(
    vectors: Array, targets: Array, start: Hyperparameters, prior: Hyperparameters
) -> tuple[float, Hyperparameters]:
    """Negative log posterior and the hyper-parameters reached from one start.

    A climb that leaves the numbers a matrix can bear ends at infinity, so another is taken.
    """
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
    """GPy, imported here because it takes 1.5 s that a command which fits nothing should not pay.

    While it is imported GPy silences every DeprecationWarning of the process, and warns that
    matplotlib is missing; the filters are put back as they were.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import GPy  # noqa: PLC0415 - see the docstring
    return GPy
