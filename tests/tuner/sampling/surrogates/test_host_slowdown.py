"""What the CPU time of requests tells of the moments of launches."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.sampling.history import TrainingData
from tuner.sampling.surrogates import host_slowdown, surrogate


@dataclasses.dataclass(frozen=True)
class World:
    """Launches whose moments are known."""

    vectors: np.ndarray
    targets: np.ndarray
    truth: np.ndarray
    log_cpu_per_request: np.ndarray
    moments: np.ndarray


def world(seed: int, *, launches: int = 30, share: float = host_slowdown.SHARE) -> World:
    """A latency of two knobs, a CPU time that is a sum over knobs, and moments that both see."""
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 4, (launches, 2)) / 3
    truth = 0.6 * np.abs(vectors[:, 0] - 0.4) - 0.3 * vectors[:, 1]
    moments = rng.normal(0, 0.1, launches)
    return World(
        vectors=vectors,
        targets=truth + share * moments + rng.normal(0, 0.03, launches),
        truth=truth,
        log_cpu_per_request=-8 + 0.2 * vectors[:, 0] - 0.1 * vectors[:, 1] + moments,
        moments=moments,
    )


def seen(at: World, efforts: np.ndarray) -> TrainingData:
    unknown = np.full(len(at.targets), np.nan)
    return TrainingData(
        vectors=at.vectors,
        targets=at.targets,
        errors=unknown,
        at_s=unknown,
        log_cpu_per_request=efforts,
        scale="log",
        knobs=2,
    )


def error_of(at: World, *, knows: bool) -> float:
    """Of the fitted process at its launches, beside a common level."""
    efforts = at.log_cpu_per_request if knows else np.full(len(at.log_cpu_per_request), np.nan)
    mean, _ = surrogate.fit(seen(at, efforts)).predict(at.vectors)
    return float(np.std(mean - at.truth))


def test_moments_are_found() -> None:
    """Those of thirty launches, up to half of their spread."""
    at = world(0)
    found = host_slowdown.fit(at.vectors, at.log_cpu_per_request)
    assert found is not None
    wanted = host_slowdown.SHARE * (at.moments - at.moments.mean())
    assert np.corrcoef(found.mean, wanted)[0, 1] > 0.9
    assert np.std(found.mean - wanted) < np.std(wanted) / 2


@given(st.integers(0, 10_000), st.integers(1, 25))
@settings(max_examples=25, deadline=None)
def test_what_is_left_is_a_covariance(seed: int, launches: int) -> None:
    """Symmetric, with no negative variance, and zero where nothing is known."""
    at = world(seed, launches=launches)
    efforts = at.log_cpu_per_request.copy()
    efforts[::3] = np.nan
    found = host_slowdown.fit(at.vectors, efforts)
    if np.isfinite(efforts).sum() < host_slowdown.MIN_KNOWN:
        assert found is None
        return
    assert found is not None
    assert np.allclose(found.covariance, found.covariance.T)
    assert np.linalg.eigvalsh(found.covariance).min() > -1e-9
    assert not found.mean[::3].any()
    assert not found.covariance[::3].any()


@given(st.integers(0, 10_000), st.floats(-5, 5))
@settings(max_examples=15, deadline=None)
def test_a_faster_machine_changes_nothing(seed: int, level: float) -> None:
    """Only differences between launches tell of moments."""
    at = world(seed)
    here, there = (
        host_slowdown.fit(at.vectors, at.log_cpu_per_request),
        host_slowdown.fit(at.vectors, at.log_cpu_per_request + level),
    )
    assert here is not None
    assert there is not None
    assert there.mean == pytest.approx(here.mean, abs=1e-9)


def test_predictions_are_nearer_with_cpu_times() -> None:
    """Over twenty worlds, by a tenth and more."""
    errors: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(20):
        at = world(seed)
        for knows, found in errors.items():
            found.append(error_of(at, knows=knows))
    assert np.mean(errors[True]) < 0.9 * np.mean(errors[False])


def test_cpu_times_that_tell_nothing_do_little_harm() -> None:
    """Where a latency does not see the moments of the CPU times at all."""
    errors: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(20):
        at = world(seed, share=0.0)
        for knows, found in errors.items():
            found.append(error_of(at, knows=knows))
    assert np.mean(errors[True]) < np.mean(errors[False]) + 0.01


def test_what_a_launch_differs_by_is_told_as_it_is_measured() -> None:
    """Races and verdicts compare latencies that hold their moments; only the next launch tells more."""
    at = world(3, launches=40)
    process = surrogate.fit(seen(at, at.log_cpu_per_request))
    assert process.noise_sd > 0.07
    assert process.told_sd < 0.8 * process.noise_sd
    blind = surrogate.fit(seen(at, np.full(len(at.log_cpu_per_request), np.nan)))
    assert blind.told_sd == blind.noise_sd


def test_launches_without_a_cpu_time_keep_all_of_their_noise() -> None:
    """Half of them know theirs: the others count for less, and pull the prediction less."""
    at = world(5, launches=40)
    half = at.log_cpu_per_request.copy()
    half[20:] = np.nan
    process = surrogate.fit(seen(at, half))
    moved = at.targets.copy()
    pulls = []
    for place in (0, 39):
        shifted = moved.copy()
        shifted[place] += 0.1
        other = surrogate.fit(seen(dataclasses.replace(at, targets=shifted), half))
        before, after = (one.predict(at.vectors[[place]])[0][0] for one in (process, other))
        pulls.append(after - before)
    assert pulls[1] < pulls[0]
