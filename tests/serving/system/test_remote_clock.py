"""Laws of another machine's clock."""

import hypothesis.strategies as st
from hypothesis import given

from serving.system.remote_clock import DRIFT, RemoteClock

way_s = st.floats(1e-6, 0.05)


@given(
    offset_s=st.floats(-1e6, 1e6),
    drift=st.floats(-DRIFT, DRIFT),
    ways=st.lists(st.tuples(way_s, way_s), min_size=1, max_size=40),
    period_s=st.floats(0.01, 2.0),
)
def test_the_offset_is_as_right_as_it_says(offset_s, drift, ways, period_s):
    """Whatever the two ways take, and however the clocks drift within what is assumed."""
    clock = RemoteClock()
    now_s = 1000.0
    for there_s, back_s in ways:
        arrives_s, heard_s = now_s + there_s, now_s + there_s + back_s
        clock.observe(now_s, arrives_s + offset_s + drift * arrives_s, heard_s)
        true_s = offset_s + drift * heard_s
        slack_s = 1e-9 * (abs(offset_s) + heard_s) + DRIFT * (there_s + back_s)
        assert abs(clock.offset_s - true_s) <= clock.error_s + slack_s
        assert clock.error_s <= 0.5 * (there_s + back_s) + 1e-12
        now_s = heard_s + period_s


def test_what_was_never_asked_is_this_machine():
    """No offset, no error."""
    clock = RemoteClock()
    assert clock.offset_s == 0.0
    assert clock.error_s == 0.0
