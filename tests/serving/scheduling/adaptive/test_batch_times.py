"""How long batches of a size take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.batch_times import (
    DOUBTED_AFTER,
    SEEDS_LAST,
    WINDOW,
    BatchTimeEstimator,
)

SEEN = st.lists(st.tuples(st.integers(1, 64), st.floats(1e-5, 10.0)), min_size=1, max_size=60)


def profile_of(seen):
    profile = BatchTimeEstimator()
    for size, took_s in seen:
        profile.observe(size, took_s)
    return profile


def test_nothing_seen_is_nothing_known():
    """An unknown model takes no time, so that nothing is refused for it."""
    assert BatchTimeEstimator().estimate_s(8) == 0.0
    assert BatchTimeEstimator().largest(0.0, 8) == 8


def test_one_hiccup_in_ten_does_not_count():
    """The 90th percentile of the last ten, and what is older is forgotten."""
    profile = profile_of([(4, 0.001)] * 9 + [(4, 1.0)])
    assert profile.estimate_s(4) == 0.001
    for _ in range(2):
        profile.observe(4, 0.5)
    assert profile.estimate_s(4) == 0.5
    for _ in range(WINDOW):
        profile.observe(4, 0.002)
    assert profile.estimate_s(4) == 0.002


def test_sizes_between_and_beyond_lie_on_lines():
    """Between neighbours by their line, beyond the largest by the last one, below the smallest as it."""
    profile = profile_of([(2, 0.010), (4, 0.014)])
    assert profile.estimate_s(1) == 0.010
    assert profile.estimate_s(3) == pytest.approx(0.012)
    assert profile.estimate_s(8) == pytest.approx(0.022)


def test_of_one_size_alone_twice_as_many_items_are_presumed_to_take_no_longer():
    """So that they are tried where the deadline allows for one batch; more take longer in proportion to that."""
    profile = profile_of([(2, 0.010)])
    assert [profile.estimate_s(size) for size in (1, 2, 4)] == [0.010] * 3
    assert profile.estimate_s(8) == pytest.approx(0.020)
    assert profile.largest(0.010, 8) == 4


def test_after_a_slow_spell_larger_sizes_are_tried_again():
    """All were as slow, and only single items have run since: no size is left that rules out two."""
    profile = profile_of([(size, 0.060) for size in (1, 2, 3, 4, 8) for _ in range(WINDOW)])
    for _ in range(DOUBTED_AFTER + 2 * WINDOW):
        profile.observe(1, 0.020)
    assert profile.estimates_s() == {1: 0.020, 8: 0.060}
    for _ in range(WINDOW):
        profile.observe(2, 0.021)
    assert profile.estimates_s() == {1: 0.020, 2: 0.021}
    assert profile.estimate_s(8) == pytest.approx(0.027)


def test_a_size_that_runs_seldom_is_worth_what_it_takes_now():
    """What it took in a slow spell does not outvote it; what is as long as before joins the rest."""
    profile = profile_of([(1, 0.020)] + [(3, 0.024)] * 5 + [(3, 0.060)] * 5)
    for took_s in (0.055, 0.024):
        for _ in range(DOUBTED_AFTER):
            profile.observe(1, 0.050)  # so slow that the size is not longer than foretold
        profile.observe(3, took_s)
        assert profile.estimate_s(3) == (0.060 if took_s == 0.055 else 0.024)


def test_a_size_that_runs_now_and_then_forgets_a_slow_spell():
    """It is never long ago that it ran, but long that it took as long: that counts."""
    profile = profile_of([(1, 0.020)] + [(2, 0.060)] * 5)
    for turn in range(4):
        assert profile.estimate_s(2) == (0.060 if turn < 3 else 0.021)
        for _ in range(DOUBTED_AFTER // 2 - 1):
            profile.observe(1, 0.050)
        profile.observe(2, 0.021)


@given(seen=SEEN, within_s=st.floats(0, 10), most=st.integers(1, 128))
def test_the_largest_size_that_fits_fits(seen, within_s, most):
    """What `largest` gives is within the time, or nothing is."""
    profile = profile_of(seen)
    found = profile.largest(within_s, most)
    assert 0 <= found <= most
    assert not found or profile.estimate_s(found) <= within_s


@given(seen=SEEN, size=st.integers(1, 256))
def test_estimates_are_times(seen, size):
    """Positive and finite, whatever was seen; measured sizes within what was measured."""
    profile = profile_of(seen)
    assert 0.0 < profile.estimate_s(size) < 1e6
    for known, estimate in profile.estimates_s().items():
        of_size = [took_s for other, took_s in seen if other == known]
        assert min(of_size) <= estimate <= max(of_size)


def test_a_profile_covers_what_lies_between_measurements():
    """Nothing at first; then all up to the largest size that ran."""
    assert BatchTimeEstimator().max_measured == 0
    profile = profile_of([(2, 0.1), (8, 0.2)])
    assert profile.max_measured == 8


def test_a_seed_counts_until_its_size_is_measured():
    """Then what was measured, shorter or longer; of several seeds the shortest; never over a measurement."""
    profile = profile_of([(2, 0.010)])
    profile.seed({2: 0.5, 4: 0.030, 8: 0.040})
    profile.seed({4: 0.020, 8: 0.050})
    assert profile.estimates_s() == {2: 0.010, 4: 0.020, 8: 0.040}
    assert profile.largest(0.030, 8) == 6
    assert profile.max_measured >= 8
    profile.observe(8, 0.060)
    profile.observe(4, 0.015)
    assert profile.estimates_s() == {2: 0.010, 4: 0.015, 8: 0.060}


def test_a_seed_is_not_believed_for_ever():
    """A size that looked too slow while replicas warmed up together would never be tried."""
    profile = BatchTimeEstimator()
    profile.seed({1: 0.001, 16: 1.0})
    for _ in range(SEEDS_LAST):
        assert 16 in profile.estimates_s()
        profile.observe(2, 0.002)
    assert profile.estimates_s() == {2: 0.002}
    assert profile.estimate_s(16) == 0.008


def test_no_seed_is_believed_for_ever_not_of_a_later_warm_up_either():
    """A replica that comes up when earlier seeds are forgotten brings new ones, for as long as the first."""
    profile = BatchTimeEstimator()
    for _ in range(2):
        profile.seed({16: 1.0})
        for _ in range(SEEDS_LAST):
            assert 16 in profile.estimates_s()
            profile.observe(2, 0.002)
        assert profile.estimates_s() == {2: 0.002}
    profile.seed({4: 1.0})
    profile.observe(4, 0.003)
    profile.seed({16: 1.0})
    for _ in range(SEEDS_LAST):
        assert 16 in profile.estimates_s()
        profile.observe(2, 0.002)
    assert 16 not in profile.estimates_s()


@given(SEEN, st.dictionaries(st.integers(1, 64), st.floats(1e-5, 10.0)))
def test_seeds_change_nothing_of_what_was_measured(seen, seeds):
    """Before or after the measurements."""
    before, after = BatchTimeEstimator(), profile_of(seen)
    before.seed(seeds)
    for size, took_s in seen:
        before.observe(size, took_s)
    after.seed(seeds)
    ran = dict(seen)
    plain = profile_of(seen).estimates_s()
    unrun = {size: took_s for size, took_s in seeds.items() if size not in ran}
    assert before.estimates_s() == after.estimates_s() == {**unrun, **plain}
