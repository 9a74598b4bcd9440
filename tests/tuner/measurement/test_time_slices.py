"""How launches that are compared are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import time_slices
from tuner.measurement.time_slices import MAX_QUARTETS, TimeSlices


@given(st.floats(0, 5.0), st.floats(0.01, 60.0), st.floats(0.4, 10.0), st.integers(2, 4))
def test_slices_are_long_enough_for_the_slowest_and_as_many_as_a_launch_is_worth(
    latency_s, startup_s, measured_s, roles
):
    """Whole tenths of a second, which blocks are made of; at least what a trial is measured for."""
    found = TimeSlices.of(
        latency_s=latency_s, startup_s=startup_s, measured_s=measured_s, arms=roles
    )
    assert found.seconds >= max(time_slices.SLICE_S, time_slices.LATENCIES * latency_s) - 1e-9
    assert found.seconds * 10 == pytest.approx(round(found.seconds * 10))
    assert found.dropped_s >= time_slices.DROPPED_S
    measured = 2 * found.quartets * found.seconds
    assert measured >= measured_s - 1e-9
    assert found.quartets <= MAX_QUARTETS or measured < measured_s + 2 * found.seconds
    assert (
        found.seconds
        <= max(time_slices.LATENCIES * latency_s, measured_s / time_slices.PARTS) + 0.1
    )
