"""Phases of load on a running engine, between readings of replicas and host."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
from collections.abc import Sequence

from tuner.evaluation import outcomes
from tuner.evaluation.evaluation import (
    JudgedPhase,
    ObservedPhase,
    TimeSlice,
    difference,
    is_answered,
)
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.launching.engine import EngineInfo, RunningEngine
from tuner.launching.replica_facts import ReplicaFacts
from tuner.load_generator import phase_result
from tuner.load_generator.client_group import make_load_generator
from tuner.load_generator.payloads import MultiModelPayloads, Payloads
from tuner.load_generator.phase_result import PhaseResult
from tuner.load_generator.plan import PhasePlan
from tuner.measurement import energy, host, meters
from tuner.measurement.interference import InterferenceDetector
from tuner.measurement.meters import EnergyMeter
from tuner.measurement.outcome import REJECTIONS, measure_outcome
from tuner.settings.measurement import MeasurementSettings
from tuner.values.measurement import Measurement
from tuner.values.trial import OK, Outcome

MAX_REPEATS = 2


class PhaseRunner:
    """Runner of phases, sending load to one engine at a time."""

    def __init__(self, clients: int = 1) -> None:
        """`clients` is the number of processes of the load generator."""
        self.generator = make_load_generator(clients)
        self.counters: tuple[meters.EnergyCounter, ...] | None = None
        self._owned = contextlib.ExitStack()
        self.others = InterferenceDetector(os.cpu_count() or 1)  # all cores of the machine
        self.is_new = True
        """Whether the engine's process has had no requests yet."""
        self.is_here = True
        self.payloads: Payloads | None = None
        self.requests: ScenarioRequests | None = None
        """Requests of a scenario, or None for a single model."""
        self.client_batch = 1
        self._mixture: MultiModelPayloads | None = None

    def close(self) -> None:
        """End the load generator, and close the counters."""
        with self._owned:
            self.counters = None
            self.generator.close()

    def meet(self, served: EngineInfo) -> None:
        """Note whether the engine runs here; open energy counters for the first engine's device."""
        self.is_here = served.is_here
        if self.counters is None:
            self.counters = ()
            if served.is_here:
                opened = meters.open_counters(gpu=served.device != "cpu")
                self.counters = self._owned.enter_context(opened).counters

    def send(self, payloads: Payloads | ScenarioRequests) -> None:
        """Set the requests that subsequent phases send."""
        self.client_batch = payloads.client_batch
        if isinstance(payloads, ScenarioRequests):
            self.requests = payloads  # drawn for each stream and phase
        else:
            self.payloads = payloads
            self.generator.set_payloads(payloads)

    def run(
        self, engine: RunningEngine, plan: PhasePlan, settings: MeasurementSettings
    ) -> JudgedPhase:
        """Run and judge a phase, and repeat it if other processes disturbed it."""
        loaded_s, repeats = 0.0, 0
        while True:
            found = self._run_once(engine, plan, settings)
            loaded_s += found.loaded_s
            measured = found.measurement
            if measured is None or repeats == MAX_REPEATS:
                break
            once_s = found.load.measured_end_s
            is_disturbed = self.others.is_disturbed(measured.noise, loaded_s=once_s)
            if not is_disturbed or not self.others.can_repeat(once_s):
                break
            repeats += 1
        if measured is not None:
            measured = dataclasses.replace(measured, repeats=repeats)
        return dataclasses.replace(found, measurement=measured, loaded_s=loaded_s)

    def _observe(
        self, engine: RunningEngine, plan: PhasePlan, idle: Sequence[int] = ()
    ) -> TimeSlice:
        if not self.is_new:  # the engine has settled before
            plan = plan.with_warmup(settling_s=0.0)
        self.is_new = False
        before, host_before = self._readings(engine, idle)
        load = self.generator.run(plan)
        after, host_after = self._readings(engine, idle)
        noise = host.noise_between(
            host_before,
            host_after,
            client_cpu_s=load.client_cpu_s,
            throttled_s=difference(after.throttled_s, before.throttled_s),
            peak_memory_mb=after.peak_memory_mb,
            knows_server=bool(host_before.cpu_s) or not self.is_here,
            share=_server_share(load),
        )
        return TimeSlice(plan=plan, load=load, noise=noise, before=before, after=after)

    def _run_once(
        self, engine: RunningEngine, plan: PhasePlan, settings: MeasurementSettings
    ) -> JudgedPhase:
        meter = EnergyMeter(self.counters) if self.counters else None
        with meter or contextlib.nullcontext():
            found = self._observe(engine, plan)
        load = found.load
        outcome, measurement = self.judge(found, settings)
        if meter is not None and measurement is not None:
            outcome, measurement = _with_energy(load, measurement, meter, settings)
        return JudgedPhase(
            load=load, outcome=outcome, measurement=measurement, loaded_s=load.measured_end_s
        )

    def slice(self, engine: RunningEngine, plan: PhasePlan, *, idle: Sequence[int]) -> TimeSlice:
        """Run a phase without judging it; repeat it if processes other than `idle` disturb it."""
        repeats = 0
        while True:
            found = self._observe(engine, plan, idle)
            loaded_s = found.load.measured_end_s
            is_disturbed = self.others.is_disturbed(found.noise, loaded_s=loaded_s)
            is_last = repeats == MAX_REPEATS
            if not is_disturbed or is_last or not self.others.can_repeat(loaded_s):
                return dataclasses.replace(found, repeats=repeats, is_disturbed=is_disturbed)
            repeats += 1

    def observe(self, engine: RunningEngine, plan: PhasePlan) -> ObservedPhase:
        """Run a phase between two readings of replica facts; errors of engine or load propagate."""
        before = engine.replica_facts()
        gateway, replicas = host.read(engine.pids), host.read(before.pids)
        load = self.generator.run(plan)
        gateway_s = host.noise_between(gateway, host.read(engine.pids)).server_cpu_s
        replicas_s = host.noise_between(replicas, host.read(before.pids)).server_cpu_s
        after = engine.replica_facts()
        if (in_cgroups_s := difference(after.cpu_s, before.cpu_s)) is not None:
            replicas_s = in_cgroups_s  # with what replicas start
        return ObservedPhase(
            before=before,
            load=load,
            after=after,
            gateway_cpu_s=gateway_s,
            replica_cpu_s=replicas_s,
        )

    def join(self, slices: Sequence[TimeSlice], settings: MeasurementSettings) -> JudgedPhase:
        """Join an evaluation's time slices, omitting disturbed ones unless most are disturbed."""
        first, after = slices[0], slices[-1].after
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
        load = phase_result.concatenate([one.load for one in slices])
        loaded_s = sum(one.load.measured_end_s for one in slices)
        noise = host.together([one.noise for one in slices], share=load.measured_s / loaded_s)
        whole = dataclasses.replace(first, load=load, noise=noise, after=after)
        outcome, measurement = self.judge(whole, settings)
        if measurement is not None:
            measurement = dataclasses.replace(measurement, repeats=repeats)
        return JudgedPhase(
            load=load,
            outcome=outcome,
            measurement=measurement,
            loaded_s=loaded_s,
            slices_ms=tuple(slices_ms) if measurement else (),
        )

    def scenario_plan(self, requests: ScenarioRequests, plan: PhasePlan, seed: int) -> PhasePlan:
        """Return the plan for a scenario's requests, and give them to the load generator.

        The fixed warm-up time lets evaluations of a stream measure the same requests. Nothing is
        dropped: late requests are rejected, so a backlog cannot grow without bound.
        """
        assert plan.seconds is not None, "checked by the settings"
        load = requests.load(
            plan.host, plan.port, seed=seed, seconds=plan.warmup.seconds + plan.seconds
        )
        if load.mixture is not self._mixture:
            self._mixture = load.mixture
            self.generator.set_payloads(load.mixture)
        return dataclasses.replace(
            load.plan, host=plan.host, port=plan.port, seconds=plan.seconds, warmup=plan.warmup
        ).with_warmup(round_trips=0, settling_s=0.0)

    def judge(
        self, found: TimeSlice, settings: MeasurementSettings
    ) -> tuple[Outcome, Measurement | None]:
        """Return the outcome of a phase or of joined slices and, if it is ok, the measurement."""
        died = outcomes.of_deaths(found.after)
        if died is not None:
            return died, None
        return measure_outcome(
            found.load.records,
            concurrency=found.plan.concurrency if found.plan.rate_per_s is None else None,
            warmup_s=found.load.warmup_end_s,
            seconds=found.load.measured_s,
            block_s=settings.block_s,
            noise=found.noise,
            why_failed=found.load.why_failed,
            deadline_ms=settings.slo_ms,
            client_batch=self.client_batch,
            rate_per_s=found.plan.rate_per_s,
            fell_behind=0.0 if self.requests is not None else found.load.fell_behind,
            refusals=REJECTIONS if self.requests is not None else frozenset(),
            why_refused=_why_rejected(found.before, found.after),
            client_cpu=found.load.client_cpu,
        )

    def _readings(
        self, engine: RunningEngine, idle: Sequence[int]
    ) -> tuple[ReplicaFacts, host.HostReading]:
        replicas = engine.replica_facts()
        beside = (os.getpid(), *self.generator.pids, *idle)
        return replicas, host.read((*engine.pids, *replicas.pids), beside)


