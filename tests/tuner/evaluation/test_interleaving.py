"""Engines that are up at once: slices that alternate, with real servers and a real client."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator

import pytest

from tuner.errors import LaunchFailed
from tuner.evaluation.evaluator import Evaluator
from tuner.evaluation.interleaving import Arm, CannotInterleave, InterleavedRounds, evaluate_alone
from tuner.launching import machine
from tuner.launching.engine import EngineInfo, RunningEngine
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.target import TargetSettings
from tuner.study import problem
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.processes

ONE = Configuration({"replica.count": 1, "batching.max_size": 4})
TWO = Configuration({"replica.count": 2, "batching.max_size": 4})
LATE = Configuration({"replica.count": 1, "batching.max_size": 4, "batching.timeout_us": 1000})
"""Of one client a batch never fills: less than 1,000 requests a second, too few for a p99 after 0.4 s."""
SETTINGS = MeasurementSettings(seconds=0.4, warmup_s=0.1)


@pytest.fixture(scope="module")
def made() -> Iterator[Evaluator]:
    with Evaluator(model="echo", concurrency=4, settings=SETTINGS) as made:
        target = TargetSettings(model="echo", concurrency=4)
        made.send(problem.payloads_of(target, problem.find_spec("echo"), made.start(), seed=0))
        yield made


@pytest.fixture
def bench(made: Evaluator) -> Evaluator:
    """The bench of all tests, with the load that each of them begins with."""
    made.settings, made.open_load, made.concurrency = SETTINGS, None, 4
    return made


def opened(bench: Evaluator, **configurations: Configuration) -> InterleavedRounds:
    contenders = {
        role: Arm(launcher=bench.launcher, configuration=configuration)
        for role, configuration in configurations.items()
    }
    return InterleavedRounds.open(bench, contenders, latency_s=1e-3)


@pytest.fixture(scope="module")
def pair(made: Evaluator) -> Iterator[InterleavedRounds]:
    """Two engines that are up for several tests."""
    with opened(made, default=ONE, best=LATE) as found:
        yield found


def servers(found: InterleavedRounds) -> dict[str, int]:
    """Process of each role's server."""
    return {role: one.engine.pids[0] for role, one in found._residents.items()}


def test_a_round_is_one_launch_of_each_in_slices_that_alternate(bench: Evaluator) -> None:
    """New replicas for each round behind the same servers, which end with it; the bench goes on."""
    with opened(bench, default=ONE, best=TWO) as found:
        assert found.arms == ("default", "best")
        before = servers(found)
        replicas = []
        for order in (("default", "best"), ("best", "default")):
            launches = dict(found.round(order))
            assert list(launches) == list(order)
            for role, launch in launches.items():
                measured = launch.measurement
                assert measured is not None
                assert launch.configuration == {"default": ONE, "best": TWO}[role]
                assert len(launch.slices_ms) == 2 * found.slices.quartets
                slices = sum(one > 0.0 for one in launch.slices_ms)  # a disturbed one is left out
                assert measured.seconds == pytest.approx(slices * found.slices.seconds, abs=0.05)
                assert measured.requests == pytest.approx(
                    measured.throughput_per_s * measured.seconds, rel=0.05
                )
                assert len(measured.blocks) == pytest.approx(10 * measured.seconds, abs=1)
                assert measured.noise.server_cpu_s is not None
            replicas.append({pid for one in found._residents.values() for pid in one.pids[1:]})
        assert servers(found) == before
        assert len(replicas[0]) == 3
        assert not replicas[0] & replicas[1]
    for pid in before.values():
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert bench.evaluate(ONE).outcome.status == "ok"


@pytest.mark.usefixtures("bench")
def test_an_engine_that_ends_fails_its_launch_and_comes_back(pair: InterleavedRounds) -> None:
    """The other one is measured all the same."""
    os.kill(servers(pair)["best"], signal.SIGKILL)
    launches = dict(pair.round(("default", "best")))
    assert launches["default"].outcome.status == "ok"
    # It may be seen before its slices.
    assert launches["best"].outcome.status in {"ok", "failed"}
    launches = dict(pair.round(("best", "default")))
    assert {one.outcome.status for one in launches.values()} == {"ok"}


