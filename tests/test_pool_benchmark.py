"""What no schedule can exceed: the bounds of the benchmark of pools, against schedules that there are."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import sys

import numpy as np
import pytest

from tests.tuner.evaluation.scenarios.test_arrivals import STREAM, scenario
from tuner.evaluation.scenarios import arrivals, emulated
from tuner.evaluation.scenarios.values import REFERENCE

pytestmark = pytest.mark.slow

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"
DEADLINE_S = 0.1


@pytest.fixture(name="bound")
def _bound(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    yield importlib.import_module("pool_bound")
    sys.modules.pop("pool_bound", None)


@pytest.fixture(name="fifo")
def _fifo(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(BENCHMARKS / "peers")
    yield importlib.import_module("serve_fifo")
    sys.modules.pop("serve_fifo", None)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("rate", [60.0, 900.0])
def test_the_fifo_answers_everything_and_keeps_to_the_budget(
    fifo, workers: int, rate: float
) -> None:
    """Fifty-two models, memory for ten."""
    stream = dataclasses.replace(STREAM, rate_per_s=rate)
    made = dataclasses.replace(scenario(stream, seconds=3.0), pages=70, workers=workers)
    found, _ = emulated.run(made, make=lambda one: fifo.Fifo(emulated.settings_of(one)))
    (one,) = found.streams.values()
    assert one.in_time + one.late == one.requests
    assert found.work.loads >= 50
    assert found.work.most_pages <= 70


@pytest.fixture(name="machine")
def _machine(bound):
    return bound.Machine(
        slots=10,
        load_s=REFERENCE.load_s,
        batch_s=REFERENCE.batch_s,
        window_s=DEADLINE_S - REFERENCE.batch_s[1],
    )


def by_model(traffic: arrivals.ScenarioArrivals, models: int) -> list[np.ndarray]:
    return [traffic.at_s[traffic.models == place] for place in range(models)]


@pytest.mark.parametrize("rate", [60.0, 250.0, 900.0])
@pytest.mark.parametrize("exponent", [0.0, 1.0])
def test_no_schedule_answers_more_than_the_bound(
    bound, machine, rate: float, exponent: float
) -> None:
    """Fifty models, ten of which fit into memory."""
    stream = dataclasses.replace(STREAM, rate_per_s=rate, exponent=exponent)
    seconds = 5.0 if rate == 60.0 else 2.0  # enough to load all models, or to load none twice
    made = dataclasses.replace(scenario(stream, seconds=seconds), pages=70, workers=1)
    found, _ = emulated.run(made)
    (one,) = found.streams.values()
    most = bound.clairvoyant(by_model(arrivals.draw_arrivals(made), 52), machine, seconds)
    assert one.in_time <= most <= one.requests
    if rate == 60.0:
        assert most == one.requests, "as many as can be loaded for"


def test_the_bound_of_requests_that_come_together_is_what_there_is_time_for(bound, machine) -> None:
    """A hundred models at one instant, memory for ten: ten are there, twelve can be loaded in time, one at a time."""
    at_once = [np.array([0.0])] * 100
    most = bound.clairvoyant(at_once, machine, 0.0)
    loads = (machine.window_s + REFERENCE.batch_s[16]) / machine.load_s
    assert 10 <= most <= loads + 1.0, "nothing is in memory before"


def test_what_comes_last_may_be_done_somewhat_later(bound, machine) -> None:
    """Six requests within a second, nine seconds' time for each: all can be answered."""
    patient = dataclasses.replace(machine, slots=1, load_s=1.0, window_s=9.0)
    six = [np.array([0.9])] * 6
    assert bound.clairvoyant(six, patient, 1.0) == 6.0


def test_without_knowing_the_future_a_load_serves_those_who_wait(bound, machine) -> None:
    """The model with most requests waiting is loaded, the oldest one evicted: no more than the bound, and near it."""
    rate, models, seconds = 300.0, 900, 60.0
    rng = np.random.default_rng(3)
    at_s = np.sort(rng.random(int(rate * seconds)) * seconds)
    asked = rng.integers(models, size=len(at_s))
    held: dict[int, None] = {}
    waiting: dict[int, list[float]] = {}
    served, next_load_s = 0, 0.0
    for now_s, model in zip(at_s.tolist(), asked.tolist(), strict=True):
        while next_load_s <= now_s:
            waiting = {
                one: left
                for one, times in waiting.items()
                if (left := [t for t in times if t + machine.window_s >= next_load_s])
            }
            if waiting:
                chosen = max(waiting, key=lambda one: len(waiting[one]))
                served += len(waiting.pop(chosen))
                held[chosen] = None
                if len(held) > machine.slots:
                    del held[next(iter(held))]
            next_load_s += machine.load_s
        if model in held:
            served += 1
        else:
            waiting.setdefault(model, []).append(now_s)
    most = bound.online(rate, models, machine) * seconds
    assert 0.8 * most <= served <= 1.02 * most
    assert bound.online(50.0, 5, machine) == 50.0, "all fit into memory"
