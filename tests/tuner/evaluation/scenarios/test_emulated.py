"""A scenario in virtual time: counts that add up, and the same figures each time."""

from __future__ import annotations

import dataclasses
import pathlib

import pytest

from tests.tuner.evaluation.scenarios.test_arrivals import STREAM, scenario
from tuner.errors import UsageError
from tuner.evaluation.scenarios import emulated, files
from tuner.evaluation.scenarios.values import Deadline, Scenario

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).resolve().parents[4]


def crowded(**changes: object) -> Scenario:
    """Fifty models, ten of which fit into memory, and more requests than can be loaded for."""
    base = scenario(dataclasses.replace(STREAM, rate_per_s=900.0), seconds=5.0)
    return dataclasses.replace(base, pages=70, **{"workers": 2, **changes})


def test_every_request_is_counted_once() -> None:
    found, outcomes = emulated.run(crowded())
    (one,) = found.streams.values()
    assert one.requests == len(outcomes) == found.requests
    assert one.admitted == one.in_time + one.late + sum(one.dropped.values())
    assert sum(one.refused_at_once.values()) > 0
    assert 5.0 <= found.seconds <= 5.1, "until the last one has its answer"
    assert found.goodput_per_s == one.in_time / found.seconds
    assert one.latencies_ms == tuple(sorted(one.latencies_ms))
    assert one.latencies_ms[-1] <= 100.0
    assert 0 < found.work.load_share <= 1.0
    assert sum(size * count for size, count in found.work.batches.items()) >= one.in_time


def test_the_same_scenario_gives_the_same_figures() -> None:
    first, second = (emulated.run(crowded())[0] for _ in range(2))
    told = [dataclasses.replace(one, planning_s=0.0) for one in (first, second)]
    assert told[0] == told[1]


def test_growing_deadlines_are_counted_one_by_one() -> None:
    growing = dataclasses.replace(STREAM, deadline=Deadline(first_s=0.003, factor=4.0, every_s=1.0))
    found, _ = emulated.run(dataclasses.replace(crowded(), streams=(growing,), pages=None))
    by = found.by_deadline["all"]
    assert list(by) == pytest.approx([3.0, 12.0, 48.0, 192.0, 768.0])
    assert sum(one.requests for one in by.values()) == found.requests
    shares = [one.in_time / one.requests for one in by.values()]
    assert shares[0] < 0.05, "not even one batch is so quick"
    assert shares[-1] > 0.99


def test_clients_ask_again_and_again() -> None:
    stream = dataclasses.replace(STREAM, clients=2, rate_per_s=0.0, deadline=Deadline(first_s=1.0))
    base = dataclasses.replace(scenario(stream, copies=3, seconds=2.0), workers=1)
    found, _ = emulated.run(base)
    (one,) = found.streams.values()
    assert one.in_time == one.requests > 500, "one worker does 366 batches of one a second"


def test_clients_that_are_refused_at_once_come_to_an_end() -> None:
    """Their deadline is too short for anything: they ask a thousand times a second."""
    hopeless = Deadline(first_s=0.001)
    stream = dataclasses.replace(STREAM, clients=2, rate_per_s=0.0, deadline=hopeless)
    found, _ = emulated.run(scenario(stream, copies=1, seconds=1.0))
    (one,) = found.streams.values()
    assert one.in_time == 0
    assert 1900 <= one.requests <= 2002


def test_a_setting_that_is_none_is_named() -> None:
    with pytest.raises(
        UsageError, match=r"clockwork\.duration_margn.*did you mean 'clockwork\.duration_margin'"
    ):
        emulated.run(dataclasses.replace(crowded(), settings={"clockwork.duration_margn": 0}))


def test_what_is_admitted_of_3_601_models_is_in_time() -> None:
    """Twenty seconds of the benchmark's scenario: hardly anything that was admitted is dropped."""
    base = files.read(ROOT / "benchmarks" / "scenarios" / "many.yaml")
    found, _ = emulated.run(dataclasses.replace(base, seconds=20.0))
    admitted = sum(one.admitted for one in found.streams.values())
    in_time = sum(one.in_time for one in found.streams.values())
    assert in_time >= 0.999 * admitted
    assert found.goodput_per_s > 350, "a schedule that does not know the future cannot exceed 379"