def test_a_p99_gets_the_requests_that_it_needs(bench: Evaluator, pair: InterleavedRounds) -> None:
    """More slices of both, where one of them falls short."""
    bench.settings = dataclasses.replace(SETTINGS, objective="p99")
    bench.concurrency = 1
    least_s = 2 * pair.slices.quartets * pair.slices.seconds
    launches = dict(pair.round(("default", "best")))
    for launch in launches.values():
        assert launch.measurement is not None
        assert launch.measurement.seconds > least_s + 0.1
        assert launch.measurement.has_p99 or launch.measurement.seconds > 2.0


@pytest.mark.parametrize("rate_per_s", [200.0, 20_000.0])
def test_an_open_loop_is_driven_whole(
    bench: Evaluator, pair: InterleavedRounds, rate_per_s: float
) -> None:
    """Its queue takes its time to be as long as the rate makes it: a server that falls behind is seen to."""
    bench.open_load = OpenLoopPlan(rate_per_s=rate_per_s, spread="constant")
    launches = dict(pair.round(("default", "best")))
    causes = {launch.outcome.cause for launch in launches.values()}
    assert causes == ({None} if rate_per_s < 1000 else {"overload"})
    assert all(not launch.slices_ms for launch in launches.values())


def test_in_turn_each_has_an_engine_of_its_own_launch(bench: Evaluator) -> None:
    """Started for it, sent what it is to be sent, and ended."""
    sent = []

    def payloads_of(served: EngineInfo) -> Payloads:
        sent.append(served.model)
        target = TargetSettings(model="echo", concurrency=4)
        return problem.payloads_of(target, problem.find_spec("echo"), served, seed=0)

    contenders = {
        role: Arm(launcher=bench.launcher, configuration=one, payloads_of=payloads_of)
        for role, one in (("A", ONE), ("B", TWO))
    }
    bench.stop_engine()
    launches = [evaluate_alone(bench, contenders[role]) for role in ("B", "A")]
    assert [one.configuration for one in launches] == [TWO, ONE]
    assert [one.outcome.status for one in launches] == ["ok", "ok"]
    assert sent == ["echo", "echo"]


def test_a_load_that_cannot_be_cut_is_driven_whole(
    bench: Evaluator, pair: InterleavedRounds
) -> None:
    """A number of requests."""
    bench.settings = MeasurementSettings(requests=200, warmup_s=0.1)
    launches = dict(pair.round(("default", "best")))
    assert [launch.measurement.requests for launch in launches.values()] == [200, 200]


def test_what_cannot_be_up_at_once_is_said_and_nothing_is_left(
    bench: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One GPU's clock, a configuration that does not start, and memory for one of them only."""
    fast, slow = ({**ONE, "accelerator.clock_mhz": clock} for clock in (1980, 990))
    with pytest.raises(CannotInterleave, match="set its clock to different values"):
        opened(bench, default=Configuration(fast), best=Configuration(slow))
    start = bench.launcher.start

    def starts_one(configuration: Configuration) -> RunningEngine:
        if configuration == TWO:
            raise LaunchFailed("start", "no room on the GPU")
        return start(configuration)

    with monkeypatch.context() as patch:
        patch.setattr(bench.launcher, "start", starts_one)
        with pytest.raises(
            CannotInterleave, match=r"best does not start alongside .* no room on the"
        ):
            opened(bench, default=ONE, best=TWO)
    assert bench.address is None
    monkeypatch.setattr(machine, "free_mb", lambda: 0.1 * machine.read().memory_mb + 1.0)
    with pytest.raises(
        CannotInterleave, match=r"do not fit into memory together: one needs \d+ MiB"
    ):
        opened(bench, default=ONE, best=TWO)
