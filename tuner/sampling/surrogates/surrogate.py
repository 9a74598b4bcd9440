"""Model of a study: a Gaussian process over its history with structured noise.

A target's noise has four parts: host slowdown, as far as CPU times show it; the machines' drift over
seconds and minutes and their own speeds, and differences between evaluations, learned under priors; and
error within the evaluation, shrunk towards the common value. One evaluation more changes the
hyper-parameters little, so with many, they are those of the first ones.
"""

from __future__ import annotations

import dataclasses
import math
import pickle
import threading

import numpy as np

from tuner.sampling.arrays import Array
from tuner.sampling.history import TrainingData
from tuner.sampling.surrogates import gaussian_process, host_slowdown
from tuner.sampling.surrogates.gaussian_process import GaussianProcess, NoisePrior
from tuner.sampling.surrogates.host_slowdown import HostSlowdown
from tuner.sampling.surrogates.machine_speed import NODE_SD, OWN_SHARE

NOISE = NoisePrior(sd=0.08, spread=0.7)
"""Prior of the noise: 2 % on a quiet machine, 15 % on a small shared one."""
EVALUATION_OVER_ERROR = 2.5
"""Noise between evaluations relative to the standard error within one of four blocks."""
MIN_NOISE, MAX_NOISE = 0.02, 0.2
ERROR_DEGREES = 3.0
"""Degrees of freedom of an evaluation's standard error, from four blocks."""
TAIL_DEGREES = 4.0
ROUGH_SD = 0.12
"""Sd of steps and kinks, without which the process is too certain about untried candidates."""
MANY, GROWTH = 16, 1.125
"""Number of evaluations above which hyper-parameters stay until there are so many times as many."""
RETAINED = 32
PRIOR_DEGREES = 9.0

_fitted: dict[bytes, GaussianProcess] = {}
_lock = threading.Lock()


def fit(
    seen: TrainingData,
    *,
    prior_mean: Array | None = None,
    variance: float = 1.0,
    like: GaussianProcess | None = None,
) -> GaussianProcess:
    """Fit one or more evaluations, or return the cached fit.

    Args:
        variance: prior median of the share of the targets' variance that `prior_mean` leaves.
        like: process of the same evaluations, whose estimate of host slowdown is taken over.
    """
    corrects = None if like is None else like.slowdown is not None
    return _cached(seen, prior_mean, variance, corrects, None if like is None else like.slowdown)


def _cached(
    seen: TrainingData,
    prior_mean: Array | None,
    variance: float,
    corrects: bool | None,
    slow: HostSlowdown | None,
) -> GaussianProcess:
    columns = (
        *(seen.vectors, seen.targets, seen.errors, seen.at_s, seen.log_cpu_per_request),
        seen.several,
    )
    key = pickle.dumps(
        (columns, seen.scale, seen.knobs, seen.earlier, prior_mean, variance, corrects)
    )
    with _lock:
        found = _fitted.pop(key, None)
    if found is None:
        found = _fit(seen, prior_mean, variance, corrects, slow)
    with _lock:
        _fitted[key] = found  # the last one that was used
        while len(_fitted) > RETAINED:
            del _fitted[next(iter(_fitted))]
    return found


def _fit(
    seen: TrainingData,
    prior_mean: Array | None,
    variance: float,
    corrects: bool | None,
    slow: HostSlowdown | None,
) -> GaussianProcess:
    """Fit with host slowdown, or without, or what is likelier if `corrects` is None."""

    def slowdown() -> HostSlowdown | None:
        if slow is not None or seen.scale != "log":
            return slow
        knobs = seen.vectors[:, : seen.knobs]
        return host_slowdown.fit(knobs, seen.log_cpu_per_request, seen.at_s, seen.several)

    rows = np.r_[: learned_from(seen.own), seen.own : len(seen.targets)]
    if len(rows) < len(seen.targets):
        guesses = None if prior_mean is None else prior_mean[rows]
        learned = _cached(seen.at(rows), guesses, variance, corrects, None)
        known = None if learned.slowdown is None else slowdown()
        return _fit_with(seen, known, prior_mean, variance, learned)
    known = None if corrects is False else slowdown()
    if known is None:
        return _fit_with(seen, None, prior_mean, variance, None)
    told = _fit_with(seen, known, prior_mean, variance, None)
    if corrects:
        return told
    # CPU times may say nothing of latency, where they are badly measured or the model waits.
    plain = _fit_with(seen, None, prior_mean, variance, None)
    return plain if plain.log_density > told.log_density else told


