"""When requests of many models are due: rates that are kept, shapes that are as told, the same seeds."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.evaluation.scenarios import arrivals
from tuner.evaluation.scenarios.values import (
    REFERENCE,
    Arrivals,
    Deadline,
    EmulationSettings,
    ModelGroup,
    Scenario,
    Stream,
)

STREAM = Stream(name="all", group="m", deadline=Deadline(first_s=0.1), rate_per_s=200.0)


def scenario(*streams: Stream, copies: int = 50, seconds: float = 100.0, seed: int = 1) -> Scenario:
    return Scenario(
        name="toy",
        seconds=seconds,
        seed=seed,
        workers=1,
        pages=None,
        concurrent_loads=True,
        groups=(
            ModelGroup(name="other", copies=2, profile=REFERENCE),
            ModelGroup(name="m", copies=copies, profile=REFERENCE),
        ),
        streams=streams,
        settings={},
        emulated=EmulationSettings(),
    )


@pytest.mark.parametrize("kind", ["poisson", "constant", "burst"])
def test_a_rate_is_kept_and_every_model_is_asked_for(kind: Arrivals) -> None:
    """20,000 requests: six standard deviations of a Poisson count are 4.2 %."""
    found = arrivals.draw_arrivals(scenario(dataclasses.replace(STREAM, arrivals=kind)))
    assert len(found.at_s) == pytest.approx(20_000, rel=0.042)
    assert np.all(np.diff(found.at_s) >= 0)
    assert (found.at_s.min(), found.at_s.max()) >= (0.0, 99.0)
    assert found.at_s.max() < 100.0
    assert set(found.models) == set(range(2, 52)), "behind the two of the group before"


def test_bursts_hold_three_fifths_of_the_requests() -> None:
    found = arrivals.draw_arrivals(scenario(dataclasses.replace(STREAM, arrivals="burst")))
    counts, _ = np.histogram(found.at_s % 0.5, bins=50, range=(0.0, 0.5))
    fifths = np.convolve(np.concatenate([counts, counts[:9]]), np.ones(10), mode="valid")
    assert fifths.max() / counts.sum() == pytest.approx(0.6, abs=0.02)


def test_constant_arrivals_end_with_the_scenario() -> None:
    stream = dataclasses.replace(STREAM, arrivals="constant", rate_per_s=0.001)
    for seed in range(5):
        assert len(arrivals.draw_arrivals(scenario(stream, seconds=10.0, seed=seed)).at_s) <= 1
        found = arrivals.draw_arrivals(scenario(stream, seconds=10.0, seed=seed))
        assert np.all(found.at_s < 10.0)


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    made = [arrivals.draw_arrivals(scenario(STREAM, seed=seed)) for seed in (1, 1, 2)]
    assert np.array_equal(made[0].at_s, made[1].at_s)
    assert np.array_equal(made[0].models, made[1].models)
    assert not np.array_equal(made[0].models[:50], made[2].models[:50])


def test_zipf_s_law_ranks_the_models() -> None:
    """With exponent 1 the first of 50 has 22 % of the requests, the second half as many."""
    found = arrivals.draw_arrivals(scenario(dataclasses.replace(STREAM, exponent=1.0)))
    counts = np.bincount(found.models - 2, minlength=50)
    assert counts[0] / counts.sum() == pytest.approx(0.222, abs=0.02)
    assert counts[0] / counts[1] == pytest.approx(2.0, rel=0.15)


def test_models_become_active_one_after_another() -> None:
    found = arrivals.draw_arrivals(scenario(dataclasses.replace(STREAM, active_every_s=2.0)))
    active = 1 + (found.at_s / 2.0).astype(int)
    assert np.all(found.models - 2 < active)
    assert set(found.models[found.at_s < 2.0]) == {2}


def test_serverless_traffic_has_few_hot_models_timers_and_clusters() -> None:
    """In the mean over seeds the rate is kept; one model in ten has most of the requests."""
    stream = dataclasses.replace(STREAM, arrivals="serverless", rate_per_s=300.0)
    counts, shares, timers = [], [], []
    for seed in range(8):
        found = arrivals.draw_arrivals(scenario(stream, copies=200, seed=seed))
        each = np.bincount(found.models - 2, minlength=200)
        counts.append(len(found.at_s))
        shares.append(np.sort(each)[-20:].sum() / each.sum())
        busy = [place for place in range(200) if each[place] > 50]
        variations = []
        for place in busy:
            apart = np.diff(found.at_s[found.models == place + 2])
            variations.append(apart.std() / apart.mean())
        timers.append(np.mean(np.array(variations) < 0.01))
        assert max(variations) > 2.0
    assert np.mean(counts) == pytest.approx(30_000, rel=0.1)
    assert np.mean(shares) > 0.6
    assert np.mean(timers) == pytest.approx(0.3, abs=0.1)


def test_a_trace_is_what_it_says_and_ends_with_the_scenario() -> None:
    trace = ((0.5, 3), (2.0, 0), (99.9, 1))
    stream = dataclasses.replace(STREAM, arrivals="trace", rate_per_s=0.0, trace=trace, from_s=1.0)
    found = arrivals.draw_arrivals(scenario(stream))
    assert found.at_s.tolist() == [1.5, 3.0]
    assert found.models.tolist() == [5, 2]


def test_clients_send_again_until_the_end() -> None:
    stream = dataclasses.replace(STREAM, clients=3, rate_per_s=0.0)
    found = arrivals.draw_arrivals(scenario(stream, copies=4))
    sent = list(found)
    assert len(sent) == 12
    assert {one.client for one in sent} == {2, 3, 4, 5}
    again = found.next_request(sent[0], 0.0)
    assert again is not None
    assert again.at_s > 0.0, "one that is refused at once does not ask at the same instant"
    following = found.next_request(sent[0], 50.0)
    assert following is not None
    assert (following.at_s, following.model) == (50.0, sent[0].model)
    assert found.next_request(sent[0], 100.0) is None


@pytest.mark.parametrize("kind", ["poisson", "serverless"])
def test_another_draw_is_of_the_same_scenario(kind: Arrivals) -> None:
    """Models are asked for as often as in the first, at other times; the first is the scenario's own."""
    given = scenario(dataclasses.replace(STREAM, arrivals=kind), seconds=200.0)
    first, again, other = (arrivals.draw_arrivals(given, draw) for draw in (0, 7, 8))
    assert np.array_equal(first.at_s, arrivals.draw_arrivals(given).at_s)
    counts = [np.bincount(one.models, minlength=52) for one in (first, again, other)]
    assert not np.array_equal(first.at_s, again.at_s)
    assert not np.array_equal(again.at_s, other.at_s)
    for one in counts[1:]:
        busy = counts[0] > 1000
        # Of a thousand in clusters of up to 4 squared the standard deviation is an eighth.
        assert one[busy] == pytest.approx(counts[0][busy], rel=0.75)
        assert busy.any() == (kind == "serverless") or counts[0].max() <= 1000


