"""Limits: their grammar, how far figures lie beyond them, and what launches say together."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import studies
from tuner.errors import UsageError
from tuner.metrics import metric_constraints
from tuner.metrics.metric_constraints import METRICS, MetricConstraint
from tuner.values.histogram import LatencyHistogram
from tuner.values.measurement import Measurement

BOUND = st.floats(1e-6, 1e9)
LIMITS = st.builds(
    MetricConstraint, metric=st.sampled_from(sorted(METRICS)), is_upper=st.booleans(), bound=BOUND
)


def launch(**changes: object) -> Measurement:
    """A launch of 10 ms."""
    return dataclasses.replace(studies.measurement(10.0, np.random.default_rng(0)), **changes)


@given(LIMITS)
def test_a_limit_is_read_back_as_it_is_written(limit: MetricConstraint) -> None:
    """Its text says all of it, to twelve digits."""
    again = metric_constraints.parse(limit.text)
    assert (again.metric, again.is_upper) == (limit.metric, limit.is_upper)
    assert again.bound == pytest.approx(limit.bound, rel=1e-11)
    assert metric_constraints.canonical(again.text) == again.text


@given(
    metric=st.sampled_from(sorted(METRICS)),
    comparison=st.sampled_from(("<=", ">=", "<", ">")),
    spaces=st.tuples(*[st.sampled_from(("", " ", "  "))] * 4),
    bound=st.integers(1, 10_000),
)
def test_spaces_do_not_matter(
    metric: str, comparison: str, spaces: tuple[str, ...], bound: int
) -> None:
    """Nor whether the comparison is strict: a figure is never exactly at its limit."""
    a, b, c, d = spaces
    found = metric_constraints.parse(f"{a}{metric}{b}{comparison}{c}{bound}{d}")
    assert found == MetricConstraint(metric=metric, is_upper="<" in comparison, bound=bound)


@given(st.text(max_size=30))
def test_any_other_text_is_refused_in_one_line(text: str) -> None:
    """Whatever is given, the answer is a limit or a line that shows how one is written."""
    complaint = ""
    try:
        metric = metric_constraints.parse(text).metric
    except ValueError as error:
        metric, complaint = "", str(error)
    assert (metric in METRICS) != ("p99_ms <= 50" in complaint or "metrics: " in complaint)
    assert "\n" not in complaint


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("p98_ms <= 50", "metric 'p98_ms' is not known, did you mean 'p9"),
        ("latency <= 50", "metric 'latency' is not known"),
        ("p99_ms = 50", "is not a constraint; expected METRIC <= NUMBER, as 'p99_ms <= 50'"),
        ("p99_ms <= fast", "'fast' is not a number"),
        ("p99_ms <= -5", "expected a number above 0"),
        ("p99_ms <= inf", "expected a number above 0"),
        ("p99_ms", "is not a constraint"),
        ("", "is not a constraint"),
    ],
)
def test_what_is_wrong_is_said(text: str, complaint: str) -> None:
    """With the nearest metric."""
    with pytest.raises(UsageError) as caught:
        metric_constraints.parse_all([text])
    assert complaint in str(caught.value)
    assert str(caught.value).startswith("--constraint ")


def test_limits_that_leave_nothing_are_refused() -> None:
    """The same one twice is one; a lower above an upper one is none."""
    assert len(metric_constraints.parse_all(["p99_ms <= 50", "p99_ms<50"])) == 1
    assert len(metric_constraints.parse_all(["p99_ms <= 50", "p99_ms >= 5"])) == 2
    with pytest.raises(UsageError, match="contradict each other"):
        metric_constraints.parse_all(["p99_ms <= 50", "p99_ms >= 60"])


@given(limit=LIMITS, value=BOUND)
def test_a_figure_is_beyond_a_limit_or_within_it(limit: MetricConstraint, value: float) -> None:
    """The slack's sign, its size as a factor, and the sentence say the same."""
    slack = limit.log_excess(value)
    assert (slack > 0) == (value > limit.bound if limit.is_upper else value < limit.bound)
    assert math.exp(abs(slack)) == pytest.approx(
        max(value, limit.bound) / min(value, limit.bound), rel=1e-6
    )
    assert (limit.explain_violation(value) is not None) == (slack > 0)


def test_an_unknown_figure_is_neither() -> None:
    """It is for others to say that it is needed."""
    limit = metric_constraints.parse("energy_j <= 1")
    assert math.isnan(limit.log_excess(limit.of.value(launch())))
    assert metric_constraints.find_violation([limit], [launch()]) is None


def test_every_metric_is_read_from_a_measurement() -> None:
    """A number, or NaN where the launch does not tell it."""
    for name, metric in METRICS.items():
        assert isinstance(metric.value(launch()), float), name
    assert METRICS["p99_ms"].value(launch(p99_effective=458.0)) != METRICS["p99_ms"].value(launch())
    assert METRICS["peak_memory_mb"].value(launch()) == 140.0


def test_launches_together_decide() -> None:
    """Of a mean the geometric mean over launches, of a p99 that of all requests."""
    mean = metric_constraints.parse("mean_ms <= 10")
    assert (
        metric_constraints.find_violation([mean], [launch(mean_ms=5.0), launch(mean_ms=19.0)])
        is None
    )
    sentence = metric_constraints.find_violation(
        [mean], [launch(mean_ms=5.0), launch(mean_ms=21.0)]
    )
    assert sentence == "mean of 10.25 ms is above the limit of 10 ms (--constraint)"
    p99 = metric_constraints.of_slo(50.0)
    rng = np.random.default_rng(1)
    quick = launch(p99_ms=9.0, histogram=LatencyHistogram.of(rng.uniform(1, 9, 2_000)))
    stalled = launch(p99_ms=300.0, histogram=LatencyHistogram.of(rng.uniform(1, 300, 2_000)))
    assert metric_constraints.find_violation([p99], [quick, quick]) is None
    assert "p99 of 29" in (metric_constraints.find_violation([p99], [quick, stalled]) or "")
    assert "(--slo-ms)" in (metric_constraints.find_violation([p99], [quick, stalled]) or "")
    assert metric_constraints.find_violation([p99], []) is None
