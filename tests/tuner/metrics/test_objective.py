"""Objectives: one value for people, one for samplers, and the same words everywhere."""

import dataclasses
import json
import math

import numpy as np
import pytest

from tests.fakes import studies
from tuner.errors import UsageError
from tuner.metrics.objective import NAMES, find_objective
from tuner.values.interval import Interval
from tuner.values.measurement import Cost, Energy, Measurement

ENERGY = Energy(
    per_request_j=0.2,
    interval=Interval(low=0.19, high=0.21),
    sources={"gpu": 0.15, "cpu": 0.05},
    power_w=400.0,
    clock_mhz=900.0,
)


@pytest.fixture
def measured():
    """One launch of the toy server."""
    launch = studies.measurement(10.0, np.random.default_rng(0))
    return dataclasses.replace(
        launch,
        energy=ENERGY,
        cost=Cost(cpu_s=1.5, memory_mib_s=512.0, gpu_s=0.0, price=1.6),
        goodput=0.8 * launch.throughput_per_s,
        goodput_interval=Interval(low=700.0, high=1100.0),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_sampler_sees_a_positive_number_that_falls_as_the_value_gets_better(name, measured):
    """Latencies as they are; throughput as the time between two answers, in ms like the others."""
    objective = find_objective(name)
    if name == "rate":
        measured = dataclasses.replace(measured, rate_per_s=measured.throughput_per_s)
    seen = objective.to_minimise(measured)
    assert seen > 0
    assert seen == pytest.approx(
        objective.value(measured) if objective.is_minimised else 1e3 / objective.value(measured)
    )


def test_people_see_each_objective_in_its_own_unit(measured):
    """Requests per second for throughput, ms for the others."""
    assert find_objective("throughput").value(measured) == measured.throughput_per_s
    assert find_objective("p99").value(measured) == measured.p99_ms
    assert find_objective("goodput").value(measured) == 0.8 * measured.throughput_per_s
    assert find_objective("cost").value(measured) == 1.6
    assert find_objective("throughput").axis == "throughput (requests/s)"
    assert (find_objective("energy").value(measured), find_objective("energy").unit) == (
        0.2,
        "J/request",
    )
    assert find_objective("energy").interval(measured) == ENERGY.interval


def test_the_better_of_two_values_follows_the_direction():
    """Less of a latency, more of a throughput."""
    assert find_objective("mean").better(10.0, 11.0) == 10.0
    assert find_objective("throughput").better(10.0, 11.0) == 11.0


def test_throughput_has_the_relative_interval_of_the_mean(measured):
    """In a closed loop throughput is N / mean, so the ends turn over."""
    mean, ends = find_objective("mean"), find_objective("throughput").interval(measured)
    product = measured.mean_ms * measured.throughput_per_s
    assert ends.low * mean.interval(measured).high == pytest.approx(product)
    assert ends.low < measured.throughput_per_s < ends.high


def test_time_per_item_has_the_relative_interval_of_the_mean(measured):
    """Measured time over items: in a closed loop it is mean / (N x client batch)."""
    measured = dataclasses.replace(measured, client_batch=4)
    objective = find_objective("time-per-item")
    value, ends = objective.value(measured), objective.interval(measured)
    assert value == pytest.approx(1e3 / (4 * measured.throughput_per_s))
    assert ends.low / value == pytest.approx(measured.mean_interval.low / measured.mean_ms)
    assert ends.high / value == pytest.approx(measured.mean_interval.high / measured.mean_ms)


def test_consistency_is_the_spread_with_its_own_interval(measured):
    """p95 - p5 of the latencies, in ms."""
    objective = find_objective("consistency")
    assert objective.value(measured) == measured.spread_ms
    assert objective.interval(measured) == measured.spread_interval


def test_the_highest_rate_is_that_of_the_open_loop(measured):
    """It has no interval of its own, and a closed loop has none."""
    assert math.isnan(find_objective("rate").value(measured))
    measured = dataclasses.replace(measured, rate_per_s=640.0)
    assert find_objective("rate").value(measured) == 640.0
    assert find_objective("rate").interval(measured) == Interval(low=None, high=None)


def test_an_unknown_objective_names_the_nearest():
    """And all that there are."""
    with pytest.raises(UsageError, match=r"'p98' is not known, did you mean 'p9[59]'\?.*mean, p50"):
        find_objective("p98")


def test_energy_that_was_not_counted_is_no_number(measured):
    """Neither a value nor an interval, and it comes back from the store as it was."""
    without = dataclasses.replace(measured, energy=None)
    assert math.isnan(find_objective("energy").value(without))
    assert find_objective("energy").interval(without) == Interval(low=None, high=None)
    for launch in (measured, without):
        assert Measurement.from_json(json.loads(json.dumps(launch.as_json()))) == launch
    older = without.as_json()
    del older["energy"]
    assert Measurement.from_json(older) == without


@pytest.mark.parametrize("name", ["cost", "cpu", "memory"])
def test_a_cost_has_the_relative_interval_of_the_mean(measured, name):
    """What is held is held for as long as the answers take."""
    objective = find_objective(name)
    value, ends = objective.value(measured), objective.interval(measured)
    assert ends.low / value == pytest.approx(measured.mean_interval.low / measured.mean_ms)
    assert ends.high / value == pytest.approx(measured.mean_interval.high / measured.mean_ms)


@pytest.mark.parametrize("name", ["goodput", "cost", "cpu", "memory", "p99"])
def test_what_a_launch_cannot_tell_is_no_number(measured, name):
    """Neither a value nor an interval."""
    without = dataclasses.replace(
        measured,
        goodput=None,
        goodput_interval=Interval(low=None, high=None),
        cost=None,
        p99_effective=458.0,
    )
    assert math.isnan(find_objective(name).value(without))
    assert find_objective(name).interval(without) == Interval(low=None, high=None)
    assert Measurement.from_json(json.loads(json.dumps(without.as_json()))) == without
