import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.report.axes import knob_axis, log_axis, log_ticks
from tuner.values.study_record import KnobInfo


def knob(values, *, scale="linear", name="batching.timeout_us"):
    return KnobInfo(name=name, unit="us", scale=scale, values=tuple(values), default=values[0])


@given(low=st.floats(1e-4, 1e6), factor=st.floats(1.01, 1e6))
def test_log_ticks_lie_inside_and_rise(low, factor):
    """Ticks are inside the range, in order, neither none nor a crowd."""
    ticks = log_ticks(low, low * factor)
    assert ticks == sorted(set(ticks))
    assert all(low * 0.99 <= tick <= low * factor * 1.01 for tick in ticks)
    assert 2 <= len(ticks) <= 15


@given(values=st.lists(st.floats(0.001, 1e5), min_size=1))
def test_a_log_axis_holds_its_values(values):
    """Every value lies strictly inside the axis."""
    low, high = log_axis(values, "ms")["range"]
    assert all(low < math.log10(value) < high for value in values)


def test_a_log_axis_without_values_is_empty():
    """No positive value: an axis with its title and without labels."""
    axis = log_axis([0.0, math.nan], "mean (ms)")
    assert axis["title"] == {"text": "mean (ms)"}
    assert axis["showticklabels"] is False


def test_zero_has_a_place_left_of_a_log_axis():
    """Zero stands one step left of the smallest positive value and keeps its label."""
    axis = knob_axis(knob([0, 100, 1000, 10_000], scale="log"), [])
    assert [axis.positions[value] for value in (0, 100, 1000, 10_000)] == pytest.approx(
        [1, 2, 3, 4]
    )
    assert axis.axis("t")["ticktext"] == ["0", "100", "1000", "10000"]


def test_choices_are_placed_by_their_index():
    """Words stand at equal distances in the order of the grid."""
    axis = knob_axis(knob(["a", "b", "c"]), [])
    assert axis.positions == {"a": 0.0, "b": 1.0, "c": 2.0}
    assert axis.axis("t")["ticktext"] == ["a", "b", "c"]


def test_a_single_value_has_an_axis():
    """One value makes an axis of some length."""
    low, high = knob_axis(knob([4]), []).axis("t")["range"]
    assert low < 4 < high


@given(
    grid=st.lists(st.integers(0, 10**6), min_size=1, max_size=40, unique=True).map(sorted),
    scale=st.sampled_from(["linear", "log"]),
    outside=st.lists(st.integers(0, 10**7), max_size=3),
)
def test_every_value_of_a_knob_has_a_place_in_order(grid, scale, outside):
    """Positions rise with the values, those outside of the grid too; first and last are labelled."""
    axis = knob_axis(knob(grid, scale=scale), outside)
    order = sorted({*grid, *outside})
    places = [axis.positions[value] for value in order]
    assert places == sorted(places)
    assert len(set(places)) == len(order)
    labels = axis.axis("t")["ticktext"]
    assert (labels[0], labels[-1]) == (str(order[0]), str(order[-1]))


def test_hostile_choices_cannot_become_tags():
    """Plotly reads tags in labels, so they arrive there as entities."""
    axis = knob_axis(knob(["<a href='http://x'>", "b"]), [])
    assert "&lt;a" in axis.axis("t")["ticktext"][0]
