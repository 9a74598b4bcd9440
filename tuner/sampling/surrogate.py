"""The model of a study: a Gaussian process over its history, with what launches are known to differ by.

In: launches, and optionally a guess for each of them. Out: a fitted `Process` of the targets. Pure.

A target's noise has three parts: what a slow moment adds, as far as CPU times tell of it (`slowness`);
what launches of one configuration differ by besides, which the process learns and a prior bounds; and
what its own launch could tell (`History.errors`). The latter come from a few blocks each and are hardly
known one by one, so each is drawn towards their common value.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import threading
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tuner.sampling import gaussian_process, slowness
from tuner.sampling.gaussian_process import Hyperparameters, NoisePrior, Process
from tuner.sampling.history import History

Array = NDArray[np.float64]

NOISE = NoisePrior(sd=0.08, spread=0.7)
"""Launches of one configuration differ by 2 % on a quiet machine, and by 15 % on a small and shared one."""
LAUNCH_OVER_ERROR = 2.5
"""Launches' standard deviation over the standard error of one launch's four blocks, which is half of theirs."""
LEAST_NOISE, MOST_NOISE = 0.02, 0.2
LEFT_VARIANCE = 0.1
"""Of the targets' variance, what a prediction leaves to be explained: a third of their spread."""
ERROR_DEGREES = 3.0
"""Of a launch's own standard error: four blocks."""
DRIFT_SD = 0.03
"""A small machine is a few per cent faster at one time than at another."""
DRIFT_S = 120.0
"""Within two minutes."""
TAIL_DEGREES = 4.0
"""Of the Student's t that launches' noise looks like: now and then one meets a bad moment of the machine."""
ROUGH_SD = 0.12
"""Steps and kinks of ten per cent, which no smooth function has: without them a process that has found a
smooth surface is sure of cells that it has never seen."""
KEPT = 16
"""Fits that are kept: what is recommended after a trial and what is proposed next rest on the same launches,
and each limit has fits of its own."""
PRIOR_DEGREES = 9.0
"""Weight of what all launches say of it."""

