"""What may be told once in a while is told once in a while, and nothing is lost from the count."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from serving.system.log_rate_limit import LogRateLimiter


@given(st.lists(st.floats(0.0, 0.7), max_size=60), st.floats(0.0, 1e6))
def test_one_in_a_period_and_all_are_counted(pauses, start_s):
    """However often it happens: two that are told are a period apart, and the first always is."""
    seldom, now_s = LogRateLimiter(1.0), start_s
    told_s, accounted, left = [], 0, 0
    for pause_s in pauses:
        now_s += pause_s
        untold = seldom.allow(now_s)
        if untold is None:
            left += 1
            continue
        told_s.append(now_s)
        accounted += 1 + untold
        left = 0
    assert accounted + left == len(pauses)
    assert not pauses or told_s
    assert all(later - earlier >= 1.0 for earlier, later in itertools.pairwise(told_s))
