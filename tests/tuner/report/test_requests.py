import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.fakes import studies
from tuner.report.requests import PhaseRequests, binned_median, phase, quantile_curve, thin

STUDY = studies.study()

times = hnp.arrays(
    np.float64,
    st.integers(1, 1500),
    elements=st.floats(1e-3, 1e4, allow_nan=False),
    fill=st.just(5.0),
)


def made(latency_ms):
    finished = np.linspace(0.0, 3.0, len(latency_ms))
    return PhaseRequests(at_s=finished, latency_ms=latency_ms, errors=0, warmup_s=None)


def test_the_warmup_is_cut_by_the_fitting_measurement():
    """The measurement whose count of requests fits says where the warm-up ends."""
    kept = phase(STUDY, "best")
    assert kept.warmup_s == 0.5
    assert len(kept.measured_ms) == (kept.at_s > 0.5).sum() < len(kept.latency_ms)


def test_the_requests_are_those_of_the_measurement():
    """Neither the warm-up nor what was in flight at the end: the count is the one in the tables."""
    for role in ("default", "best"):
        kept, measured = phase(STUDY, role), getattr(STUDY.verdict, role)[0]
        assert len(kept.measured_ms) == measured.requests
        assert kept.at_s.max() <= measured.warmup_s + measured.seconds + 1e-9
        assert len(STUDY.records[role]) > len(kept.at_s), "some finished after the end"


def test_nothing_is_cut_when_no_measurement_fits():
    """Records of an unknown phase are shown whole."""
    strange = dataclasses.replace(STUDY, verdict=None, trials=())
    kept = phase(strange, "best")
    assert kept.warmup_s is None
    assert len(kept.measured_ms) == len(kept.at_s)


def test_unanswered_requests_are_counted_and_not_drawn():
    """Requests without a 2xx answer are errors, not latencies."""
    records = STUDY.records["best"]
    status = np.where(np.arange(len(records)) % 10 == 0, 0, 200).astype(np.int16)
    study = dataclasses.replace(
        STUDY, records={"best": dataclasses.replace(records, status=status)}
    )
    kept = phase(study, "best")
    assert kept.errors == (status == 0).sum()
    assert len(kept.at_s) + kept.errors == len(records)
    none = dataclasses.replace(records, status=np.zeros(len(records), np.int16))
    assert phase(dataclasses.replace(STUDY, records={"best": none}), "best") is None


def test_latencies_count_from_the_first_byte():
    """As the figures beside them do (docs/measurement.md)."""
    records = STUDY.records["default"]
    kept = phase(STUDY, "default")
    took_ms = 1000 * (records.finished_s - records.started_s)
    assert set(kept.latency_ms.tolist()) <= set(took_ms.tolist())


@given(values=times)
def test_the_curve_is_thin_rises_and_reaches_the_tail(values):
    """Values and shares rise together, few enough for a page, from the fastest to the slowest."""
    found, shares = quantile_curve(values)
    assert len(found) <= 401
    assert (np.diff(found) >= 0).all()
    assert (np.diff(shares) > 0).all()
    assert found[0] == values.min()
    assert shares[-1] == pytest.approx(1 - 0.5 / len(values))


@given(values=times, limit=st.integers(10, 500))
def test_thinning_keeps_the_slowest(values, limit):
    """At most `limit` requests stay, in order, the slowest among them."""
    kept = thin(made(values), limit=limit)
    assert len(kept) <= limit
    assert (np.diff(kept) > 0).all()
    assert values[kept].max() == values.max()


@given(values=times)
def test_medians_of_bins_lie_inside_the_data(values):
    """Bins are few, in order, and their medians within the range of the data."""
    middles, medians = binned_median(made(values))
    assert len(middles) <= 61
    assert (np.diff(middles) > 0).all()
    assert values.min() <= medians.min() <= medians.max() <= values.max()
