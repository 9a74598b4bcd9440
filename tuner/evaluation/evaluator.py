"""Evaluator of configurations, with one engine and one load generator.

An evaluation starts new replicas, warms them up, measures a phase, and reads the replicas' report.
Gateway and client live on, except in `evaluate_on_new_server`. If a server dies, one evaluation
fails, and the next starts a new server. Use as a context manager, from one thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from serving.spawners.process.spawner import OF_POD
from tuner.errors import LaunchFailed, LoadGeneratorFailed, LoadGeneratorLost, UsageError
from tuner.evaluation import correctness_check, outcomes
from tuner.evaluation.evaluation import (
    Evaluation,
    JudgedPhase,
    ObservedPhase,
    Startup,
    Stopwatch,
    TimeSlice,
)
from tuner.evaluation.phase_runner import PhaseRunner
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.evaluation.workload import EvaluationWorkload
from tuner.launching import machine
from tuner.launching.engine import EngineInfo, Launcher, RunningEngine
from tuner.launching.engine_process import LuthierLauncher
from tuner.load_generator.payloads import Payloads
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.metrics import prices, server_resources
from tuner.metrics.prices import DEFAULT, Prices
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.workload import RATE
from tuner.values.configuration import Configuration
from tuner.values.trial import Outcome

_log = logging.getLogger(__name__)
_RunPhase = Callable[[RunningEngine], JudgedPhase]
T = TypeVar("T")


def retry_lost(run: Callable[[], T]) -> T:
    """Run a phase; retry once if the load generator is lost, which no configuration can cause."""
    try:
        return run()
    except LoadGeneratorLost as error:
        _log.warning("the load is driven again", extra={"fields": {"error": str(error)}})
        return run()


class Evaluator:
    """Evaluator with one engine (by default Luthier) and one load generator.

    Without an `open_load`, the loop is closed; with one, `concurrency` limits the requests in
    flight.
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
        """Random stream of arrivals; its evaluations share a schedule, so that none is luckier."""
        self._rate_per_s: float | None = None
        """Highest rate found by the last evaluation that searched for one."""
        self.sent, self.varies = "", False
        """Description of the payloads, and whether they differ in size."""
        self.lengthens = True
        """Whether to measure longer if a required p99 has too few requests."""
        self.prices = prices
        self._has_gpu = False
        self._kind_of_whole: str | None = None
        """Kind of the model if the whole server is limited, which then is what it costs."""
        self._cores = machine.read().cores
        self._phases = PhaseRunner(settings.load_clients)
        self.launcher: Launcher = launcher or LuthierLauncher(model)
        self._engine: RunningEngine | None = None
        self._first: Configuration | None = None
        self.start_s: float | None = None
        """Seconds that the first start took, or None before it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def start(self, configuration: Configuration | None = None) -> EngineInfo:
        """Start the engine, with its first configuration by default, and return its description."""
        self.stop_engine()
        self._first = self._first or configuration
        before_s = time.monotonic()
        engine = self._start_engine(configuration or self._first)
        self.start_s = self.start_s or time.monotonic() - before_s
        served = engine.describe()
        self._has_gpu = served.device not in {None, "cpu"}
        self._kind_of_whole = served.kind if served.limits == OF_POD else None
        self._phases.meet(served)
        return served

    def send(self, payloads: Payloads | ScenarioRequests) -> None:
        """Set the requests that subsequent evaluations send."""
        self._phases.send(payloads)
        self.sent, self.varies = payloads.description, payloads.varies

    @property
    def energy_sources(self) -> tuple[str, ...]:
        """Descriptions of the energy counters in use."""
        return tuple(counter.text for counter in self._phases.counters or ())

    @property
    def address(self) -> tuple[str, int] | None:
        """Host and inference port of the running engine, or None if none is running."""
        return None if self._engine is None else (self._engine.host, self._engine.port)

    def check_responses(self) -> str | None:
        """Return a note on the running engine's responses, or None if they cannot be checked."""
        payloads = self._phases.payloads
        if self.address is None or payloads is None:
            return None
        return correctness_check.check_responses(self.address, payloads)

    @property
    def workload(self) -> EvaluationWorkload:
        """Workload that an evaluation runs by default."""
        return EvaluationWorkload(
            phases=self._phases,
            settings=self.settings,
            concurrency=self.concurrency,
            open_load=self.open_load,
            stream=self.stream,
            lengthens=self.lengthens,
            rate_per_s=self._rate_per_s,
        )

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        """Evaluate a configuration on the running engine; `race` may end it early."""
        watch = Stopwatch()
        try:
            engine = self._ensure_engine(configuration)
        except LaunchFailed as error:
            return self.fail_start(configuration, error, watch.startup())
        run = functools.partial(self._run_workload, race=race)
        return self._measure(engine, configuration, watch.startup(), run)

    def evaluate_on_new_server(self, configuration: Configuration) -> Evaluation:
        """Evaluate a configuration on a new server, after ending the current engine."""
        return self._fresh(configuration, self._run_workload)

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        """Evaluate a configuration on a new server, under the open loop `load`."""
        run = functools.partial(self.workload.at_rate, load=load, seconds=seconds)
        return self._fresh(configuration, run)

    def _run_workload(self, engine: RunningEngine, race: Race | None = None) -> JudgedPhase:
        found = self.workload.run(engine, race)
        if self.settings.objective == RATE and found.measurement is not None:
            self._rate_per_s = found.measurement.rate_per_s or self._rate_per_s
        return found

    def _fresh(self, configuration: Configuration, run: _RunPhase) -> Evaluation:
        watch = Stopwatch()
        self.stop_engine()
        try:
            engine = self._restart_engine(configuration)
        except LaunchFailed as error:
            return self.fail_start(configuration, error, watch.startup())
        try:
            return self._measure(engine, configuration, watch.startup(), run)
        finally:
            self.stop_engine()

    def observe_phase(
        self, configuration: Configuration, *, concurrency: int, seconds: float
    ) -> ObservedPhase:
        """Apply a configuration, and observe its replicas before and after a closed loop."""
        engine = self._ensure_engine(configuration)
        plan = self.workload.closed_loop_plan(engine)
        plan = dataclasses.replace(
            plan, concurrency=concurrency, seconds=seconds, requests=None, answers=0
        )
        return self._phases.observe(engine, plan)

    @property
    def why_not_interleaved(self) -> str | None:
        """Reason why two engines cannot run at once, or None if they can."""
        return self.launcher.why_not_interleaved

    def measure(
        self, engine: RunningEngine, configuration: Configuration, startup: Startup, *, is_new: bool
    ) -> Evaluation:
        """Evaluate a running engine's configuration; for `is_new`, see `time_slice`."""
        self._phases.is_new = is_new
        return self._measure(engine, configuration, startup, self._run_workload)

    def time_slice(
        self,
        engine: RunningEngine,
        *,
        seconds: float,
        warmup_s: float,
        is_new: bool,
        idle: Sequence[int] = (),
    ) -> TimeSlice:
        """Run a time slice, and repeat it if processes other than the `idle` ones disturb it.

        `is_new` means that the engine has had no requests yet and needs to settle. Errors
        propagate.
        """
        self._phases.is_new = is_new
        plan = self.workload.slice_plan(engine, seconds=seconds, warmup_s=warmup_s)
        return self._phases.slice(engine, plan, idle=idle)

    def join_slices(
        self, configuration: Configuration, slices: Sequence[TimeSlice], startup: Startup
    ) -> Evaluation:
        """Join an evaluation's time slices, omitting disturbed ones unless most are disturbed."""
        found = self._phases.join(slices, self.settings)
        return self._evaluation(configuration, found, startup, paid_s=found.load.measured_s)

    def stop_engine(self) -> None:
        """End the engine, if one is running."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()

    def close(self) -> None:
        """End the engine and the load generator, and close the launcher."""
        with contextlib.ExitStack() as ends:  # in reverse order
            ends.callback(self.launcher.close)
            ends.callback(self.stop_engine)
            ends.callback(self._phases.close)

    def _start_engine(self, configuration: Configuration | None) -> RunningEngine:
        self._engine, self._phases.is_new = self.launcher.start(configuration), True
        return self._engine

    def _restart_engine(self, configuration: Configuration) -> RunningEngine:
        """Start the engine anew; what it rejects now is the configuration alone."""
        try:
            return self._start_engine(configuration)
        except UsageError as error:
            if self.start_s is None:
                raise
            raise LaunchFailed("constraint", str(error)) from error

    def _ensure_engine(self, configuration: Configuration) -> RunningEngine:
        if self._engine is not None and self._engine.is_running():
            self._engine.apply(configuration)
            self._phases.is_new |= self.launcher.is_restarted
            return self._engine
        self.stop_engine()
        return self._restart_engine(configuration)

    def fail_start(
        self, configuration: Configuration, error: LaunchFailed, startup: Startup
    ) -> Evaluation:
        """Return a failed evaluation for a server that did not start."""
        if error.cause == "crash":
            self.stop_engine()
        return Evaluation.of(configuration, startup, outcomes.of_refusal(error))

    def _measure(
        self, engine: RunningEngine, configuration: Configuration, startup: Startup, run: _RunPhase
    ) -> Evaluation:
        try:
            found = retry_lost(functools.partial(run, engine))
        except (LaunchFailed, LoadGeneratorFailed) as error:
            return self.fail_phase(engine, configuration, error, startup)
        return self._evaluation(configuration, found, startup, paid_s=found.load.measured_end_s)

    def _evaluation(
        self, configuration: Configuration, found: JudgedPhase, startup: Startup, *, paid_s: float
    ) -> Evaluation:
        measured = found.measurement
        if measured is not None:
            whole = None
            if self._kind_of_whole is not None:
                whole = server_resources.needed_by(
                    configuration, self._kind_of_whole, cores=self._cores
                )
            held = prices.allocated_by(
                configuration, cores=self._cores, has_gpu=self._has_gpu, whole=whole
            )
            cost = prices.cost_of(measured, held, loaded_s=paid_s, prices=self.prices)
            measured = dataclasses.replace(measured, cost=cost)
            found = dataclasses.replace(found, measurement=measured)
        return Evaluation.of(configuration, startup, found.outcome, found)

    def fail_phase(
        self,
        engine: RunningEngine,
        configuration: Configuration,
        error: LaunchFailed | LoadGeneratorFailed,
        startup: Startup,
    ) -> Evaluation:
        """Return a failed evaluation for a phase that failed, and end an unresponsive engine."""
        if isinstance(error, LoadGeneratorFailed):
            try:
                deaths = outcomes.of_deaths(engine.replica_facts())
            except LaunchFailed as silence:
                error = silence
            else:
                outcome = Outcome(status="failed", cause="errors", reason=str(error))
                return Evaluation.of(configuration, startup, deaths or outcome)
        outcome = outcomes.of_refusal(error)
        if not engine.is_running():
            reason = f"the server ended under load: {engine.last_words()}"
            outcome = Outcome(status="failed", cause="crash", reason=reason)
        if engine is self._engine:
            self._engine = None
        engine.stop()
        return Evaluation.of(configuration, startup, outcome)
