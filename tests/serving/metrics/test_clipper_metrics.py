"""Clipper's metrics: counters, ratios, meters, histograms, and their report."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.metrics.clipper_metrics import SAMPLE, Histogram, Meter, Registry


def registry():
    return Registry(random.Random(1))


def test_the_report_has_every_kind_and_strings_for_numbers():
    """Four lists of one-key objects; all numbers are strings."""
    made = registry()
    made.counter("c").increment(3)
    made.ratio("r").increment(1, 4)
    made.ratio("empty")
    made.meter("m", 0.0).mark(1.0, 10)
    made.histogram("h", "microseconds").insert(5)
    report = made.report(2.0)
    assert report["counters"] == [{"c": {"count": "3"}}]
    assert report["ratio_counters"] == [{"r": {"ratio": "0.25"}}, {"empty": {"ratio": "nan"}}]
    assert report["meters"][0]["m"]["unit"] == "events per second"
    assert report["meters"][0]["m"]["rate"] == "5"
    histogram = report["histograms"][0]["h"]
    assert histogram == {
        "unit": "microseconds", "size": "1", "min": "5", "max": "5", "mean": "5", "std_dev": "0",
        "p50": "5", "p95": "5", "p99": "5",
    }  # fmt: skip
    assert set(report) == {"counters", "ratio_counters", "meters", "histograms"}


def test_a_metric_is_made_once():
    """The same name is the same metric."""
    made = registry()
    counter = made.counter("app:a:n")
    assert made.counter("app:a:n") is counter
    made.counter("app:b:n")
    assert [list(item) for item in made.report(0.0)["counters"]] == [["app:a:n"], ["app:b:n"]]


def test_rates_decay():
    """Averages over 1, 5 and 15 minutes fall at their own pace when nothing happens any more."""
    meter = Meter(0.0)
    assert meter.report(1.0)["rate_1min"] == "-1"
    for second in range(600):
        meter.mark(float(second), 2)
    report = {name: float(text) for name, text in meter.report(600.0).items() if name != "unit"}
    assert all(abs(value - 2.0) < 0.01 for value in report.values())
    later = {name: float(text) for name, text in meter.report(660.0).items() if name != "unit"}
    assert later["rate_1min"] == pytest.approx(2 / 2.718281828, rel=0.01)
    assert later["rate_1min"] < later["rate_5min"] < later["rate_15min"] < 2.0
    assert float(meter.report(1e9)["rate_15min"]) < 1e-9


def of_values(values):
    histogram = Histogram("us", random.Random(1))
    for value in values:
        histogram.insert(value)
    return {name: float(text) for name, text in histogram.report(0.0).items() if name != "unit"}


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50))
def test_percentiles_lie_within_the_values(values):
    """A percentile is between smallest and largest, and grows with its rank."""
    report = of_values(values)
    found = [report[name] for name in ("min", "p50", "p95", "p99", "max")]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (min(values), max(values))


def test_percentiles():
    """Between two values by weight, the largest beyond them; of none, 0."""
    assert of_values([1.0, 2.0, 3.0])["p50"] == 2.0
    assert of_values([1.0, 2.0])["p50"] == 1.5
    assert of_values([1.0, 2.0])["p99"] == 2.0
    assert of_values([])["p50"] == 0.0


def test_the_sample_is_bounded_and_fair():
    """After many values the sample holds its size, and its mean is that of all values.

    The mean of 4096 of 0..19999 has a standard deviation of 90; 500 is missed once in 10^7 runs.
    """
    histogram = Histogram("us", random.Random(2))
    for value in range(20_000):
        histogram.insert(float(value))
    report = histogram.report(0.0)
    assert report["size"] == str(SAMPLE)
    assert abs(float(report["mean"]) - 9999.5) < 500
