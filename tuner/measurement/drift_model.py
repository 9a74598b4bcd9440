"""Drift model: how machine speed, evaluations and blocks contribute to the noise.

On the log scale, block mean = configuration + machine speed + evaluation + block. The speed is the
sum of two stationary Ornstein-Uhlenbeck processes, over seconds and minutes; the rest is white
noise. Parameters maximise the restricted likelihood with configurations as fixed effects (Patterson
and Thompson, Biometrika 58:545, 1971), computed by a Kalman filter with one extra column per
configuration (de Jong, Annals of Statistics 19:1073, 1991).

Drift that is faster than the time between evaluations counts as spread between them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

Array = NDArray[np.float64]

QUICK_S, SLOW_S = (0.5, 20.0), (20.0, 600.0)
SD = (1e-4, 1.0)
STARTS = ((0.05, 5.0, 0.05, 100.0, 0.02, 0.05), (0.02, 2.0, 0.02, 60.0, 0.05, 0.03))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Blocks:
    """Means of equally long blocks, in order of time."""

    at_s: Array  # (n,) middles, ascending, from any origin
    logs: Array  # (n,) logarithms of the means
    evaluation: NDArray[np.int64]  # (n,) number of the evaluation, whose blocks are consecutive
    configuration: NDArray[np.int64]  # (n,) number of the configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriftProcess:
    """One of the two processes that make up machine speed."""

    sd: float
    forgets_s: float
    """Time after which the correlation has fallen to 1/e."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DriftModel:
    """How each source contributes to the variance of one configuration's block means."""

    quick: DriftProcess
    slow: DriftProcess
    evaluation_sd: float
    block_sd: float
    """Sd between blocks of the length used to fit."""

    @property
    def variance(self) -> float:
        """Variance of one block mean from all sources."""
        return self.quick.sd**2 + self.slow.sd**2 + self.evaluation_sd**2 + self.block_sd**2

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the variance due to time, evaluations and blocks."""
        parts = {
            "time": self.quick.sd**2 + self.slow.sd**2,
            "launch": self.evaluation_sd**2,
            "block": self.block_sd**2,
        }
        return {name: part / self.variance for name, part in parts.items()}

    def covariance(self, lag_s: Array) -> Array:
        """Return the covariance (...) of machine speed at these lags."""
        parts = (
            part.sd**2 * np.exp(-np.abs(lag_s) / part.forgets_s) for part in (self.quick, self.slow)
        )
        return np.asarray(sum(parts))


def fit(blocks: Blocks) -> DriftModel | None:
    """Fit the drift model, or return None if there are too few blocks."""
    columns = _columns(blocks)
    evaluations = len(np.unique(blocks.evaluation))
    if evaluations < columns.shape[1] + 1 or len(blocks.logs) < evaluations + 2:
        return None
    ranges = (SD, QUICK_S, SD, SLOW_S, SD, SD)
    bounds = [(math.log(low), math.log(high)) for low, high in ranges]
    steps = _steps(blocks)

    def minus(parameters: Array) -> float:
        return -_likelihood(_drift_model(parameters), steps, columns)

    tried = [
        optimize.minimize(
            minus, np.log(start), method="L-BFGS-B", bounds=bounds, options={"maxiter": 60}
        )
        for start in STARTS
    ]
    return _drift_model(min(tried, key=lambda one: float(one.fun)).x)


def _drift_model(parameters: Array) -> DriftModel:
    quick, quick_s, slow, slow_s, launch, block = np.exp(parameters).tolist()
    return DriftModel(
        quick=DriftProcess(sd=quick, forgets_s=quick_s),
        slow=DriftProcess(sd=slow, forgets_s=slow_s),
        evaluation_sd=launch,
        block_sd=block,
    )


def _columns(blocks: Blocks) -> Array:
    _, numbered = np.unique(blocks.configuration, return_inverse=True)
    effects = np.eye(int(numbered.max()) + 1)[numbered]
    return np.column_stack([blocks.logs - blocks.logs.mean(), effects])


def _steps(blocks: Blocks) -> Sequence[tuple[float, bool]]:
    since_s = np.diff(blocks.at_s, prepend=blocks.at_s[0])
    is_other = np.diff(blocks.evaluation, prepend=blocks.evaluation[0]) != 0
    return list(zip(since_s.tolist(), is_other.tolist(), strict=True))


def _likelihood(course: DriftModel, steps: Sequence[tuple[float, bool]], columns: Array) -> float:
    innovations, variances = _filter(course, steps, columns)
    scaled = innovations / np.sqrt(variances)[:, None]
    values, effects = scaled[:, 0], scaled[:, 1:]
    known, _, rank, _ = np.linalg.lstsq(effects, values, rcond=None)
    left = values - effects @ known
    _, information = np.linalg.slogdet(effects.T @ effects)
    if rank < effects.shape[1]:
        return -math.inf
    return -0.5 * float(np.log(variances).sum() + left @ left + information)


def _filter(
    course: DriftModel, steps: Sequence[tuple[float, bool]], columns: Array
) -> tuple[Array, Array]:
    kept, shares, variances = _gains(course, steps)
    state = np.zeros((3, columns.shape[1]))  # quick, slow and evaluation, per column
    innovations = np.empty_like(columns)
    for keep, share, row, away in zip(kept, shares, columns, innovations, strict=True):
        state *= keep
        np.subtract(row, state[0] + state[1] + state[2], out=away)
        state += share * away
    return innovations, variances


def _gains(course: DriftModel, steps: Sequence[tuple[float, bool]]) -> tuple[Array, Array, Array]:
    """Return what of the state remains (n, 3, 1), the gains (n, 3, 1) and the variances (n,).

    They do not depend on the data, and plain numbers are faster here than small arrays.
    """
    quick, slow = course.quick.sd**2, course.slow.sd**2
    launch, block = course.evaluation_sd**2, course.block_sd**2
    # Covariances of the state (quick, slow, evaluation).
    qq, ss, ll, qs, ql, sl = quick, slow, launch, 0.0, 0.0, 0.0
    keeps, shares, variances = [], [], []
    for since_s, is_other in steps:
        kept, kept_slow = (
            math.exp(-since_s / course.quick.forgets_s),
            math.exp(-since_s / course.slow.forgets_s),
        )
        qq = kept * kept * (qq - quick) + quick
        ss = kept_slow * kept_slow * (ss - slow) + slow
        qs *= kept * kept_slow
        if is_other:
            ll, ql, sl = launch, 0.0, 0.0
        else:
            ql *= kept
            sl *= kept_slow
        keeps.append((kept, kept_slow, 0.0 if is_other else 1.0))
        gain_q, gain_s, gain_l = qq + qs + ql, qs + ss + sl, ql + sl + ll
        variance = gain_q + gain_s + gain_l + block
        share_q, share_s, share_l = gain_q / variance, gain_s / variance, gain_l / variance
        shares.append((share_q, share_s, share_l))
        variances.append(variance)
        qq -= share_q * gain_q
        ss -= share_s * gain_s
        ll -= share_l * gain_l
        qs -= share_q * gain_s
        ql -= share_q * gain_l
        sl -= share_s * gain_l
    return np.array(keeps)[:, :, None], np.array(shares)[:, :, None], np.array(variances)


def draw(
    course: DriftModel,
    at_s: Array,
    evaluation: NDArray[np.int64],
    rng: np.random.Generator,
) -> Array:
    """Draw logs (n,) of block means, relative to their configurations' means.

    `at_s` (n,) are the blocks' middles, ascending; `evaluation` (n,) numbers their evaluations.
    """
    found = course.block_sd * rng.normal(size=len(at_s))
    _, numbered = np.unique(evaluation, return_inverse=True)
    found += course.evaluation_sd * rng.normal(size=int(numbered.max()) + 1)[numbered]
    for part in (course.quick, course.slow):
        found += _process(part, at_s, rng)
    return np.asarray(found)


def _process(part: DriftProcess, at_s: Array, rng: np.random.Generator) -> Array:
    kept = np.exp(-np.diff(at_s, prepend=at_s[0]) / part.forgets_s).tolist()
    shocks = rng.normal(size=len(at_s)).tolist()
    value, values = part.sd * shocks[0], [0.0] * len(shocks)
    for place, (share, shock) in enumerate(zip(kept, shocks, strict=True)):
        if place:
            value = share * value + part.sd * math.sqrt(max(0.0, 1 - share * share)) * shock
        values[place] = value
    return np.array(values)