def _with_energy(
    load: PhaseResult,
    measurement: Measurement,
    meter: EnergyMeter,
    settings: MeasurementSettings,
) -> tuple[Outcome, Measurement | None]:
    found = energy.energy_of(
        meter.trace(),
        measurement.blocks,
        origin_s=load.origin_s,
        start_s=load.warmup_end_s,
        seconds=load.measured_s,
        requests=measurement.requests,
    )
    if found is None and "energy" in settings.names:
        why = meter.failure or "the counters did not change"
        reason = f"its energy could not be measured: {why}"
        return Outcome(status="failed", cause="errors", reason=reason), None
    return OK, dataclasses.replace(measurement, energy=found)


def _server_share(load: PhaseResult) -> float:
    """Return the server's CPU time at the measured rate, warm-up included, as a share of the whole.

    Fewer requests are answered while a server settles, and more after the end of the phase.
    """
    finished_s = load.records.finished_s
    is_measured = (finished_s > load.warmup_end_s) & (finished_s <= load.measured_end_s)
    if not is_measured.any():
        return 1.0
    return float(is_measured.sum() * load.measured_end_s / (load.measured_s * len(finished_s)))


def _mean_ms(load: PhaseResult) -> float:
    counted = is_answered(load)
    took_s = load.records.finished_s[counted] - load.records.intended_s[counted]
    return 1e3 * float(took_s.mean()) if len(took_s) else math.nan


def _why_rejected(before: ReplicaFacts, after: ReplicaFacts) -> str:
    counts = collections.Counter(after.refusals)
    counts.subtract(before.refusals)
    return "; ".join(reason for reason, count in counts.most_common() if count > 0)
