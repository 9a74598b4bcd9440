import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.report import formatting
from tuner.values.interval import Interval


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (16.0, "16.0"),
        (0.0345, "0.0345"),
        (9.996, "10.0"),
        (99.96, "100"),
        (123.4, "123"),
        (1234.0, "1,234"),
        (1234567.0, "1,234,567"),
        (0.00001, "1.00e-05"),
        (0, "0"),
        (7, "7"),
        (-2.5, "-2.50"),
        (None, "–"),
        (math.nan, "–"),
        (math.inf, "–"),
    ],
)
def test_numbers_have_three_digits(value, text):
    """A number is written with three significant digits, large ones whole, missing ones as a dash."""
    assert formatting.number(value) == text


@given(value=st.floats(1e-3, 1e9))
def test_numbers_keep_their_size(value):
    """What is written lies within half a percent of the value."""
    assert float(formatting.number(value).replace(",", "")) == pytest.approx(value, rel=5.1e-3)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.0, 2.0, "1.00 to 2.00"),
        (1.0, None, "from 1.00, no upper end"),
        (None, 2.0, "up to 2.00, no lower end"),
        (None, None, "not known"),
    ],
)
def test_intervals_say_which_end_is_missing(low, high, text):
    """An end that the data cannot give is named."""
    assert formatting.interval(Interval(low=low, high=high)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.500 s"), (12.2, "12 s"), (185, "3 min 5 s"), (7440, "2 h 4 min")],
)
def test_durations_read_like_speech(seconds, text):
    """A duration is given in its two largest units."""
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "true"), (8, "8"), (0.25, "0.25"), (2.0, "2"), ("least-loaded", "least-loaded")],
)
def test_knob_values_read_as_in_a_settings_file(value, text):
    """A knob's value is written without decoration."""
    assert formatting.knob_value(value) == text


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(1, "trial", "1 trial"), (0, "trial", "0 trials"), (2, "launch", "2 launches")],
)
def test_nouns_follow_their_count(count, noun, text):
    """One is singular, anything else plural."""
    assert formatting.plural(count, noun) == text


@given(text=st.text(), width=st.integers(1, 80))
def test_wrapped_lines_fit_and_lose_nothing(text, width):
    """Every line fits, and the words come out in order."""
    lines = formatting.wrap(text, width)
    assert all(0 < len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.9, 1.1, "× 0.802 (0.900 to 1.10)"),
        (0.000389, 1653.0, "× 0.802 (too few pairs to tell)"),
        (1.2, 9.0, "× 0.802 (1.20 to 9.00)"),
        (0.3, None, "× 0.802 (from 0.300, no upper end)"),
    ],
)
def test_ratios_with_an_interval_that_tells_nothing_say_so(low, high, text):
    """One that leaves out 1 tells something, however wide it is."""
    assert formatting.ratio(0.802, Interval(low=low, high=high)) == text