def learned_from(count: int) -> int:
    """Return from how many of the first evaluations the hyper-parameters are learned."""
    while count > MANY and int(math.log(count, GROWTH)) == int(math.log(count - 1, GROWTH)):
        count -= 1
    return count


def _fit_with(
    seen: TrainingData,
    slow: HostSlowdown | None,
    prior_mean: Array | None,
    variance: float,
    learned: GaussianProcess | None,
) -> GaussianProcess:
    left = 1.0 if slow is None else host_slowdown.LEFT
    prior = noise_prior(seen.errors, left=left)
    if seen.scale == "raw":
        # No unit for noise: use the same share of the spread.
        prior = NoisePrior(
            sd=NOISE.sd * max(float(np.std(seen.targets)), 1e-9), spread=NOISE.spread
        )
    targets, moments = seen.targets, None
    if slow is not None:
        whole = noise_prior(seen.errors).sd ** 2 - prior.sd**2
        unknown = np.where(np.isfinite(seen.log_cpu_per_request), 0.0, whole)
        targets, moments = targets - slow.mean, slow.covariance + np.diag(unknown)
    drifts = seen.scale == "log" and bool(np.isfinite(seen.at_s).any())
    drift_sd = math.sqrt(1 - OWN_SHARE) * prior.sd if drifts else 0.0
    if drifts:
        prior = dataclasses.replace(prior, sd=math.sqrt(OWN_SHARE) * prior.sd)
    found = gaussian_process.fit(
        seen.vectors,
        targets,
        noise=prior,
        weights=weights(seen.errors, left=left) if seen.scale == "log" else None,
        prior_mean=prior_mean,
        like=learned,
        variance=variance,
        drift=moments,
        at_s=seen.at_s,
        nodes=seen.several,
        drift_sd=drift_sd,
        node_sd=NODE_SD if drifts and seen.several is not None else 0.0,
        rough_sd=ROUGH_SD if seen.scale == "log" else 0.0,
    )
    return dataclasses.replace(found.downweight_outliers(TAIL_DEGREES), slowdown=slow)


def noise_prior(errors: Array, *, left: float = 1.0) -> NoisePrior:
    """Return the noise prior, given standard errors within evaluations (NaN if unknown).

    Evaluations with noisy blocks differ more; `left` is the unexplained share of that difference.
    """
    known = errors[np.isfinite(errors)]
    if not len(known):
        return dataclasses.replace(
            NOISE, sd=_without(NOISE.sd / EVALUATION_OVER_ERROR, NOISE.sd, left)
        )
    error = float(np.median(known))
    sd = min(max(EVALUATION_OVER_ERROR * error, MIN_NOISE), MAX_NOISE)
    return NoisePrior(sd=_without(error, sd, left), spread=0.5)


def _without(error: float, sd: float, left: float) -> float:
    return math.sqrt(error**2 + left**2 * max(sd**2 - error**2, 0.0))


def weights(errors: Array, *, left: float = 1.0) -> Array:
    """Return each target's noise variance as a share of the common one; see `noise_prior`."""
    known = np.isfinite(errors)
    if not known.any():
        return np.ones(len(errors))
    common = float(np.mean(errors[known] ** 2))
    own = np.where(known, errors, math.sqrt(common)) ** 2
    shrunken = (ERROR_DEGREES * own + PRIOR_DEGREES * common) / (ERROR_DEGREES + PRIOR_DEGREES)
    between = (left * NOISE.sd) ** 2
    return np.asarray((between + shrunken) / (between + common))
