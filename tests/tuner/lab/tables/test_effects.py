"""Configurations apart from the machine: nearer than plain means where it moves, with honest errors."""

from __future__ import annotations

import numpy as np
import pytest

from tuner.lab.tables import effects
from tuner.sampling.arrays import Array


def recording(seed: int, *, cells: int = 40, passes: int = 4) -> tuple[Array, Array, Array, Array]:
    """Numbers, times, logarithms and true effects of a grid, on a machine of two speeds and sessions."""
    rng = np.random.default_rng(seed)
    numbers = np.concatenate([rng.permutation(cells) for _ in range(passes)])
    at_s = 2.6 * np.arange(len(numbers)) + 5_000.0 * (np.arange(len(numbers)) >= len(numbers) // 2)
    true = rng.normal(0, 0.5, cells)
    away = np.abs(at_s[:, None] - at_s)
    speed = 0.45 * np.exp(-away / 8) + 0.25 * np.exp(-away / 120)
    moved = 0.1 * np.linalg.cholesky(speed + 0.3 * np.eye(len(at_s))) @ rng.normal(size=len(at_s))
    level = np.where(at_s < 4_000, 0.0, 0.2)
    return numbers, at_s, true[numbers] + moved + level, true


def errors(found: Array, true: Array) -> Array:
    return np.asarray(found - true - np.mean(found - true))


def test_effects_are_nearer_to_the_truth_than_means() -> None:
    ours, means = [], []
    for seed in range(10):
        numbers, at_s, logs, true = recording(seed)
        ours.append(errors(effects.fit(numbers, at_s, logs).mean, true))
        means.append(errors(np.bincount(numbers, weights=logs) / np.bincount(numbers), true))
    assert np.std(ours) < 0.92 * np.std(means)


def test_standard_errors_are_honest() -> None:
    scaled = []
    for seed in range(20):
        numbers, at_s, logs, true = recording(seed)
        found = effects.fit(numbers, at_s, logs)
        scaled.extend(errors(found.mean, true) / found.se)
    assert np.std(scaled) == pytest.approx(1.0, abs=0.25)


def test_what_is_left_has_the_spread_of_the_machine() -> None:
    spreads = []
    for seed in range(20):
        numbers, at_s, logs, _ = recording(seed)
        spreads.append(np.std(effects.fit(numbers, at_s, logs).machine))
    assert np.mean(spreads) == pytest.approx(0.1, rel=0.12)


def test_one_disturbed_value_moves_its_configuration_little() -> None:
    numbers, at_s, logs, _ = recording(0, passes=5)
    before = effects.fit(numbers, at_s, logs)
    place = int(np.flatnonzero(numbers == 3)[0])
    logs[place] += 1.5
    after = effects.fit(numbers, at_s, logs)
    assert abs(after.mean[3] - before.mean[3]) < 0.5 * 1.5 / 5


def test_sessions_do_not_favour_what_they_hold() -> None:
    """The second session is slower by 20 %, and repeats half of the configurations."""
    numbers, at_s, logs, true = recording(1, passes=2)
    more = np.arange(20)
    later = at_s[-1] + 10_000 + 2.6 * np.arange(20)
    logs = np.concatenate([logs, true[more] + 0.2])
    found = effects.fit(np.concatenate([numbers, more]), np.concatenate([at_s, later]), logs)
    away = errors(found.mean, true)
    assert abs(np.mean(away[:20]) - np.mean(away[20:])) < 0.06
