"""Workload of an evaluation: closed loop, open loop, or a search for the highest rate."""

from __future__ import annotations

import dataclasses
import math

from tuner.errors import LoadGeneratorFailed, LoadGeneratorLost
from tuner.evaluation import outcomes
from tuner.evaluation.evaluation import JudgedPhase, is_answered
from tuner.evaluation.phase_runner import PhaseRunner
from tuner.launching.engine import RunningEngine
from tuner.load_generator.plan import OpenLoopPlan, PhasePlan, Race, Warmup
from tuner.measurement import max_rate_search
from tuner.measurement.outcome import EvaluationRequirements, no_rate
from tuner.metrics import tail_latency
from tuner.settings.measurement import RATE_WARMUP_S, SETTLING_S, MeasurementSettings
from tuner.settings.workload import MAX_IN_FLIGHT, RATE
from tuner.values.measurement import MIN_FOR_P99, Measurement

RESPONSES = 4
"""Minimum mean number of responses per connection, unless a duration was set."""
MAX_TIMES = 6.0
"""Limit to which measuring is extended for a p99, as a multiple of the set seconds."""
FIRST_RATE_PER_S = 100.0
"""First rate of a rate search that lacks prior knowledge."""
GUESSING_CLIENTS, GUESSING_S, GUESSED_SHARE = 16, 0.3, 0.8
"""Clients, seconds and used share of the closed loop that estimates the first rate."""
MIN_PATIENCE_S, PATIENCE_TIMES = 1.0, 10.0
"""Timeout in a rate search: a minimum, and a multiple of the latency limit."""
OF_THE_RATE = frozenset({"overload", "errors", "timeout"})
"""Causes of failure that a lower rate may avoid."""
MIN_OPEN, OPEN_TIMES = 64, 8
"""In-flight limit of the final open loop: a minimum, and a multiple of `concurrency`."""
OPEN_S, OPEN_WARMUP_S = 1.2, 0.5
"""Minimum seconds of an open loop and of its warm-up, unless a duration was set."""
STREAMS = 1_000_003


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EvaluationWorkload:
    """Workload that an evaluation runs on an engine."""

    phases: PhaseRunner
    settings: MeasurementSettings
    concurrency: int
    open_load: OpenLoopPlan | None
    stream: int
    lengthens: bool
    rate_per_s: float | None
    """First rate of a rate search; None to estimate it in a short closed loop."""

    @property
    def uses_time_slices(self) -> bool:
        """Whether phases can be cut into time slices.

        An open loop cannot, since its queue builds up over the phase; nor can a phase with a
        request count, or with an energy counter, which needs seconds.
        """
        is_timed = self.settings.requests is None and "energy" not in self.settings.names
        return self.open_load is None and is_timed

    def seconds_short(self, measured: Measurement) -> float:
        """Return how many more seconds a required p99 needs, or 0."""
        most_s = MAX_TIMES * self.settings.measured_s
        is_needed = EvaluationRequirements.of(self.settings).needs_p99 and self.lengthens
        if not is_needed or measured.has_p99 or measured.seconds >= most_s * (1 - 1e-6):
            return 0.0
        wanted_s = tail_latency.seconds_for(
            MIN_FOR_P99, effective=measured.effective, seconds=measured.seconds
        )
        return min(wanted_s, most_s) - measured.seconds

    def at_rate(self, engine: RunningEngine, load: OpenLoopPlan, *, seconds: float) -> JudgedPhase:
        """Run and judge the open loop `load`, with more requests in flight so they can queue."""
        plan = dataclasses.replace(self.closed_loop_plan(engine), seconds=seconds, requests=None)
        most = min(MAX_IN_FLIGHT, max(MIN_OPEN, OPEN_TIMES * self.concurrency))
        return self._run(
            engine, self.open_loop_plan(dataclasses.replace(plan, concurrency=most), load)
        )

    def run(self, engine: RunningEngine, race: Race | None = None) -> JudgedPhase:
        """Run and judge the study's workload."""
        plan, load = self.closed_loop_plan(engine), self.open_load
        if load is not None and self.settings.objective == RATE:
            return self._highest(engine, plan, load)
        if load is not None:
            plan = self.open_loop_plan(plan, load)
            return self._lengthen_phase(engine, plan, self._run(engine, plan))
        found = self._run(engine, dataclasses.replace(plan, race=race))
        if found.measurement is None or race is None:
            return self._lengthen_phase(engine, plan, found)
        left_s = self.settings.measured_s - found.load.measured_s
        measured = dataclasses.replace(found.measurement, ended_early=left_s > race.look_s / 2)
        return dataclasses.replace(found, measurement=measured)

    def _lengthen_phase(
        self, engine: RunningEngine, plan: PhasePlan, found: JudgedPhase
    ) -> JudgedPhase:
        while plan.seconds is not None and (measured := found.measurement) is not None:
            more_s = self.seconds_short(measured)
            if not more_s:
                break
            longer = dataclasses.replace(plan, seconds=measured.seconds + more_s)
            again = self._run(engine, longer)
            found = dataclasses.replace(again, loaded_s=found.loaded_s + again.loaded_s)
        return found

    def _highest(self, engine: RunningEngine, plan: PhasePlan, load: OpenLoopPlan) -> JudgedPhase:
        slo_ms = self.settings.slo_ms
        assert slo_ms is not None, "checked by the settings"
        limit_s = 1e-3 * slo_ms
        patience_s = max(MIN_PATIENCE_S, PATIENCE_TIMES * limit_s)
        plan = dataclasses.replace(plan, timeout_s=min(plan.timeout_s, patience_s))
        plan = plan.with_warmup(seconds=max(RATE_WARMUP_S, plan.warmup.seconds))
        search = max_rate_search.MaxRateSearch(
            self.rate_per_s or self._guessed_rate(plan, load),
            min_per_s=max_rate_search.MIN_REQUESTS / self.settings.measured_s,
        )
        kept: dict[float, JudgedPhase] = {}
        last: JudgedPhase | None = None
        loaded_s = 0.0
        while (rate := search.next_per_s) is not None:
            at_rate = dataclasses.replace(load, rate_per_s=rate)
            found = self._try_phase(engine, self.open_loop_plan(plan, at_rate))
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
            near = min(kept, key=lambda rate: abs(math.log(rate / highest_per_s)))
            measured = kept[near].measurement
            assert measured is not None, "it kept the limit"
            measured = dataclasses.replace(measured, rate_per_s=highest_per_s)
            return dataclasses.replace(kept[near], measurement=measured, loaded_s=loaded_s)
        if last is None or search.missed_per_s is None:
            raise LoadGeneratorFailed("no rate could be measured: the server does not respond")
        outcome = no_rate(slo_ms, search.missed_per_s)
        return dataclasses.replace(last, outcome=outcome, measurement=None, loaded_s=loaded_s)

    def _try_phase(self, engine: RunningEngine, plan: PhasePlan) -> JudgedPhase | None:
        try:
            return self._run(engine, plan)
        except LoadGeneratorLost:
            raise
        except LoadGeneratorFailed:
            if not engine.is_running() or outcomes.of_deaths(engine.replica_facts()) is not None:
                raise
            return None

    def _guessed_rate(self, plan: PhasePlan, load: OpenLoopPlan) -> float:
        brief = dataclasses.replace(
            plan,
            concurrency=GUESSING_CLIENTS,
            seconds=GUESSING_S,
            requests=None,
            answers=0,
            warmup=Warmup(seconds=GUESSING_S / 2, round_trips=1),
        )
        found = self.phases.generator.run(brief)
        answered = int(is_answered(found).sum())
        return GUESSED_SHARE * answered / found.measured_s if answered else load.rate_per_s

    def open_loop_plan(self, plan: PhasePlan, load: OpenLoopPlan) -> PhasePlan:
        """Return the plan as an open loop with this stream's arrivals."""
        seeded = dataclasses.replace(load, seed=STREAMS * load.seed + self.stream)
        if self.phases.requests is not None:
            return self.phases.scenario_plan(self.phases.requests, plan, seeded.seed)
        is_free = self.settings.seconds is None and self.settings.objective != RATE
        if is_free and plan.seconds is not None:
            # A queue needs time to reach its length.
            plan = dataclasses.replace(plan, seconds=max(OPEN_S, plan.seconds))
            plan = plan.with_warmup(seconds=max(OPEN_WARMUP_S, plan.warmup.seconds))
        return dataclasses.replace(plan.at(seeded), cuts_overload=True)

    def closed_loop_plan(self, engine: RunningEngine) -> PhasePlan:
        """Return the plan of a closed loop."""
        settings = self.settings
        return PhasePlan(
            host=engine.host,
            port=engine.port,
            concurrency=self.concurrency,
            seconds=settings.measured_s if settings.requests is None else None,
            requests=settings.requests,
            answers=0 if settings.seconds is not None else RESPONSES * self.concurrency,
            warmup=Warmup(seconds=settings.warmup_s, settling_s=SETTLING_S),
            timeout_s=settings.timeout_s,
        )

    def slice_plan(self, engine: RunningEngine, *, seconds: float, warmup_s: float) -> PhasePlan:
        """Return the plan of a time slice, in whose warm-up each connection gets one response."""
        return dataclasses.replace(
            self.closed_loop_plan(engine),
            seconds=seconds,
            answers=RESPONSES * self.concurrency,
            warmup=Warmup(seconds=warmup_s, round_trips=1, settling_s=SETTLING_S),
        )

    def _run(self, engine: RunningEngine, plan: PhasePlan) -> JudgedPhase:
        return self.phases.run(engine, plan, self.settings)
