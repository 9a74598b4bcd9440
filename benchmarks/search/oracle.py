"""Oracle: the best that a search could do that knows the ten best configurations and the law of the noise.

In: a prepared table. Out: runs as of a replay. The oracle evaluates one of its ten arms at a time on the
machine of the replay. It knows which arms are the best ten, how much they differ, and the variances of the
noise; not their order, nor the level. Its posterior is a Kalman filter over the arms and two
Ornstein-Uhlenbeck parts of the machine's speed; it chooses by knowledge gradient (Frazier, Powell and
Dayanik, 2008) and recommends the arm with the lowest mean.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

import numpy as np
from scipy import linalg, optimize
from scipy.special import ndtri

from tuner.lab import replay_search
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.tables.scoring import ReplayRun
from tuner.lab.tables.table_evaluator import Perturbations, TableEvaluator
from tuner.measurement import drift_model
from tuner.metrics import objective as objectives
from tuner.sampling.arrays import Array
from tuner.values.configuration import Configuration

ARMS = 10
MIN_SPREAD, WIDER = 0.05, 1.5
"""Prior spread of the arms: at least the first, otherwise so many times the true one."""
LEVEL_SD = 0.5
NODES = ndtri((np.arange(16) + 0.5) / 16)
LEAST_GAIN = 1e-7
"""Expected gain below which the next arm is a random one."""
SERIES, LENGTH = 6, 100
"""Replays from which the noise is learnt, and evaluations of each."""
APART = 2_000_003
"""Added to their seeds."""
SD, FORGETS_S = (1e-3, 1.0), (drift_model.QUICK_S[0], drift_model.SLOW_S[1])
START = (0.05, 5.0, 0.05, 100.0, 0.05)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoiseLaw:
    """How logarithms of the objective differ from the truth: standard deviations and time constants."""

    quick: float
    quick_s: float
    slow: float
    slow_s: float
    own: float
    """Of an evaluation, independent of all others."""


def noise_law(ground: PreparedTable) -> NoiseLaw:
    """Fit the law, by maximum likelihood, to replays in which the arms take turns."""
    series = [_in_turns(ground, APART + number) for number in range(SERIES)]
    length = min(len(values) for _, values in series)
    at_s = np.array([times[:length] for times, _ in series])
    logs = np.array([values[:length] for _, values in series])
    lags_s = np.abs(at_s[:, :, None] - at_s[:, None, :])

    def minus_likelihood(parameters: Array) -> float:
        quick, quick_s, slow, slow_s, own = np.exp(parameters)
        covariance = quick**2 * np.exp(-lags_s / quick_s) + slow**2 * np.exp(-lags_s / slow_s)
        factor = np.linalg.cholesky(covariance + own**2 * np.eye(length))
        scaled = [
            linalg.solve_triangular(root, row, lower=True)
            for root, row in zip(factor, logs, strict=True)
        ]
        return float(
            np.log(np.diagonal(factor, axis1=1, axis2=2)).sum() + np.sum(np.square(scaled)) / 2
        )

    ranges = (SD, FORGETS_S, SD, FORGETS_S, SD)
    found = optimize.minimize(
        minus_likelihood,
        np.log(START),
        method="L-BFGS-B",
        bounds=[(math.log(low), math.log(high)) for low, high in ranges],
    )
    quick, quick_s, slow, slow_s, own = np.exp(found.x).tolist()
    return NoiseLaw(quick=quick, quick_s=quick_s, slow=slow, slow_s=slow_s, own=own)


def search(ground: PreparedTable, law: NoiseLaw, seed: int, *, max_s: float) -> ReplayRun:
    """Run the oracle with one seed until this time of the replay."""
    rng = np.random.default_rng(seed)
    evaluator = replay_search.make_evaluator(ground, Perturbations(), seed)
    places = rng.permutation(_best(ground))
    arms = [ground.truth.candidates[place] for place in places]
    belief, told_s = Belief.prior(ground.truth.log_mean[places], law), 0.0
    cells: list[Configuration] = []
    recommended: list[Configuration] = []
    seconds: list[float] = []
    while evaluator.seconds < max_s:
        arm = belief.later(ground.trial_s).choice(rng)
        at_s, log = _evaluate(ground, evaluator, arms[arm])
        if log is not None:
            belief, told_s = belief.later(at_s - told_s).update(arm, log), at_s
        cells.append(arms[arm])
        recommended.append(arms[belief.best])
        seconds.append(evaluator.seconds)
    return ReplayRun(
        seed=seed, cells=tuple(cells), recommended=tuple(recommended), seconds=tuple(seconds)
    )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Belief:
    """Posterior of the arms and of the quick and the slow part of the machine's speed."""

    law: NoiseLaw
    mean: Array  # (arms + 2,)
    covariance: Array  # (arms + 2, arms + 2)

    @classmethod
    def prior(cls, truth: Array, law: NoiseLaw) -> Self:
        """Return what the oracle knows at first of arms with this truth (arms,)."""
        arms = len(truth)
        sd = max(MIN_SPREAD, WIDER * float(np.std(truth)))
        covariance = np.diag([sd**2] * arms + [law.quick**2, law.slow**2])
        covariance[:arms, :arms] += LEVEL_SD**2
        return cls(law, np.append(np.full(arms, np.mean(truth)), [0.0, 0.0]), covariance)

    @property
    def best(self) -> int:
        """Arm with the lowest mean."""
        return int(np.argmin(self.mean[:-2]))

    def later(self, seconds: float) -> Self:
        """Return the belief after so much time."""
        law, keep = self.law, np.ones(len(self.mean))
        keep[-2:] = np.exp(-seconds / np.array([law.quick_s, law.slow_s]))
        covariance = self.covariance * np.outer(keep, keep)
        fresh = np.array([law.quick, law.slow]) ** 2 * (1 - keep[-2:] ** 2)
        covariance[[-2, -1], [-2, -1]] += fresh
        return dataclasses.replace(self, mean=self.mean * keep, covariance=covariance)

    def update(self, arm: int, log: float) -> Self:
        """Return the belief after an evaluation of an arm."""
        row = self._observations()[arm]
        pull = self.covariance @ row
        variance = row @ pull + self.law.own**2
        return dataclasses.replace(
            self,
            mean=self.mean + pull * ((log - row @ self.mean) / variance),
            covariance=self.covariance - np.outer(pull, pull) / variance,
        )

    def choice(self, rng: np.random.Generator) -> int:
        """Return the arm whose evaluation is expected to gain most."""
        rows = self._observations()
        pulls = self.covariance @ rows.T
        sds = np.sqrt(np.einsum("ij,ji->i", rows, pulls) + self.law.own**2)
        moved = pulls[:-2] / sds  # (arms, choices)
        means = self.mean[:-2]
        after = (means[:, None, None] + moved[:, :, None] * NODES).min(axis=0).mean(axis=1)
        gains = means.min() - after
        if gains.max() <= LEAST_GAIN:
            return int(rng.integers(len(means)))
        return int(np.argmax(gains))

    def _observations(self) -> Array:
        arms = len(self.mean) - 2
        return np.hstack([np.eye(arms), np.ones((arms, 2))])


def _best(ground: PreparedTable) -> Array:
    return np.argsort(ground.truth.log_mean, kind="stable")[:ARMS]


def _in_turns(ground: PreparedTable, seed: int) -> tuple[list[float], list[float]]:
    """Return when the best arms were evaluated in turn, and by how much they differed from the truth."""
    evaluator = replay_search.make_evaluator(ground, Perturbations(), seed)
    times_s, logs = [], []
    for place in np.resize(_best(ground), LENGTH):
        at_s, log = _evaluate(ground, evaluator, ground.truth.candidates[place])
        if log is not None:
            times_s.append(at_s)
            logs.append(log - float(ground.truth.log_mean[place]))
    return times_s, logs


def _evaluate(
    ground: PreparedTable, evaluator: TableEvaluator, cell: Configuration
) -> tuple[float, float | None]:
    """Return the middle of the measured time, and the logarithm of the objective, None if unknown."""
    measured = evaluator.evaluate(cell).measurement
    if measured is None:
        return evaluator.seconds, None
    value = objectives.find_objective(ground.objective).to_minimise(measured)
    at_s = evaluator.seconds - measured.seconds / 2
    return at_s, math.log(value) if math.isfinite(value) else None
