"""The search for the highest rate: it is bounded, and ends around the limit."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement.highest import CLOSE, Highest, is_kept
from tuner.settings import RATE_LOADS
from tuner.values import RequestRecords

factors = st.floats(math.log(1 / 50), math.log(50)).map(math.exp)


def searched(first_per_s: float, limit_per_s: float) -> tuple[Highest, list[float]]:
    """A search where every rate up to a limit keeps it, and the rates that were tried."""
    search, tried = Highest(first_per_s), []
    while (rate := search.next_per_s) is not None:
        tried.append(rate)
        search.tell(is_kept=rate <= limit_per_s)
    return search, tried


@given(first_per_s=st.floats(0.1, 1e5), factor=factors)
def test_the_limit_stays_between_what_kept_it_and_what_did_not(
    first_per_s: float, factor: float
) -> None:
    """In no more tries than it may have; a rate is never tried twice."""
    limit_per_s = first_per_s * factor
    search, tried = searched(first_per_s, limit_per_s)
    assert len(tried) == len(set(tried)) <= RATE_LOADS
    assert tried[0] == first_per_s
    if search.kept_per_s is not None:
        assert search.kept_per_s == max(rate for rate in tried if rate <= limit_per_s)
    if search.missed_per_s is not None:
        assert search.missed_per_s == min(rate for rate in tried if rate > limit_per_s)
    if len(tried) < RATE_LOADS:
        assert search.kept_per_s is not None
        assert search.missed_per_s is not None
        assert search.missed_per_s <= CLOSE * search.kept_per_s


@given(
    first_per_s=st.floats(0.1, 1e5),
    factor=st.floats(math.log(1 / 4), math.log(4)).map(math.exp),
)
def test_a_limit_within_four_times_the_first_rate_is_found_to_six_per_cent(
    first_per_s: float, factor: float
) -> None:
    """Eight tries are enough for it."""
    limit_per_s = first_per_s * factor
    search, _ = searched(first_per_s, limit_per_s)
    assert search.kept_per_s is not None
    assert limit_per_s / 1.06 <= search.kept_per_s <= limit_per_s


@given(first_per_s=st.floats(0.1, 1e5), factor=factors, hiccups=st.sets(st.integers(0, 7)))
def test_a_hiccup_is_forgiven_once(first_per_s: float, factor: float, hiccups: set[int]) -> None:
    """A rate that missed the limit unclearly is tried again at once; what missed it for good lies above it."""
    limit_per_s = first_per_s * factor
    search, tried = Highest(first_per_s), []
    while (rate := search.next_per_s) is not None:
        again = bool(tried) and tried[-1] == rate
        is_hiccup = len(tried) in hiccups and not again
        tried.append(rate)
        search.tell(is_kept=rate <= limit_per_s and not is_hiccup, is_clear=False)
    assert len(tried) <= RATE_LOADS
    assert all(tried.count(rate) <= 2 for rate in tried)
    if search.kept_per_s is not None:
        assert search.kept_per_s <= limit_per_s
    if search.missed_per_s is not None:
        assert search.missed_per_s > limit_per_s


@given(first_per_s=st.floats(0.1, 1e5), least_per_s=st.floats(0.0, 100.0))
def test_no_rate_is_tried_that_tells_nothing(first_per_s: float, least_per_s: float) -> None:
    """Where none keeps the limit it ends: at the least rate, or by steps of six at most."""
    search, tried = Highest(first_per_s, least_per_s=least_per_s), []
    while (rate := search.next_per_s) is not None:
        tried.append(rate)
        search.tell(is_kept=False)
    assert search.kept_per_s is None
    assert min(tried[1:], default=math.inf) >= least_per_s
    assert all(one <= 6.0001 * other for one, other in itertools.pairwise(tried))
    assert tried[-1] > first_per_s / 7_000


@pytest.mark.parametrize("first_per_s", [0.0, -1.0, math.nan, math.inf])
def test_a_first_rate_without_sense_is_refused(first_per_s: float) -> None:
    """A promise that our own code keeps."""
    with pytest.raises(ValueError, match="above 0"):
        Highest(first_per_s)


@pytest.mark.parametrize(
    ("slow", "lost", "expected"),
    [(0, 0, True), (2, 0, True), (1, 1, True), (3, 0, False), (0, 3, False), (2, 1, False)],
)
def test_one_request_in_a_hundred_may_miss_the_limit(slow: int, lost: int, expected: bool) -> None:
    """Of 200 that were due in the measured part: late, or not answered; the warm-up does not count."""
    due_s = np.arange(1, 301) / 100
    took_s = np.full(300, 0.010)
    took_s[:100] = 5.0
    took_s[100 : 100 + slow] = 0.021
    status = np.full(300, 200, np.int16)
    status[200 : 200 + lost] = 0
    records = RequestRecords(
        intended_s=due_s,
        started_s=due_s,
        finished_s=due_s + took_s,
        status=status,
        connection=np.zeros(300, np.int32),
    )
    limits = {"limit_s": 0.02, "warmup_s": 1.0, "seconds": 2.0}
    assert is_kept(records, **limits) == expected
    assert not is_kept(records, **{**limits, "warmup_s": 10.0}), "nothing was due"