@settings(deadline=None, max_examples=60)
@given(
    at_s=st.lists(st.floats(0, 50), min_size=1, max_size=20).map(sorted),
    seconds=st.floats(0.5, 80),
    draw=st.integers(1, 2**31),
)
def test_each_draw_of_a_trace_begins_elsewhere_in_it(
    at_s: list[float], seconds: float, draw: int
) -> None:
    """The first is the recording; every other one has the same requests in a circle, and one at least."""
    trace = tuple((one, place % 3) for place, one in enumerate(at_s))
    stream = dataclasses.replace(STREAM, rate_per_s=0.0, arrivals="trace", trace=trace)
    asked = scenario(stream, copies=3, seconds=seconds)
    first = arrivals.draw_arrivals(asked)
    assert first.at_s.tolist() == [one for one in at_s if one < seconds]
    found, again = arrivals.draw_arrivals(asked, draw), arrivals.draw_arrivals(asked, draw)
    assert found.at_s.tolist() == again.at_s.tolist(), "both sides of a pair have the same"
    assert len(found.at_s) > 0
    assert np.all(np.diff(found.at_s) >= 0)
    assert found.at_s[-1] < seconds
    whole = arrivals.draw_arrivals(dataclasses.replace(asked, seconds=1000.0), draw)
    assert sorted(whole.models) == sorted(2 + model for _, model in trace)


def test_draws_of_a_trace_differ() -> None:
    """Of an hour each draw has its own seconds."""
    trace = tuple((float(second), 0) for second in range(3600))
    stream = dataclasses.replace(STREAM, rate_per_s=0.0, arrivals="trace", trace=trace)
    asked = scenario(stream, seconds=5.0)
    begins = {float(arrivals.draw_arrivals(asked, draw).at_s[0]) for draw in range(6)}
    assert len(begins) == 6
    assert {len(arrivals.draw_arrivals(asked, draw).at_s) for draw in range(6)} == {5}
