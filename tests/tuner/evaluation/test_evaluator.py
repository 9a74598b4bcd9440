"""The bench with a real engine and a real client: launches, deaths, restarts, nothing left behind."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from tuner.errors import LaunchFailed, LoadGeneratorFailed, UsageError
from tuner.evaluation.evaluation import Startup
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.workload import FIRST_RATE_PER_S
from tuner.launching.engine import EngineInfo
from tuner.launching.replica_facts import ReplicaFacts
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.measurement.interference import InterferenceDetector
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem
from tuner.values.configuration import Configuration
from tuner.values.measurement import HostNoise

CONCURRENCY = 4
ONE = Configuration({"replica.count": 1, "batching.max_size": 4})


SETTINGS = MeasurementSettings(seconds=0.4, warmup_s=0.1)
STEADY = dataclasses.replace(SETTINGS, seconds=2.0)
"""Long enough for Little's law, whatever a busy machine does at its ends."""


def requests_of(served: EngineInfo, client_batch: int = 1) -> Payloads:
    target = TargetSettings(model="echo", concurrency=CONCURRENCY, client_batch=client_batch)
    return problem.payloads_of(target, problem.find_spec("echo"), served, seed=0)


@pytest.fixture(scope="module")
def running() -> Iterator[Evaluator]:
    with Evaluator(model="echo", concurrency=CONCURRENCY, settings=SETTINGS) as made:
        served = made.start()
        made.send(requests_of(served))
        yield made


@pytest.fixture
def bench(running: Evaluator) -> Evaluator:
    """The bench of all tests, with the load that each of them begins with."""
    running.settings, running.open_load, running.stream = SETTINGS, None, 0
    return running


def server_pid(bench: Evaluator) -> int:
    assert bench._engine is not None
    return bench._engine.facts.pid


def test_a_launch_is_measured(bench: Evaluator) -> None:
    """A configuration that works has a measurement, its requests, and what the host told."""
    bench.settings = STEADY
    launch = bench.evaluate(ONE)
    assert launch.outcome.status == "ok"
    assert launch.measurement is not None
    assert launch.records is not None
    assert launch.measurement.little_error < 0.2
    assert launch.measurement.seconds == pytest.approx(2.0, abs=0.05)
    assert launch.measurement.noise.server_cpu_s is not None
    assert launch.loaded_s == pytest.approx(launch.measurement.warmup_s + 2.0, abs=0.05)
    assert launch.startup_s > 0


def test_a_load_that_others_disturb_is_driven_again(bench: Evaluator) -> None:
    """A process that is neither the server's nor the tuner's takes what it can get of the machine."""
    before = bench._phases.others
    bench._phases.others = InterferenceDetector(os.cpu_count() or 1)
    for _ in range(5):  # what is usual: nothing
        bench._phases.others.is_disturbed(HostNoise(neighbour_cpu_s=0.0, steal_s=0.0), loaded_s=4.0)
    spins = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        launch = bench.evaluate(ONE)
    finally:
        spins.kill()
        spins.wait()
        bench._phases.others = before
    assert launch.measurement is not None
    assert launch.measurement.repeats >= 1
    assert launch.measurement.noise.neighbour_cpu_s > 0.05
    assert launch.loaded_s > 2 * launch.measurement.seconds
    assert [block.client_cpu_s > 0 for block in launch.measurement.blocks] == [True] * 4


@pytest.mark.parametrize(("disturbed", "kept"), [(0, 4), (1, 3), (2, 2), (3, 4)])
def test_disturbed_slices_are_left_out_unless_most_are(
    bench: Evaluator, disturbed: int, kept: int
) -> None:
    """What is left of a launch is measured as long as it is, and says how many are not in it."""
    bench.evaluate(ONE)
    assert bench._engine is not None
    slices = [
        dataclasses.replace(
            bench.time_slice(bench._engine, seconds=0.1, warmup_s=0.05, is_new=False),
            repeats=0,
            is_disturbed=number < disturbed,
        )
        for number in range(4)
    ]
    launch = bench.join_slices(ONE, slices, Startup(0.0, 1.0))
    assert launch.measurement is not None
    assert launch.measurement.seconds == pytest.approx(0.1 * kept, abs=0.02)
    assert launch.measurement.repeats == 4 - kept
    assert [mean_ms > 0 for mean_ms in launch.slices_ms].count(True) == kept
    assert len(launch.slices_ms) == 4  # those of both sides stand at the same places


