"""The search for the highest rate: it is bounded, and ends around the limit."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement.max_rate_search import MaxRateSearch, is_kept
from tuner.settings.measurement import RATE_LOADS
from tuner.values.request_records import RequestRecords

factors = st.floats(math.log(1 / 50), math.log(50)).map(math.exp)


def searched(
    first_per_s: float, keeps: Callable[[float, int], bool]
) -> tuple[MaxRateSearch, list[float]]:
    """A search, and the rates that were tried; `keeps` says of a rate and the number of its try."""
    search, tried = MaxRateSearch(first_per_s), []
    while (rate := search.next_per_s) is not None:
        tried.append(rate)
        search.tell(is_kept=keeps(rate, len(tried) - 1))
    return search, tried


@given(first_per_s=st.floats(0.1, 1e5), factor=factors)
def test_a_limit_that_is_sharp_is_found(first_per_s: float, factor: float) -> None:
    """In no more tries than it may have, the first rate first: to a tenth wherever it is found."""
    limit_per_s = first_per_s * factor
    search, tried = searched(first_per_s, lambda rate, _: rate <= limit_per_s)
    assert len(tried) <= RATE_LOADS
    assert tried[0] == first_per_s
    if search.per_s is not None and search.missed_per_s is not None and len(tried) < RATE_LOADS:
        assert limit_per_s / 1.1 <= search.per_s <= 1.1 * limit_per_s


@given(
    first_per_s=st.floats(0.1, 1e5),
    factor=st.floats(math.log(1 / 4), math.log(4)).map(math.exp),
    bad=st.integers(0, RATE_LOADS - 1),
)
def test_one_bad_load_costs_little(first_per_s: float, factor: float, bad: int) -> None:
    """Whichever of the loads misses the limit by a hiccup of the machine."""
    limit_per_s = first_per_s * factor
    search, _ = searched(first_per_s, lambda rate, turn: rate <= limit_per_s and turn != bad)
    assert search.per_s is not None
    assert limit_per_s / 1.25 <= search.per_s <= 1.1 * limit_per_s


def test_the_rate_repeats_where_loads_tell_little() -> None:
    """A limit that is missed gradually, a machine that moves by 8 %, one load in ten spoilt: 10 % or so."""
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        moment = 0.08 * rng.normal()

        def keeps(rate: float, _turn: int) -> bool:
            nonlocal moment
            moment = 0.8 * moment + 0.08 * 0.6 * rng.normal()
            chance = 1 / (1 + math.exp((math.log(rate / 1000) - moment) / 0.05))
            return bool(rng.random() < chance and rng.random() > 0.1)

        search, _ = searched(1000 * math.exp(0.7 * rng.normal()), keeps)
        assert search.per_s is not None
        found.append(math.log(search.per_s / 1000))
    assert np.std(found) < 0.115
    assert abs(np.mean(found)) < 0.05


@given(first_per_s=st.floats(0.1, 1e5), least_per_s=st.floats(0.0, 100.0))
def test_no_rate_is_tried_that_tells_nothing(first_per_s: float, least_per_s: float) -> None:
    """Where none keeps the limit it ends: at the least rate, or by steps of six at most."""
    search, tried = MaxRateSearch(first_per_s, min_per_s=least_per_s), []
    while (rate := search.next_per_s) is not None:
        tried.append(rate)
        search.tell(is_kept=False)
    assert search.per_s is None
    others = [rate for rate in tried if rate != first_per_s]
    assert min(others, default=math.inf) >= least_per_s
    assert all(one <= 6.0001 * other for one, other in itertools.pairwise(tried))
    assert len(tried) <= RATE_LOADS


@pytest.mark.parametrize("first_per_s", [0.0, -1.0, math.nan, math.inf])
def test_a_first_rate_without_sense_is_refused(first_per_s: float) -> None:
    """A promise that our own code keeps."""
    with pytest.raises(ValueError, match="above 0"):
        MaxRateSearch(first_per_s)


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
