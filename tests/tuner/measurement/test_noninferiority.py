"""No worse by more than a margin: the level it promises, and Holm's order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import noninferiority
from tuner.measurement.noninferiority import LEVEL, MARGIN, MIN_UNITS, holm, judge

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(st.lists(st.floats(-0.2, 0.2), min_size=2, max_size=40))
def test_the_bound_is_below_the_margin_where_the_p_value_says_so(values: list[float]) -> None:
    """Two ways to say one thing."""
    found = noninferiority.bound_mean(np.array(values), MARGIN)
    assert (found.upper is None) == (len(values) < MIN_UNITS)
    if found.upper is None:
        return
    assert found.lower <= found.mean <= found.upper
    if abs(found.upper - MARGIN) > 1e-9:
        assert (found.upper < MARGIN) == (found.p < LEVEL)


def test_a_sampler_that_is_worse_by_the_margin_passes_in_one_of_twenty() -> None:
    """2,000 comparisons of 20 pairs: 5 % of false passes, 3.2 to 7.0 % at a false-alarm rate of 1 in 10,000."""
    rng = np.random.default_rng(0)
    passed = [
        noninferiority.bound_mean(MARGIN + 0.05 * rng.normal(size=20), MARGIN).upper < MARGIN
        for _ in range(2000)
    ]
    assert 0.032 < np.mean(passed) < 0.07


@given(P_VALUES)
def test_holm_keeps_the_order_and_is_between_nothing_and_bonferroni(values: list[float]) -> None:
    corrected = holm(values)
    for one, other in zip(values, corrected, strict=True):
        assert one <= other <= min(1.0, len(values) * one) + 1e-12
    order = np.argsort(values, kind="stable")
    assert np.all(np.diff(np.array(corrected)[order]) >= 0)


def test_holm_by_its_own_example() -> None:
    """0.01, 0.04, 0.03, 0.005: times 4, 3, 2, 1 from the smallest on, and never below the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    ("differences", "standing"),
    [
        ([-0.05, -0.04, -0.06, -0.05, -0.05], "better"),
        ([-0.05, -0.04, -0.06, -0.05], "not shown"),  # few can agree by chance
        ([0.001, -0.002, 0.0, 0.001, 0.001], "non-inferior"),
        ([0.0] * 8, "non-inferior"),
        ([0.0] * 4, "not shown"),
        ([0.2, -0.2, 0.1, -0.1, 0.0], "not shown"),
        ([0.05, 0.06, 0.05, 0.04, 0.05], "worse"),
        ([0.02] * 8, "worse"),
        ([-0.5], "not shown"),
    ],
)
def test_what_is_said_of_differences(differences: list[float], standing: str) -> None:
    (found,) = judge([("random", 30, np.array(differences))])
    assert found.standing == standing
    assert found.units == len(differences)


def test_many_peers_ask_for_more() -> None:
    """What passes alone need not pass among forty."""
    just = np.array([0.004, -0.004, 0.008, 0.0, 0.005, 0.003])
    (alone,) = judge([("random", 30, just)])
    together = judge([(f"peer-{n}", 30, just) for n in range(40)])
    assert alone.standing == "non-inferior"
    assert {one.standing for one in together} == {"not shown"}
    assert together[0].p == alone.p