@pytest.mark.parametrize(
    ("objective", "lengthens"), [("p99", True), ("p99", False), ("mean", True)]
)
def test_a_launch_whose_p99_needs_more_requests_is_measured_for_longer(
    bench: Evaluator, monkeypatch: pytest.MonkeyPatch, objective: str, lengthens: bool
) -> None:
    """0.4 s are too short for one: where it is needed, up to six times as long; the time counts."""
    settings = MeasurementSettings(seconds=0.4, warmup_s=0.1, objective=objective)
    monkeypatch.setattr(bench, "settings", settings)
    monkeypatch.setattr(bench, "lengthens", lengthens)
    launch = bench.evaluate(ONE)
    assert launch.measurement is not None
    if objective == "p99" and lengthens:
        assert launch.measurement.seconds == pytest.approx(2.4, abs=0.05)
        assert launch.loaded_s > 2.4 + 0.4
    else:
        assert launch.measurement.seconds == pytest.approx(0.4, abs=0.05)
        assert not launch.measurement.has_p99


def test_a_launch_that_is_no_rival_ends_early(bench: Evaluator) -> None:
    """It has a measurement all the same, of the time that it lasted, and says so."""
    race = Race(look_s=0.1, limits_ms=(1e-3, 1e-3, 1e-3))
    measured = bench.evaluate(ONE, race).measurement
    assert measured is not None
    assert measured.ended_early
    assert measured.seconds == pytest.approx(0.1, abs=0.01)
    rival = bench.evaluate(ONE, Race(look_s=0.1, limits_ms=(1e6, 1e6, 1e6))).measurement
    assert rival is not None
    assert not rival.ended_early


def test_requests_of_several_items_are_served_and_counted(bench: Evaluator) -> None:
    """Each request holds three items, also where a batch holds two, and Little's law is as ever."""
    served = bench.start()
    several, one = requests_of(served, client_batch=3), requests_of(served)
    bench.send(several)
    bench.settings = STEADY
    launch = bench.evaluate(Configuration({**ONE, "batching.max_size": 2}))
    bench.send(one)
    assert launch.measurement is not None
    assert launch.measurement.errors == 0
    assert launch.measurement.client_batch == 3
    assert launch.measurement.items_per_s == 3 * launch.measurement.throughput_per_s
    assert launch.measurement.little_error < 0.2


def test_the_engine_lives_on_between_launches(bench: Evaluator) -> None:
    """Two launches are two sets of replicas in one gateway."""
    bench.evaluate(ONE)
    before = server_pid(bench)
    bench.evaluate(Configuration({**ONE, "replica.count": 2}))
    assert server_pid(bench) == before


def test_a_server_that_dies_under_load_is_one_failed_launch(bench: Evaluator) -> None:
    """The launch in which it died is a crash with a reason; the next one has a server again."""
    bench.evaluate(ONE)
    timer = threading.Timer(0.3, os.kill, (server_pid(bench), signal.SIGKILL))
    timer.start()
    launch = bench.evaluate(ONE)
    timer.join()
    assert (launch.outcome.status, launch.outcome.cause) == ("failed", "crash")
    assert "SIGKILL" in launch.outcome.reason
    assert launch.measurement is None
    assert bench.evaluate(ONE).outcome.status == "ok"


def test_a_lost_load_generator_is_not_the_configurations_fault(bench: Evaluator) -> None:
    """The load is driven again by another process, and the launch is measured."""
    bench.evaluate(ONE)
    lost = bench._phases.generator.pid
    assert lost is not None
    timer = threading.Timer(0.3, os.kill, (lost, signal.SIGKILL))
    timer.start()
    launch = bench.evaluate(ONE)
    timer.join()
    assert launch.outcome.status == "ok"
    assert launch.measurement is not None
    assert bench._phases.generator.pid != lost


def test_a_fresh_launch_has_a_server_of_its_own(bench: Evaluator) -> None:
    """It is measured like any other, and its server is gone afterwards."""
    launch = bench.evaluate_on_new_server(ONE)
    assert launch.outcome.status == "ok"
    assert bench.address is None


def test_an_open_loop_is_measured_from_when_requests_were_due(bench: Evaluator) -> None:
    """At a rate that the echo serves: its figures, its rate, and as many answers as requests were due."""
    bench.open_load = OpenLoopPlan(rate_per_s=400.0, spread="burst")
    launch = bench.evaluate(ONE)
    bench.open_load = None
    assert launch.measurement is not None, launch.outcome
    assert launch.measurement.rate_per_s == 400.0
    assert launch.measurement.little_error is None
    assert launch.records is not None
    assert not np.array_equal(launch.records.intended_s, launch.records.started_s)
    assert bench.evaluate(ONE).measurement.rate_per_s is None