_fitted: dict[bytes, Process] = {}
_lock = threading.Lock()
"""Of `_fitted`: studies in threads share it. Nobody holds it while fitting."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Seen:
    """Launches to learn from, of one study or several."""

    vectors: Array  # (n, d)
    targets: Array  # (n,) minimised
    errors: Array  # (n,) standard error of each within its launch; NaN where not known
    at_s: Array  # (n,) when each was launched; NaN where not known
    efforts: Array  # (n,) logarithm of the CPU time of a request of each; NaN where not known
    scale: Literal["log", "raw"]
    knobs: int | None = None
    """Entries of a vector that are knobs, and come first; the others follow from them. None: all."""

    @classmethod
    def of(cls, history: History) -> Seen:
        """Those of one study."""
        return cls(
            vectors=history.vectors,
            targets=history.targets,
            errors=history.errors,
            at_s=history.at_s,
            efforts=history.efforts,
            scale=history.scale,
        )


def fitted(seen: Seen, *, guess: Array | None = None, start: Sequence[float] = ()) -> Process:
    """The process of at least one launch.

    Args:
        seen: launches.
        guess: (n,) of the targets, one for each launch.
        start: hyper-parameters of an earlier fit, as numbers; others than these axes' are passed over.
    """
    key = _key(seen, guess, start)
    with _lock:
        found = _fitted.get(key)
    if found is None:
        found = _fit(seen, guess, start)
        with _lock:
            _fitted[key] = found
            while len(_fitted) > KEPT:
                del _fitted[next(iter(_fitted))]
    return found


def _fit(seen: Seen, guess: Array | None, start: Sequence[float]) -> Process:
    prior = noise_prior(seen.errors)
    if seen.scale == "raw":
        # No unit to measure noise in: the same share of the spread that 4 % is of a factor of e.
        prior = NoisePrior(
            sd=NOISE.sd * max(float(np.std(seen.targets)), 1e-9), spread=NOISE.spread
        )
    targets, moments, slow = seen.targets, None, None
    if seen.scale == "log":
        moments = drift(seen.at_s)
        slow = slowness.fit(seen.vectors[:, : seen.knobs], seen.efforts, moments)
        if slow is not None:
            prior, was = noise_prior(seen.errors, left=slowness.LEFT), prior
            unknown = np.where(np.isfinite(seen.efforts), 0.0, was.sd**2 - prior.sd**2)
            targets, moments = targets - slow.mean, moments + slow.covariance + np.diag(unknown)
    left = 1.0 if slow is None else slowness.LEFT
    fits = len(start) == seen.vectors.shape[1] + 2
    found = gaussian_process.fit(
        seen.vectors,
        targets,
        noise=prior,
        weights=weights(seen.errors, left=left) if seen.scale == "log" else None,
        guess=guess,
        start=Hyperparameters.of(tuple(start)) if fits else None,
        variance=1.0 if guess is None else LEFT_VARIANCE,
        drift=moments,
        rough_sd=ROUGH_SD if seen.scale == "log" else 0.0,
    )
    found = found.tempered(TAIL_DEGREES)
    if slow is None:
        return found
    return dataclasses.replace(found, moment_sd=slow.sd, left_sd=slow.left_sd)


def drift(at_s: Array) -> Array:
    """Prior covariance (n, n) of what the moments of launches add to them, on the log scale.

    A Matern-5/2 in time: launches of one minute share what the machine was like. One whose moment is
    not known shares nothing.

    Args:
        at_s: (n,) seconds; NaN where not known.
    """
    away = math.sqrt(5.0) * np.abs(at_s[:, None] - at_s[None, :]) / DRIFT_S
    found = DRIFT_SD**2 * (1 + away + away**2 / 3) * np.exp(-away)
    return np.where(np.isfinite(found), found, 0.0)


def noise_prior(errors: Array, *, left: float = 1.0) -> NoisePrior:
    """What is known of launches' noise before they are compared with one another.

    Where the blocks of a launch differ much, launches do as well: on the machines that were measured, by
    as much as one block or somewhat more.

    Args:
        errors: (n,) standard errors within the launches, NaN where not known.
        left: of what launches differ by, beside what their blocks say, the share that is not known otherwise.
    """
    known = errors[np.isfinite(errors)]
    if not len(known):
        return dataclasses.replace(NOISE, sd=_without(NOISE.sd / LAUNCH_OVER_ERROR, NOISE.sd, left))
    error = float(np.median(known))
    sd = min(max(LAUNCH_OVER_ERROR * error, LEAST_NOISE), MOST_NOISE)
    return NoisePrior(sd=_without(error, sd, left), spread=0.5)


def _without(error: float, sd: float, left: float) -> float:
    """Spread of launches when all but a share of what is no error of theirs is known."""
    return math.sqrt(error**2 + left**2 * max(sd**2 - error**2, 0.0))


def _key(seen: Seen, guess: Array | None, start: Sequence[float]) -> bytes:
    """What a fit depends on."""
    made = hashlib.blake2b(digest_size=16)
    first = np.array(start, dtype=float)
    parts = (seen.vectors, seen.targets, seen.errors, seen.at_s, seen.efforts, first, guess)
    for part in parts:
        made.update(b"-" if part is None else repr(part.shape).encode() + part.tobytes())
    made.update(f"{seen.scale} {seen.knobs}".encode())
    return made.digest()


def weights(errors: Array, *, left: float = 1.0) -> Array:
    """Variance of each target's noise as a share of the common one.

    Args:
        errors: (n,) standard errors within the launches, NaN where not known.
        left: as in `noise_prior`.
    """
    known = np.isfinite(errors)
    if not known.any():
        return np.ones(len(errors))
    common = float(np.mean(errors[known] ** 2))
    own = np.where(known, errors, math.sqrt(common)) ** 2
    shrunken = (ERROR_DEGREES * own + PRIOR_DEGREES * common) / (ERROR_DEGREES + PRIOR_DEGREES)
    launches = (left * NOISE.sd) ** 2
    return np.asarray((launches + shrunken) / (launches + common))
