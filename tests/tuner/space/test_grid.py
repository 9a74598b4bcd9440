"""Values spread over a range."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.space.knobs import DEFAULT_POINTS, spread


@pytest.mark.parametrize(
    ("phrase", "arguments", "expected"),
    [
        ("whole numbers without more have a step of 1", (1, 4, False, True, None, None), [1, 2, 3, 4]),
        ("a step gives decimals that a person would write", (0.1, 0.5, False, False, 0.1, None),
         [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("a step that does not meet the end stops before it", (1, 6, False, True, 2, None), [1, 3, 5]),
        ("log points have equal ratios", (1, 64, True, True, None, 7), [1, 2, 4, 8, 16, 32, 64]),
        ("linear points have equal distances", (0, 1, False, False, None, 3), [0, 0.5, 1]),
    ],
)  # fmt: skip
def test_spread(phrase, arguments, expected):
    """A range becomes the values that its scale, step and points say."""
    low, high, is_log, is_whole, step, points = arguments

    found = spread(low, high, is_log=is_log, is_whole=is_whole, step=step, points=points)

    assert expected == found, phrase


def test_a_float_range_without_more_has_the_default_number_of_points():
    """Neither step nor points means eight values."""
    found = spread(0.5, 4.0, is_log=True, is_whole=False, step=None, points=None)

    assert len(found) == DEFAULT_POINTS


def test_too_many_values_are_refused():
    """A range of whole numbers that is too wide asks for points."""
    with pytest.raises(ValueError, match="5,000 values, more than 1000: use `points` instead"):
        spread(1, 5000, is_log=False, is_whole=True, step=None, points=None)


@settings(deadline=None)
@given(
    low=st.floats(1e-3, 1e6),
    ratio=st.floats(1.0, 1e4),
    is_log=st.booleans(),
    is_whole=st.booleans(),
    points=st.integers(2, 50),
)
def test_points_ascend_within_the_range_and_hold_both_ends(low, ratio, is_log, is_whole, points):
    """Values never decrease, never leave the range, and begin and end at its ends."""
    low, high = (max(1, round(low)), max(1, round(low * ratio))) if is_whole else (low, low * ratio)

    found = spread(low, high, is_log=is_log, is_whole=is_whole, step=None, points=points)

    assert all(a <= b for a, b in itertools.pairwise(found))
    assert found[0] == pytest.approx(low, rel=1e-9)
    assert found[-1] == pytest.approx(high, rel=1e-9)
    assert all(low <= value <= high for value in found)
