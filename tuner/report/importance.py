"""Main effects: how much of the objective's variance each knob explains on its own.

This is a one-way analysis of variance of the log objective over the knob's levels, with small levels
merged into neighbours. The share is epsilon squared (Kelley 1935),

    share = 1 - (SSW / (n - k)) / (SST / (n - 1)),     n trials, k levels,

which is 0 on average without effect. It has a 95 % bootstrap interval, shifted by its own bias
(about (k - 1) / n), and a chance level: the 95 % quantile over shuffles.

Guided trials mix effects, so a large initial design is analysed alone.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from numpy.typing import NDArray

from tuner.metrics import objective as objectives
from tuner.report.study import study_view
from tuner.values.interval import Interval
from tuner.values.study_record import KnobInfo, StudyRecord
from tuner.values.trial import Trial

MIN_TRIALS = 12
DESIGN_TRIALS = 20
LEVEL_TRIALS = 3
MAX_LEVELS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MainEffect:
    """A knob's share of the variance of the log objective, from 0 to 1."""

    knob: KnobInfo
    share: float
    interval: Interval
    chance: float
    """95 % quantile of the share over shuffles."""
    levels: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """Main effects of the knobs, largest first."""

    shares: tuple[MainEffect, ...]
    trials: int
    basis: str


def basis(study: StudyRecord) -> tuple[tuple[Trial, ...], str]:
    """Return the trials to analyse, and a description of them."""
    usable = study_view.successful_trials(study.trials)
    design = tuple(trial for trial in usable if trial.origin in {"default", "initial"})
    if study.sampler == "random":
        return usable, "all trials (drawn at random)"
    if len(design) >= DESIGN_TRIALS:
        words = "the initial design (guided trials favour some values, which mixes the knobs)"
        return design, words
    words = "all trials; guided ones favour some values together, so the knobs' effects mix"
    return usable, f"{words}: read as a hint"


def main_effects(
    study: StudyRecord, rng: np.random.Generator, *, resamples: int = 400
) -> Importance | None:
    """Return the knobs' main effects, or None if there are none to report.

    There are none if trials are few, objectives are all equal or not positive, or no knob varied.
    """
    trials, words = basis(study)
    objective = objectives.find_objective(study.objective)
    values = np.array([value for trial in trials if (value := objective.of(trial)) is not None])
    if len(values) < MIN_TRIALS or (values <= 0).any() or np.ptp(values) == 0:
        return None
    logs = np.log(values)
    shares = []
    for knob in study_view.varied_knobs(study):
        groups = levels(knob, trials)
        if groups.max() > 0:
            shares.append(_main_effect(knob, groups, logs, rng, resamples))
    shares.sort(key=lambda share: -share.share)
    return Importance(shares=tuple(shares), trials=len(trials), basis=words) if shares else None


def levels(knob: KnobInfo, trials: tuple[Trial, ...]) -> NDArray[np.intp]:
    """Return the index (n,) of each trial's level of a knob, after merging levels with few trials."""
    tried = [trial.configuration.get(knob.name, knob.default) for trial in trials]
    order = study_view.ordered_values(knob, tried)
    counts = [tried.count(value) for value in order]
    wanted = max(LEVEL_TRIALS, -(-len(trials) // (2 * MAX_LEVELS)))
    level_of, level, held = {}, 0, 0
    remaining = len(trials)
    for value, count in zip(order, counts, strict=True):
        level_of[value] = level
        held += count
        remaining -= count
        if held >= wanted and remaining >= wanted and level < MAX_LEVELS - 1:
            level, held = level + 1, 0
    return np.array([level_of[value] for value in tried], dtype=np.intp)


def epsilon_squared(groups: NDArray[np.intp], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of the variance of `logs` (..., n) explained by `groups` (..., n).

    The share is bias-corrected, so it can be negative; it is 0 if undefined.
    """
    count = logs.shape[-1]
    centred = logs - logs.mean(axis=-1, keepdims=True)
    total = (centred**2).sum(axis=-1)
    is_member = groups[..., None] == np.arange(groups.max() + 1)  # (..., n, k)
    sizes = is_member.sum(axis=-2)
    sums = np.where(is_member, centred[..., None], 0.0).sum(axis=-2)
    between = (sums**2 / np.maximum(sizes, 1)).sum(axis=-1)
    k = (sizes > 0).sum(axis=-1)
    is_known = (total > 1e-12) & (k > 1) & (k < count)
    within = np.maximum(0.0, total - between) / np.maximum(count - k, 1)
    share = 1 - within * (count - 1) / np.where(is_known, total, 1.0)
    return np.where(is_known, share, 0.0)


def _main_effect(
    knob: KnobInfo,
    groups: NDArray[np.intp],
    logs: NDArray[np.float64],
    rng: np.random.Generator,
    resamples: int,
) -> MainEffect:
    share = float(epsilon_squared(groups, logs))
    picks = rng.integers(len(logs), size=(resamples, len(logs)))
    drawn = epsilon_squared(groups[picks], logs[picks])
    low, high = np.quantile(drawn, (0.025, 0.975)) - (drawn.mean() - share)
    orders = rng.permuted(np.tile(np.arange(len(logs)), (resamples, 1)), axis=1)
    shuffled = epsilon_squared(np.broadcast_to(groups, orders.shape), logs[orders])
    low, high, shown, chance = np.clip((low, high, share, np.quantile(shuffled, 0.95)), 0, 1)
    return MainEffect(
        knob=knob,
        share=float(shown),
        interval=Interval(low=float(low), high=float(high)),
        chance=float(chance),
        levels=int(groups.max()) + 1,
    )