def test_launches_of_one_stream_have_the_same_arrivals(bench: Evaluator) -> None:
    """So that no configuration is luckier than another; another stream has others."""
    bench.open_load = OpenLoopPlan(rate_per_s=300.0)
    due = []
    for stream in (0, 0, 1):
        bench.stream = stream
        launch = bench.evaluate(ONE)
        assert launch.records is not None
        due.append(np.sort(launch.records.intended_s)[:50].tolist())
    assert due[0] == due[1] != due[2]


def test_a_rate_that_cannot_be_served_is_an_overload(bench: Evaluator) -> None:
    """Infeasible, with the rate; the launch costs its time, and not that of all that waits."""
    bench.open_load = OpenLoopPlan(rate_per_s=200_000.0, spread="constant")
    launch = bench.evaluate(ONE)
    bench.open_load = None
    assert (launch.outcome.status, launch.outcome.cause) == ("infeasible", "overload")
    assert launch.outcome.reason.startswith("cannot serve 200,000 requests/s: it fell behind by")
    assert launch.measurement is None
    assert bench.evaluate(ONE).outcome.status == "ok"


def test_the_highest_rate_that_keeps_a_limit_is_found(bench: Evaluator) -> None:
    """Of several that one launch tries; the figures are those of the highest, and it keeps the limit."""
    bench.settings = dataclasses.replace(SETTINGS, objective="rate", slo_ms=100.0)
    bench.open_load = OpenLoopPlan(rate_per_s=FIRST_RATE_PER_S)
    launch = bench.evaluate(ONE)
    bench.settings = dataclasses.replace(SETTINGS, objective="rate", slo_ms=1e-3)
    bench._rate_per_s = 30.0  # the least that 0.4 s can show is 25: no long way down
    hopeless = bench.evaluate(ONE)
    assert launch.measurement is not None, launch.outcome
    assert launch.measurement.rate_per_s > FIRST_RATE_PER_S
    assert launch.measurement.p99_ms <= 100.0
    assert 2 * 0.5 < launch.loaded_s < 8 * 2
    assert (hopeless.outcome.status, hopeless.outcome.cause) == ("infeasible", "constraint")
    assert "p99 is above the limit of 0.001 ms (--slo-ms) even at" in hopeless.outcome.reason
    assert hopeless.measurement is None


class Rejecting:
    """A launcher whose servers reject every configuration."""

    is_restarted = False

    def start(self, configuration: Configuration | None) -> None:
        raise UsageError(f"{configuration}: no such setting")

    def close(self) -> None:
        pass


def test_a_configuration_that_a_new_server_rejects_is_a_failed_launch() -> None:
    """As one that the running server rejects; at the first start it is an error of use."""
    launcher = Rejecting()
    with Evaluator(
        model="echo",
        concurrency=1,
        settings=SETTINGS,
        launcher=launcher,  # type: ignore[arg-type]
    ) as idle:
        with pytest.raises(UsageError):
            idle.evaluate(ONE)
        idle.start_s = 1.0
        for launch in (idle.evaluate(ONE), idle.evaluate_on_new_server(ONE)):
            assert (launch.outcome.status, launch.outcome.cause) == ("infeasible", "constraint")
            assert "no such setting" in launch.outcome.reason


class Mute:
    """An engine that lives, and answers 500 when it is asked for its replicas."""

    stopped = False

    def replica_facts(self) -> ReplicaFacts:
        raise LaunchFailed(
            "crash", "the engine answered 500 to GET /admin/replicas: no such replica"
        )

    def is_running(self) -> bool:
        return True

    def stop(self) -> None:
        self.stopped = True


def test_a_living_engine_that_answers_with_an_error_has_not_ended() -> None:
    """Also where the load could not be driven: the reason is its answer, and another one is started."""
    idle = Evaluator(model="echo", concurrency=1, settings=MeasurementSettings())
    engine = Mute()
    idle._engine = engine  # type: ignore[assignment]
    with idle:
        failed = idle.fail_phase(
            engine,  # type: ignore[arg-type]
            Configuration({}),
            LoadGeneratorFailed("no connection"),
            Startup(started_at=0.0, startup_s=0.0),
        )
    outcome = failed.outcome
    assert (outcome.status, outcome.cause) == ("failed", "crash")
    assert "answered 500" in outcome.reason
    assert "ended" not in outcome.reason
    assert engine.stopped
