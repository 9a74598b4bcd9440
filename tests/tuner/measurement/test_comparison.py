"""Default against best."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.measurement import comparison
from tuner.measurement.comparison import compare, ratio_interval
from tuner.values.interval import Interval
from tuner.values.verdict import Verdict

positive = st.floats(0.01, 1e4)


def test_a_clear_gain_is_better(measured):
    """Half the time, pair by pair: ratio, interval, throughput, p99 and a sentence."""
    found = compare(
        default=[measured(10.0), measured(11.0), measured(9.0)],
        best=[measured(5.0), measured(5.6), measured(4.4)],
        objective="mean",
    )
    assert found.outcome == "better"
    assert found.ratio == pytest.approx(0.5, rel=0.01)
    assert found.interval.low < found.ratio < found.interval.high < 1
    assert found.throughput_ratio == pytest.approx(1 / found.ratio)
    assert found.p99_ratio == pytest.approx(found.ratio)
    assert found.text.startswith(
        "The best configuration is better than the default: mean latency 4.976 ms against "
        "9.967 ms of the default, 50 % less (95 % interval here and now: "
    )
    assert "; on another day: " in found.text
    assert "3 pairs of evaluations" in found.text
    assert Verdict.from_json(found.as_json()) == found


def test_the_other_way_round_is_worse(measured):
    """The names of the sides matter, not their sizes."""
    slow, fast = [measured(10.0), measured(11.0)], [measured(5.0), measured(5.5)]
    assert compare(default=fast, best=slow, objective="mean").outcome == "worse"


def test_more_throughput_is_better(measured):
    """For throughput the ratio above 1 is the gain."""
    default = [measured(throughput_per_s=100.0), measured(throughput_per_s=110.0)]
    best = [measured(throughput_per_s=200.0), measured(throughput_per_s=221.0)]
    found = compare(default=default, best=best, objective="throughput")
    assert found.outcome == "better"
    assert found.ratio == pytest.approx(2, rel=0.01)
    assert "requests/s" in found.text
    assert compare(default=best, best=default, objective="throughput").outcome == "worse"


def test_noise_shows_no_difference_and_says_what_could_be_seen(measured):
    """The sentence tells how large a gain would have had to be."""
    found = compare(
        default=[measured(10.0), measured(12.0), measured(9.0)],
        best=[measured(11.0), measured(10.0), measured(9.5)],
        objective="p50",
    )
    assert found.outcome == "no difference shown"
    assert found.text.startswith("No difference shown: median latency")
    assert "cannot be seen" in found.text


def test_an_interval_that_tells_nothing_is_not_written_out(measured):
    """Two pairs that disagree give an interval of several powers of ten."""
    found = compare(
        default=[measured(10.0), measured(12.0)],
        best=[measured(11.0), measured(5.0)],
        objective="mean",
    )
    assert found.interval.is_vague
    assert found.text.endswith(
        "of the default; 2 pairs of evaluations that differ this much are too few (--max-time)."
    )


@given(st.floats(0.2, 5.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_another_day_is_less_certain(ratio, below, above):
    """By the spread of sessions, in quadrature; the estimate is the same, and a wide interval hardly widens."""
    here = Interval(low=ratio * math.exp(-below), high=ratio * math.exp(above))
    later = comparison.between_session_interval(ratio, here)
    moved = 1.96 * comparison.SESSION_SD
    assert math.log(ratio / later.low) == pytest.approx(math.hypot(below, moved), rel=1e-3)
    assert math.log(later.high / ratio) == pytest.approx(math.hypot(above, moved), rel=1e-3)
    assert comparison.between_session_interval(ratio, here, alpha=0.025).low < later.low


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((0.5, 0.6), "40 % less to 50 % less"),
        ((0.8, 1.2), "20 % less to 20 % more"),
        ((1.2, 1.4), "20 % more to 40 % more"),
    ],
)
def test_a_span_begins_with_the_smaller_change(ends, said):
    """Of a gain, its least is said first."""
    assert comparison.span_in_words(Interval(low=ends[0], high=ends[1])) == said


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (0.979, "2.1 % less"),
        (0.64, "36 % less"),
        (0.9996, "0.0 % less"),
        (1.004, "0.4 % more"),
        (1.9637, "96 % more"),
        (53.7, "53.7 times as much"),
    ],
)
def test_changes_are_rounded_to_what_they_tell(ratio, said):
    """Percent up to a few times, then times."""
    assert comparison.change_in_words(ratio) == said


def test_equal_measurements_show_no_difference(measured):
    """Also where there is no spread at all."""
    found = compare(default=[measured()] * 2, best=[measured()] * 2, objective="mean")
    assert (found.outcome, found.ratio) == ("no difference shown", 1.0)


@pytest.mark.parametrize(("default", "best"), [(0, 0), (1, 1), (2, 3)])
def test_a_verdict_needs_two_pairs(measured, default, best):
    """One launch of each says nothing about launches."""
    with pytest.raises(UsageError, match="at least 2"):
        compare(default=[measured()] * default, best=[measured()] * best, objective="mean")


@given(pairs=st.lists(st.tuples(positive, positive), min_size=2, max_size=12), drift=positive)
def test_what_slows_both_of_a_pair_changes_nothing(pairs, drift):
    """A drift of the machine falls out, and exchanging the sides turns the ratio over."""
    default = [pair[0] for pair in pairs]
    best = [pair[1] for pair in pairs]
    ratio, interval = ratio_interval(best, default)
    assert interval.low <= ratio * (1 + 1e-9)
    assert ratio <= interval.high * (1 + 1e-9)
    factors = np.geomspace(1, 1 + drift, len(pairs))
    drifted, _ = ratio_interval(best * factors, default * factors)
    assert drifted == pytest.approx(ratio)
    turned, turned_interval = ratio_interval(default, best)
    assert turned == pytest.approx(1 / ratio)
    assert turned_interval.low == pytest.approx(1 / interval.high)


@pytest.mark.parametrize("pairs", [2, 3, 6])
def test_equal_configurations_differ_in_one_comparison_of_twenty(pairs):
    """The false-alarm rate of 4,000 null comparisons is 5 %, within 5 standard errors (1e-6)."""
    rng = np.random.default_rng(10)
    alarms = 0
    for _ in range(4000):
        launches = np.exp(0.1 * rng.standard_normal((2, pairs)))
        _, interval = ratio_interval(launches[0], launches[1])
        alarms += not interval.low <= 1 <= interval.high
    assert alarms / 4000 == pytest.approx(0.05, abs=5 * (0.05 * 0.95 / 4000) ** 0.5)
