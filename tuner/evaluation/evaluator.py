"""Evaluator of configurations, with one engine and one load generator.

An evaluation is new replicas, a warm-up, a measured phase, and the replicas' report. Gateway and
client live on, except in `launch_fresh`. A dead server is one failed evaluation; the next starts
another. Use it as a context manager, from one thread.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from typing import Self

from tuner.errors import LaunchFailed, LoadGeneratorFailed, LoadGeneratorLost
from tuner.evaluation import outcomes
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.launching import machine, statistics
from tuner.launching.engine import EngineInfo, Launcher, RunningEngine
from tuner.launching.engine_process import LuthierLauncher
from tuner.launching.replica_facts import ReplicaFacts
from tuner.load_generator import concatenation
from tuner.load_generator.generator import LoadGenerator, PhaseResult
from tuner.load_generator.multi_model_payloads import MultiModelPayloads
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan, PhasePlan, Race, Warmup
from tuner.measurement import energy, host, max_rate_search, meters, summary
from tuner.measurement.interference import InterferenceDetector
from tuner.measurement.meters import EnergyMeter
from tuner.measurement.outcome import REJECTIONS, EvaluationRequirements, measure_outcome, no_rate
from tuner.metrics import prices, tail_latency
from tuner.metrics.prices import DEFAULT, Prices
from tuner.settings.measurement import RATE_WARMUP_S, SETTLING_S, MeasurementSettings
from tuner.settings.workload import MAX_IN_FLIGHT, RATE
from tuner.values.configuration import Configuration
from tuner.values.measurement import MIN_FOR_P99, HostNoise, Measurement
from tuner.values.request_records import RequestRecords
from tuner.values.trial import OK, Outcome

WARMUP_RESPONSES = 3
RESPONSES = 4
"""Fewest mean responses per connection, unless a time was set."""
MAX_TIMES = 6.0
"""Maximum multiple of the set seconds, for a p99 with too few requests."""
FIRST_RATE_PER_S = 100.0
"""First rate of a search without prior knowledge."""
GUESSING_CLIENTS, GUESSING_S, GUESSED_SHARE = 16, 0.3, 0.8
"""Closed loop that estimates the first rate."""
MIN_PATIENCE_S, PATIENCE_TIMES = 1.0, 10.0
"""Timeout in a rate search: at least this, else a multiple of the limit."""
OF_THE_RATE = frozenset({"overload", "errors", "timeout"})
"""Causes that a lower rate may avoid."""
MIN_OPEN, OPEN_TIMES = 64, 8
"""In-flight limit of the final open loop: this many, or a multiple of `concurrency`."""
MAX_REPEATS = 2
"""Maximum repeats of a disturbed phase."""
OPEN_S, OPEN_WARMUP_S = 1.2, 0.5
"""Minimum seconds of an open loop and its warm-up, unless set."""
STREAMS = 1_000_003
"""Random streams per seed."""
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Evaluation:
    """Result of one evaluation."""

    configuration: Configuration
    outcome: Outcome
    measurement: Measurement | None
    """None unless ok; limits are not checked here."""
    records: RequestRecords | None
    """Every request, if a phase ran."""
    launch_s: float
    loaded_s: float
    """Warm-up and measured time; 0 without a complete phase."""
    started_at: float
    """Unix time."""
    slices_ms: tuple[float, ...] = ()
    """Mean latency of each time slice, 0 for one left out; empty without slices."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObservedPhase:
    """Phase with replica facts on both sides."""

    before: ReplicaFacts
    load: PhaseResult
    after: ReplicaFacts
    gateway_cpu_s: float | None
    """CPU time of the engine without replicas, if readable."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeSlice:
    """Time slice on a running engine."""

    plan: PhasePlan
    load: PhaseResult
    noise: HostNoise
    before: ReplicaFacts
    after: ReplicaFacts
    repeats: int = 0
    """Earlier tries, disturbed by neighbours."""
    is_disturbed: bool = False
    """Whether the last try was disturbed too."""


class Evaluator:
    """Evaluator with one engine and one load generator.

    Args:
        launcher: None: Luthier's own engine.
        open_load: open loop with at most `concurrency` in flight; None: a closed loop.
    """

    def __init__(
        self,
        *,
        model: str,
        concurrency: int,
        settings: MeasurementSettings,
        launcher: Launcher | None = None,
        prices: Prices = DEFAULT,
        open_load: OpenLoopPlan | None = None,
    ) -> None:
        self.model = model
        self.concurrency = concurrency
        self.settings = settings
        self.open_load = open_load
        self.stream = 0
        """Stream of random arrivals.
        Evaluations of one stream share a schedule, so none is luckier."""
        self._rate_per_s: float | None = None
        """Highest rate of the last evaluation in a rate search."""
        self.client_batch = 1
        """Items per request."""
        self.varies = False
        """Whether requests differ in size."""
        self.sent = ""
        """Description of the payloads."""
        self.lengthens = True
        """Whether to measure longer for a required p99 with too few requests."""
        self.prices = prices
        self._requests: ScenarioRequests | None = None
        """Requests of a scenario; None for one model."""
        self._mixture: MultiModelPayloads | None = None
        """Scenario requests that the generator has."""
        self._has_gpu = False
        self._is_new = True
        """Whether the engine's process has had no requests yet."""
        self._is_here = True
        """Whether the engine runs on this machine."""
        self._cores = machine.read().cores
        self._others = InterferenceDetector(os.cpu_count() or 1)  # all cores of the machine
        self._generator = LoadGenerator()
        self._launcher: Launcher = launcher or LuthierLauncher(model)
        self._engine: RunningEngine | None = None
        self._first: Configuration | None = None
        self.start_s: float | None = None
        """Seconds of the first start; None before it."""
        self._owned = contextlib.ExitStack()
        self._counters: tuple[meters.EnergyCounter, ...] | None = None
        """Energy counters; None until the device is known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self, configuration: Configuration | None = None) -> EngineInfo:
        """Start the engine and describe it.

        Args:
            configuration: None: that of the first start, else the engine's defaults.

        Raises:
            WrongUse, LaunchFailed: the server does not start, with its own line.
        """
        self.stop_engine()
        self._first = self._first or configuration
        before_s = time.monotonic()
        self._engine, self._is_new = self._launcher.start(configuration or self._first), True
        self.start_s = self.start_s or time.monotonic() - before_s
        served = self._engine.served()
        self._has_gpu = served.device not in {None, "cpu"}
        self._is_here = served.is_here
        if self._counters is None:
            self._counters = ()
            if served.is_here:
                opened = meters.open_counters(gpu=served.device != "cpu")
                self._counters = self._owned.enter_context(opened).counters
        return served

    def send(self, payloads: Payloads | ScenarioRequests) -> None:
        """Set what the following evaluations send."""
        self.client_batch, self.sent = payloads.client_batch, payloads.description
        self.varies = False
        if isinstance(payloads, ScenarioRequests):
            self._requests = payloads  # drawn for each stream and phase
        else:
            self._generator.set_payloads(payloads)
            self.varies = len(set(map(len, payloads.requests))) > 1

    @property
    def counted(self) -> tuple[str, ...]:
        """Descriptions of the energy counters."""
        return tuple(counter.text for counter in self._counters or ())

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and inference port of the running engine."""
        return None if self._engine is None else (self._engine.host, self._engine.port)

    def launch(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """Evaluate a configuration on the running engine, until `race` ends it."""
        started_at, before_s = time.time(), time.monotonic()
        try:
            engine = self._launched(configuration)
        except LaunchFailed as error:
            return self.refused(configuration, error, started_at, time.monotonic() - before_s)
        launch_s = time.monotonic() - before_s
        drive = functools.partial(self._loaded, race=race)
        return self._measured(engine, configuration, started_at, launch_s, drive)

    def launch_fresh(self, configuration: Configuration) -> Evaluation:
        """Evaluate a configuration on a new server; the current engine ends."""
        return self._fresh(configuration, self._loaded)

    def launch_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        """Evaluate a configuration on a new server under an open loop."""

        def drive(engine: RunningEngine) -> _JudgedPhase:
            plan = dataclasses.replace(self._closed(engine), seconds=seconds, requests=None)
            # Above the study's concurrency, so that requests queue in the server.
            most = min(MAX_IN_FLIGHT, max(MIN_OPEN, OPEN_TIMES * self.concurrency))
            plan = dataclasses.replace(plan, concurrency=most)
            return self._driven(engine, self._opened(plan, load))

        return self._fresh(configuration, drive)

    def _fresh(self, configuration: Configuration, drive: _RunPhase) -> Evaluation:
        started_at, before_s = time.time(), time.monotonic()
        self.stop_engine()
        try:
            self._engine, self._is_new = self._launcher.start(configuration), True
        except LaunchFailed as error:
            return self.refused(configuration, error, started_at, time.monotonic() - before_s)
        launch_s = time.monotonic() - before_s
        try:
            return self._measured(self._engine, configuration, started_at, launch_s, drive)
        finally:
            self.stop_engine()

    def observe(
        self,
        configuration: Configuration,
        *,
        concurrency: int,
        seconds: float,
        warmup_s: float | None = None,
    ) -> ObservedPhase:
        """Apply a configuration, and observe its replicas around a phase.

        Raises:
            LaunchFailed, LoadFailed: it failed.
        """
        engine = self._launched(configuration)
        before = engine.replica_facts()
        plan = self._closed(engine)
        warmup = plan.warmup
        if warmup_s is not None:
            warmup = dataclasses.replace(warmup, seconds=warmup_s)
        plan = dataclasses.replace(
            plan, concurrency=concurrency, seconds=seconds, requests=None, answers=0, warmup=warmup
        )
        gateway = host.read(engine.pids)
        load = self._generator.run(plan)
        used = host.noise_between(gateway, host.read(engine.pids))
        after = engine.replica_facts()
        return ObservedPhase(before=before, load=load, after=after, gateway_cpu_s=used.server_cpu_s)

    @property
    def why_alone(self) -> str | None:
        """Why two engines cannot run at once; None: they can."""
        return self._launcher.why_alone

    @property
    def is_cut(self) -> bool:
        """Whether phases can be cut into time slices.

        Not an open loop, whose queue builds up over the phase, nor with a request count or an
        energy counter in seconds.
        """
        is_timed = self.settings.requests is None and "energy" not in self.settings.names
        return self.open_load is None and is_timed

    def seconds_short(self, measured: Measurement) -> float:
        """Return how much longer to measure for a required p99, or 0."""
        most_s = MAX_TIMES * self.settings.measured_s
        is_needed = EvaluationRequirements.of(self.settings).needs_p99 and self.lengthens
        if not is_needed or measured.has_p99 or measured.seconds >= most_s * (1 - 1e-6):
            return 0.0
        wanted_s = tail_latency.seconds_for(
            MIN_FOR_P99, effective=measured.effective, seconds=measured.seconds
        )
        return min(wanted_s, most_s) - measured.seconds

    def measure(
        self,
        engine: RunningEngine,
        configuration: Configuration,
        *,
        launch_s: float,
        started_at: float,
        is_new: bool,
    ) -> Evaluation:
        """Evaluate the configuration of a running engine.

        Args:
            launch_s: seconds of its start.
            is_new: whether its process has had no requests yet and has to settle.
        """
        self._is_new = is_new
        return self._measured(engine, configuration, started_at, launch_s, self._loaded)

    @property
    def launcher(self) -> Launcher:
        """Launcher of the engine."""
        return self._launcher

    def slice(
        self,
        engine: RunningEngine,
        *,
        seconds: float,
        warmup_s: float,
        is_new: bool,
        idle: Sequence[int] = (),
    ) -> TimeSlice:
        """Run a time slice, and repeat it if neighbours disturb it.

        Args:
            warmup_s: at least; each connection also gets one response.
            is_new: whether its process has had no requests yet and has to settle.
            idle: processes of waiting engines.

        Raises:
            LaunchFailed, LoadFailed: it failed.
        """
        self._is_new = is_new
        plan = dataclasses.replace(
            self._closed(engine),
            seconds=seconds,
            answers=RESPONSES * self.concurrency,
            warmup=Warmup(seconds=warmup_s, round_trips=1, settling_s=SETTLING_S),
        )
        repeats = 0
        while True:
            found = self._observed(engine, plan, idle)
            loaded_s = found.load.measured_end_s
            is_disturbed = self._others.has_disturbed(found.noise, loaded_s=loaded_s)
            is_last = repeats == MAX_REPEATS
            if not is_disturbed or is_last or not self._others.may_repeat(loaded_s):
                return dataclasses.replace(found, repeats=repeats, is_disturbed=is_disturbed)
            repeats += 1

    def joined(
        self,
        configuration: Configuration,
        slices: Sequence[TimeSlice],
        *,
        launch_s: float,
        started_at: float,
    ) -> Evaluation:
        """Join an evaluation's time slices, without disturbed ones unless most are.

        `launch_s` is the time of the start.
        """
        plan, before, after = slices[0].plan, slices[0].before, slices[-1].after
        repeats = sum(one.repeats for one in slices)
        slices_ms = [_mean_ms(one.load) for one in slices]
        quiet = [one for one in slices if not one.is_disturbed]
        if 2 * len(quiet) >= len(slices):
            repeats += len(slices) - len(quiet)
            slices_ms = [
                0.0 if one.is_disturbed else mean_ms
                for one, mean_ms in zip(slices, slices_ms, strict=True)
            ]
            slices = quiet
        load = concatenation.concatenate([one.load for one in slices])
        loaded_s = sum(one.load.measured_end_s for one in slices)
        noise = host.together([one.noise for one in slices], share=load.measured_s / loaded_s)
        outcome, measurement = self._judged(plan, load, noise, before=before, after=after)
        if measurement is not None:
            measurement = dataclasses.replace(measurement, repeats=repeats)
            measurement = self._with_cost(configuration, measurement, load.measured_s)
        return Evaluation(
            configuration=configuration,
            outcome=outcome,
            measurement=measurement,
            records=load.records,
            launch_s=launch_s,
            loaded_s=loaded_s,
            started_at=started_at,
            slices_ms=tuple(slices_ms) if measurement else (),
        )

    def batch_times(self) -> statistics.BatchTimes:
        """Return the running engine's batch statistics, if supported."""
        if self._engine is None:
            return {}
        return statistics.batch_times(
            self._engine.host, self._engine.port, self._engine.served().model
        )

    def stop_engine(self) -> None:
        """End the engine, if any."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def close(self) -> None:
        """End both processes, and clean up after engines."""
        self._counters = None
        with self._owned:
            try:
                self._generator.close()
            finally:
                try:
                    self.stop_engine()
                finally:
                    self._launcher.close()

    def _launched(self, configuration: Configuration) -> RunningEngine:
        """Apply a configuration to the engine, or to a new one if it has ended."""
        if self._engine is not None and self._engine.is_running():
            self._engine.apply(configuration)
            self._is_new |= self._launcher.is_restarted
            return self._engine
        self.stop_engine()
        self._engine, self._is_new = self._launcher.start(configuration), True
        return self._engine

    def refused(
        self, configuration: Configuration, error: LaunchFailed, started_at: float, launch_s: float
    ) -> Evaluation:
        """Return a failed evaluation without a start."""
        if error.cause == "crash":
            self.stop_engine()
        return Evaluation(
            configuration=configuration,
            outcome=outcomes.of_refusal(error),
            measurement=None,
            records=None,
            launch_s=launch_s,
            loaded_s=0.0,
            started_at=started_at,
        )

    def _measured(
        self,
        engine: RunningEngine,
        configuration: Configuration,
        started_at: float,
        launch_s: float,
        drive: _RunPhase,
    ) -> Evaluation:
        found: _JudgedPhase | None = None
        try:
            try:
                found = drive(engine)
            except LoadGeneratorLost as error:  # not the configuration's fault: retry
                _log.warning("the load is driven again", extra={"fields": {"error": str(error)}})
                found = drive(engine)
            outcome = found.outcome
        except LaunchFailed as error:
            outcome = self._silent(engine, error)
        except LoadGeneratorFailed as error:
            outcome = self._without_load(engine, error)
        measurement = None if found is None else found.measurement
        if measurement is not None and found is not None:
            measurement = self._with_cost(configuration, measurement, found.load.measured_end_s)
        return Evaluation(
            configuration=configuration,
            outcome=outcome,
            measurement=measurement,
            records=None if found is None else found.load.records,
            launch_s=launch_s,
            loaded_s=0.0 if found is None else found.loaded_s,
            started_at=started_at,
        )

    def _with_cost(
        self, configuration: Configuration, measurement: Measurement, loaded_s: float
    ) -> Measurement:
        held = prices.allocated_by(configuration, cores=self._cores, has_gpu=self._has_gpu)
        cost = prices.cost_of(measurement, held, loaded_s=loaded_s, prices=self.prices)
        return dataclasses.replace(measurement, cost=cost)

    def _loaded(self, engine: RunningEngine, race: Race | None = None) -> _JudgedPhase:
        """Run and judge the study's workload."""
        plan, load = self._closed(engine), self.open_load
        if load is not None and self.settings.objective == RATE:
            return self._highest(engine, plan, load)
        if load is not None:
            plan = self._opened(plan, load)
            return self._lengthened(engine, plan, self._driven(engine, plan))
        found = self._driven(engine, dataclasses.replace(plan, race=race))
        if found.measurement is None or race is None:
            return self._lengthened(engine, plan, found)
        left_s = self.settings.measured_s - found.load.measured_s
        measured = dataclasses.replace(found.measurement, ended_early=left_s > race.look_s / 2)
        return dataclasses.replace(found, measurement=measured)

    def _lengthened(
        self, engine: RunningEngine, plan: PhasePlan, found: _JudgedPhase
    ) -> _JudgedPhase:
        """Measure longer while a required p99 has too few requests."""
        while plan.seconds is not None and (measured := found.measurement) is not None:
            more_s = self.seconds_short(measured)
            if not more_s:
                break
            longer = dataclasses.replace(plan, seconds=measured.seconds + more_s)
            again = self._driven(engine, longer)
            found = dataclasses.replace(again, loaded_s=found.loaded_s + again.loaded_s)
        return found

    def _highest(self, engine: RunningEngine, plan: PhasePlan, load: OpenLoopPlan) -> _JudgedPhase:
        """Search the highest rate within the limit; return the phase nearest to it."""
        slo_ms = self.settings.slo_ms
        assert slo_ms is not None, "checked by the settings"
        limit_s = 1e-3 * slo_ms
        patience_s = max(MIN_PATIENCE_S, PATIENCE_TIMES * limit_s)
        warmup_s = max(RATE_WARMUP_S, plan.warmup.seconds)
        plan = dataclasses.replace(
            plan,
            timeout_s=min(plan.timeout_s, patience_s),
            warmup=dataclasses.replace(plan.warmup, seconds=warmup_s),
        )
        search = max_rate_search.MaxRateSearch(
            self._rate_per_s or self._guessed_rate(plan, load),
            least_per_s=max_rate_search.MIN_REQUESTS / self.settings.measured_s,
        )
        kept: dict[float, _JudgedPhase] = {}
        last: _JudgedPhase | None = None
        loaded_s = 0.0
        while (rate := search.next_per_s) is not None:
            at_rate = dataclasses.replace(load, rate_per_s=rate)
            found = self._tried(engine, self._opened(plan, at_rate))
            last = found or last
            if found is None:
                search.tell(is_kept=False)
                continue
            loaded_s += found.loaded_s
            if found.outcome.cause not in {None, *OF_THE_RATE}:
                return dataclasses.replace(found, loaded_s=loaded_s)
            is_kept = found.measurement is not None and max_rate_search.is_kept(
                found.load.records,
                limit_s=limit_s,
                warmup_s=found.load.warmup_end_s,
                seconds=found.load.measured_s,
            )
            search.tell(is_kept=is_kept)
            if is_kept:
                kept[rate] = found
        highest_per_s = search.per_s
        if highest_per_s is not None:
            self._rate_per_s = highest_per_s
            near = min(kept, key=lambda rate: abs(math.log(rate / highest_per_s)))
            measured = kept[near].measurement
            assert measured is not None, "it kept the limit"
            measured = dataclasses.replace(measured, rate_per_s=highest_per_s)
            return dataclasses.replace(kept[near], measurement=measured, loaded_s=loaded_s)
        if last is None or search.missed_per_s is None:
            raise LoadGeneratorFailed("no rate could be measured: the server does not respond")
        outcome = no_rate(slo_ms, search.missed_per_s)
        return dataclasses.replace(last, outcome=outcome, measurement=None, loaded_s=loaded_s)

    def _tried(self, engine: RunningEngine, plan: PhasePlan) -> _JudgedPhase | None:
        """Run a phase that may be too much; None if it failed and the engine survived."""
        try:
            return self._driven(engine, plan)
        except LoadGeneratorLost:
            raise
        except LoadGeneratorFailed:
            if not engine.is_running() or outcomes.of_deaths(engine.replica_facts()) is not None:
                raise
            return None

    def _guessed_rate(self, plan: PhasePlan, load: OpenLoopPlan) -> float:
        """Estimate the first rate from a short closed loop, else take the workload's."""
        brief = dataclasses.replace(
            plan,
            concurrency=GUESSING_CLIENTS,
            seconds=GUESSING_S,
            requests=None,
            answers=0,
            warmup=Warmup(seconds=GUESSING_S / 2, round_trips=1),
        )
        found = self._generator.run(brief)
        measured = summary.is_measured(
            found.records, warmup_s=found.warmup_end_s, seconds=found.measured_s
        )
        answered = int((measured & summary.is_ok(found.records)).sum())
        return GUESSED_SHARE * answered / found.measured_s if answered else load.rate_per_s

    def _driven(self, engine: RunningEngine, plan: PhasePlan) -> _JudgedPhase:
        """Run and judge a phase; repeat it if neighbours disturbed it."""
        found = self._driven_once(engine, plan)
        for repeats in range(1, MAX_REPEATS + 1):
            measured = found.measurement
            if measured is None or not self._is_to_repeat(
                measured.noise, found.load.measured_end_s
            ):
                break
            again = self._driven_once(engine, plan)
            if again.measurement is not None:
                measured = dataclasses.replace(again.measurement, repeats=repeats)
                again = dataclasses.replace(again, measurement=measured)
            found = dataclasses.replace(again, loaded_s=found.loaded_s + again.loaded_s)
        return found

    def _is_to_repeat(self, noise: HostNoise, loaded_s: float) -> bool:
        """Whether a phase was disturbed and may be repeated."""
        return self._others.has_disturbed(noise, loaded_s=loaded_s) and self._others.may_repeat(
            loaded_s
        )

    def _observed(
        self, engine: RunningEngine, plan: PhasePlan, idle: Sequence[int] = ()
    ) -> TimeSlice:
        """Run a phase between readings of host and replicas."""
        if not self._is_new:  # it has settled before
            plan = dataclasses.replace(
                plan, warmup=dataclasses.replace(plan.warmup, settling_s=0.0)
            )
        self._is_new = False
        before = self._readings(engine, idle)
        load = self._generator.run(plan)
        after = self._readings(engine, idle)
        noise = host.noise_between(
            before.host,
            after.host,
            client_cpu_s=load.client_cpu_s,
            throttled_s=_difference(after.replicas.throttled_s, before.replicas.throttled_s),
            peak_memory_mb=after.replicas.peak_memory_mb,
            knows_server=bool(before.host.cpu_s) or not self._is_here,
            share=_in_time(load),
        )
        return TimeSlice(
            plan=plan, load=load, noise=noise, before=before.replicas, after=after.replicas
        )

    def _driven_once(self, engine: RunningEngine, plan: PhasePlan) -> _JudgedPhase:
        meter = EnergyMeter(self._counters) if self._counters else None
        with meter or contextlib.nullcontext():
            found = self._observed(engine, plan)
        load = found.load
        outcome, measurement = self._judged(
            plan, load, found.noise, before=found.before, after=found.after
        )
        if meter is not None and measurement is not None:
            outcome, measurement = self._with_energy(load, measurement, meter)
        return _JudgedPhase(
            load=load, outcome=outcome, measurement=measurement, loaded_s=load.measured_end_s
        )

    def _with_energy(
        self, load: PhaseResult, measurement: Measurement, meter: EnergyMeter
    ) -> tuple[Outcome, Measurement | None]:
        """Return the measurement with energy; None if the objective lacks it."""
        found = energy.energy_of(
            meter.trace(),
            measurement.blocks,
            origin_s=load.origin_s,
            start_s=load.warmup_end_s,
            seconds=load.measured_s,
            requests=measurement.requests,
        )
        if found is None and "energy" in self.settings.names:
            return outcomes.no_energy(meter.failure), None
        return OK, dataclasses.replace(measurement, energy=found)

    def _opened(self, plan: PhasePlan, load: OpenLoopPlan) -> PhasePlan:
        """Return the plan as an open loop with the arrivals of the stream."""
        seeded = dataclasses.replace(load, seed=STREAMS * load.seed + self.stream)
        if self._requests is not None:
            return self._listed(self._requests, plan, seeded.seed)
        is_free = self.settings.seconds is None and self.settings.objective != RATE
        if is_free and plan.seconds is not None:
            # A queue needs time to reach its length.
            warmup = dataclasses.replace(
                plan.warmup, seconds=max(OPEN_WARMUP_S, plan.warmup.seconds)
            )
            seconds = max(OPEN_S, plan.seconds)
            plan = dataclasses.replace(plan, seconds=seconds, warmup=warmup)
        return dataclasses.replace(plan.at(seeded), cuts_overload=True)

    def _listed(self, requests: ScenarioRequests, plan: PhasePlan, seed: int) -> PhasePlan:
        """Return the plan of a scenario's requests, and hand them to the generator.

        Fixed warm-up time lets evaluations of a stream measure the same requests. Nothing is
        dropped: late requests are rejected, so no server falls behind without bound.
        """
        assert plan.seconds is not None, "checked by the settings"
        load = requests.load(
            plan.host, plan.port, seed=seed, seconds=plan.warmup.seconds + plan.seconds
        )
        if load.mixture is not self._mixture:
            self._mixture = load.mixture
            self._generator.set_payloads(load.mixture)
        warmup = dataclasses.replace(plan.warmup, round_trips=0, settling_s=0.0)
        return dataclasses.replace(
            load.plan, host=plan.host, port=plan.port, seconds=plan.seconds, warmup=warmup
        )

    def _closed(self, engine: RunningEngine) -> PhasePlan:
        settings = self.settings
        return PhasePlan(
            host=engine.host,
            port=engine.port,
            concurrency=self.concurrency,
            seconds=settings.measured_s if settings.requests is None else None,
            requests=settings.requests,
            answers=0 if settings.seconds is not None else RESPONSES * self.concurrency,
            warmup=Warmup(
                seconds=settings.warmup_s,
                round_trips=WARMUP_RESPONSES,
                settling_s=SETTLING_S,
            ),
            timeout_s=settings.timeout_s,
        )

    def _judged(
        self,
        plan: PhasePlan,
        load: PhaseResult,
        noise: HostNoise,
        *,
        before: ReplicaFacts,
        after: ReplicaFacts,
    ) -> tuple[Outcome, Measurement | None]:
        died = outcomes.of_deaths(after)
        if died is not None:
            return died, None
        return measure_outcome(
            load.records,
            concurrency=plan.concurrency if plan.rate_per_s is None else None,
            warmup_s=load.warmup_end_s,
            seconds=load.measured_s,
            block_s=self.settings.block_s,
            noise=noise,
            why_failed=load.why_failed,
            deadline_ms=self.settings.slo_ms,
            client_batch=self.client_batch,
            rate_per_s=plan.rate_per_s,
            fell_behind=0.0 if self._requests is not None else load.fell_behind,
            refusals=REJECTIONS if self._requests is not None else frozenset(),
            why_refused=_why_rejected(before, after),
            client_cpu=load.client_cpu,
        )

    def _readings(self, engine: RunningEngine, idle: Sequence[int]) -> _Readings:
        """Read host and replicas; server time includes the gateway."""
        replicas = engine.replica_facts()
        client = [] if self._generator.pid is None else [self._generator.pid]
        beside = (os.getpid(), *client, *idle)
        return _Readings(replicas=replicas, host=host.read((*engine.pids, *replicas.pids), beside))

    def lost(
        self,
        engine: RunningEngine,
        configuration: Configuration,
        error: LaunchFailed | LoadGeneratorFailed,
        *,
        launch_s: float,
        started_at: float,
    ) -> Evaluation:
        """Return a failed evaluation without a phase; an unresponsive engine is ended."""
        return Evaluation(
            configuration=configuration,
            outcome=self._silent(engine, error)
            if isinstance(error, LaunchFailed)
            else self._without_load(engine, error),
            measurement=None,
            records=None,
            launch_s=launch_s,
            loaded_s=0.0,
            started_at=started_at,
        )

    def _without_load(self, engine: RunningEngine, error: LoadGeneratorFailed) -> Outcome:
        try:
            deaths = outcomes.of_deaths(engine.replica_facts())
        except LaunchFailed as silence:
            return self._silent(engine, silence)
        return deaths or outcomes.load_generator_failed(str(error))

    def _silent(self, engine: RunningEngine, error: LaunchFailed) -> Outcome:
        """Return the outcome of a dead or unresponsive engine, and end it."""
        is_running = engine.is_running()
        outcome = outcomes.of_refusal(error)
        if not is_running:
            outcome = outcomes.engine_gone(engine.last_words())
        if engine is self._engine:
            self._engine = None
        engine.stop()
        return outcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _JudgedPhase:
    """Result of a phase."""

    load: PhaseResult
    outcome: Outcome
    measurement: Measurement | None
    loaded_s: float


_RunPhase = Callable[[RunningEngine], _JudgedPhase]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Readings:
    """Replicas and host on one side of a phase."""

    replicas: ReplicaFacts
    host: host.HostReading


def _in_time(load: PhaseResult) -> float:
    """Return the share of responses within the measured part or before."""
    finished_s = load.records.finished_s
    return float((finished_s <= load.measured_end_s).mean()) if len(finished_s) else 1.0


def _mean_ms(load: PhaseResult) -> float:
    """Return the mean latency of the measured part, or NaN."""
    records = load.records
    counted = summary.is_ok(records) & summary.is_measured(
        records, warmup_s=load.warmup_end_s, seconds=load.measured_s
    )
    took_s = records.finished_s[counted] - records.intended_s[counted]
    return 1e3 * float(took_s.mean()) if len(took_s) else math.nan


def _why_rejected(before: ReplicaFacts, after: ReplicaFacts) -> str:
    """Return the server's rejection reasons between readings, most frequent first."""
    counts = collections.Counter(after.refusals)
    counts.subtract(before.refusals)
    return "; ".join(reason for reason, count in counts.most_common() if count > 0)


def _difference(after: float | None, before: float | None) -> float | None:
    return None if after is None or before is None else after - before
