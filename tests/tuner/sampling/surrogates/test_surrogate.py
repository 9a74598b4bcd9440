"""The model of a study: fits that are kept are shared by studies in threads."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.sampling.history import TrainingData
from tuner.sampling.surrogates import surrogate
from tuner.sampling.surrogates.surrogate import GROWTH, MANY, fit, learned_from

TraceFunction = Callable[[FrameType, str, Any], Any]


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that let others go on at each line that keeps fits."""

    def at_each_line(_frame: FrameType, _event: str, _argument: object) -> TraceFunction:
        time.sleep(1e-4)
        return at_each_line

    def at_each_call(frame: FrameType, _event: str, _argument: object) -> TraceFunction | None:
        return at_each_line if frame.f_code is surrogate._cached.__code__ else None

    before = threading.gettrace()
    threading.settrace(at_each_call)
    yield
    threading.settrace(before)  # type: ignore[arg-type] # it takes None as well


def seen(shift: float) -> TrainingData:
    """Three launches of one study."""
    unknown = np.full(3, np.nan)
    return TrainingData(
        vectors=np.array([[0.0], [0.5], [1.0]]),
        targets=np.array([shift, 0.0, 1.0]),
        errors=unknown,
        at_s=unknown,
        log_cpu_per_request=unknown,
        scale="log",
    )


@pytest.mark.usefixtures("eager_threads")
def test_studies_in_threads_share_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gets the fit of its own launches, however soon others push it out, and no more than so many stay."""
    threads, rounds = 4, 8
    monkeypatch.setattr(surrogate, "RETAINED", 2)

    def study(number: int) -> list[float]:
        return [
            float(fit(seen(number + 0.01 * k)).predict(np.array([[0.0]]))[0][0])
            for k in range(rounds)
        ]

    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        together = list(pool.map(study, range(threads)))
    assert len(surrogate._fitted) <= 2
    assert together == [study(number) for number in range(threads)]


@given(st.integers(1, 1000))
def test_most_evaluations_teach_the_hyperparameters(count: int) -> None:
    first = learned_from(count)
    assert first <= count
    assert count <= MANY or count <= GROWTH * first + 1
    assert learned_from(first) == first


def test_a_fit_is_the_same_whatever_was_fitted_before() -> None:
    """So that a study that is resumed, or read later, ends as it would have."""
    rng = np.random.default_rng(0)
    vectors, unknown = rng.random((24, 2)), np.full(24, np.nan)
    whole = TrainingData(
        vectors=vectors,
        targets=np.sin(3 * vectors[:, 0]) + 0.05 * rng.normal(size=24),
        errors=unknown,
        at_s=np.cumsum(rng.random(24)),
        log_cpu_per_request=rng.normal(size=24),
        scale="log",
    )
    assert learned_from(24) < 24
    for count in range(1, 25):
        found = fit(whole.at(np.arange(count))).predict(vectors)
    surrogate._fitted.clear()
    assert np.array_equal(fit(whole).predict(vectors), found)
