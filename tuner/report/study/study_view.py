"""Facts of a study for pages, figures and the terminal."""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.metrics.tail_latency import TailLatency
from tuner.report import formatting
from tuner.settings.workload import workload_in_words
from tuner.values.configuration import Configuration, Value
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement
from tuner.values.study_record import KnobInfo, StudyRecord
from tuner.values.trial import Trial
from tuner.values.verdict import VerdictOutcome

ArmName = Literal["default", "best"]
P99 = objectives.find_objective("p99").field
ARMS: tuple[ArmName, ArmName] = ("default", "best")
SEARCHES = {
    "structured": "a prediction from the model's profile and a Gaussian process",
    "gp": "a Gaussian process",
}
MAX_GROUPS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """A metric over an arm's evaluations."""

    middle: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> MetricSummary:
        """Summarise positive values, with their geometric mean."""
        known = [value for value in values if value > 0]
        if not known:
            return cls(middle=math.nan, low=math.nan, high=math.nan)
        middle = math.exp(math.fsum(map(math.log, known)) / len(known))
        return cls(middle=middle, low=min(known), high=max(known))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A metric's ratio of best to default."""

    ratio: float
    interval: Interval
    outcome: VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmMeasurements:
    """An arm's measurements and their origin."""

    measurements: tuple[Measurement, ...]
    is_verified: bool
    """Whether they are of rounds after the search, not the search's own."""

    @property
    def tail(self) -> TailLatency:
        """p99 of all their requests pooled."""
        return tail_latency.pool_tails(self.measurements)

    def figure(self, field: str) -> MetricSummary:
        """Summarise one field, such as `mean_ms`; p99 is pooled."""
        if field == P99:
            tail = self.tail
            ends = tail.interval
            return MetricSummary(
                middle=tail.value_ms,
                low=tail.value_ms if ends.low is None else ends.low,
                high=tail.value_ms if ends.high is None else ends.high,
            )
        return MetricSummary.over(getattr(item, field) for item in self.measurements)

    @property
    def min_requests(self) -> int:
        """Requests of the shortest evaluation."""
        return min((item.requests for item in self.measurements), default=0)


def workload(study: StudyRecord) -> str:
    """Describe the workload, as the end of a sentence."""
    return workload_in_words(
        study.concurrency,
        study.client_batch,
        rate_per_s=study.rate_per_s,
        arrivals=study.arrivals,
        objective=study.objective,
        offered_per_s=study.offered_per_s,
    )


def search(study: StudyRecord) -> str:
    """Describe the sampler."""
    name = study.sampler
    if any(note.startswith("no prediction:") for note in study.notes):
        name = "gp"
    known = SEARCHES.get(name)
    return f"sampler {study.sampler}" + (f" ({known})" if known else "")


def models(study: StudyRecord) -> str:
    """Describe a scenario's models; empty for one model."""
    if study.shared is None:
        return ""
    groups = study.shared.groups.values()
    listed = ", ".join(f"{copies} × {model.rpartition('/')[2]}" for model, copies in groups)
    if len(groups) > MAX_GROUPS:
        listed = f"{len(groups)} kinds"
    count = sum(copies for _, copies in groups)
    return f"{formatting.plural(count, 'model')} on shared replicas ({listed}), "


def successful_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials that were ok and measured."""
    return tuple(trial for trial in trials if trial.measurement is not None)


def failed_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Infeasible and failed trials."""
    return tuple(trial for trial in trials if trial.outcome.status != "ok")


def best_so_far(study: StudyRecord) -> list[tuple[int, float]]:
    """(trial number, best objective so far), from the first success."""
    objective = objectives.find_objective(study.objective)
    steps: list[tuple[int, float]] = []
    for trial in study.trials:
        value = objective.of(trial)
        if value is None:
            value = steps[-1][1] if steps else None
        elif steps:
            value = objective.better(steps[-1][1], value)
        if value is not None:
            steps.append((trial.number, value))
    return steps


def configuration_of(study: StudyRecord, arm: ArmName) -> Configuration | None:
    """The arm's configuration."""
    return study.default if arm == "default" else study.best


def arm_measurements(study: StudyRecord, arm: ArmName) -> ArmMeasurements:
    """The arm's measurements, from the verdict if any, else the search."""
    if study.verdict is not None:
        found = study.verdict.default if arm == "default" else study.verdict.best
        if found:
            return ArmMeasurements(measurements=found, is_verified=True)
    wanted = configuration_of(study, arm)
    measured = tuple(
        trial.measurement
        for trial in study.trials
        if trial.measurement is not None and trial.configuration == wanted
    )
    return ArmMeasurements(measurements=measured, is_verified=False)


def tried_values(study: StudyRecord, knob: KnobInfo) -> tuple[Value, ...]:
    """The knob's tried values, in grid order, others last."""
    seen = {trial.configuration.get(knob.name) for trial in study.trials}
    inside = tuple(value for value in knob.values if value in seen)
    outside = {value for value in seen if value is not None and value not in knob.values}
    return inside + tuple(sorted(outside, key=lambda value: (isinstance(value, str), value)))


def varied_knobs(study: StudyRecord) -> tuple[KnobInfo, ...]:
    """Knobs with at least two tried values."""
    return tuple(knob for knob in study.knobs if len(tried_values(study, knob)) > 1)


def changed_knobs(study: StudyRecord) -> tuple[str, ...]:
    """Knobs whose best value differs from the default."""
    if study.best is None:
        return ()
    best = study.best
    return tuple(
        knob.name for knob in study.knobs if best.get(knob.name) != study.default.get(knob.name)
    )


def has_two_arms(study: StudyRecord) -> bool:
    """Whether there is a best to compare with the default."""
    return study.best is not None and (study.best != study.default or study.verdict is not None)


def figures_of_merit(study: StudyRecord) -> tuple[str, ...]:
    """The study's own and the common objectives."""
    second = () if study.second is None else (study.second,)
    return tuple(dict.fromkeys((study.objective, *second, "mean", "p99", "throughput")))


def compare_metric(study: StudyRecord, name: str) -> MetricComparison | None:
    """Compare one metric, if the verdict has it."""
    verdict = study.verdict
    if verdict is None:
        return None
    known: dict[str, tuple[float | None, Interval]] = {
        "p99": (verdict.p99_ratio, verdict.p99_interval),
        "throughput": (verdict.throughput_ratio, verdict.throughput_interval),
        study.objective: (verdict.ratio, verdict.interval),
    }
    if verdict.second is not None:
        known[verdict.second.objective] = (verdict.second.ratio, verdict.second.interval)
    ratio, interval = known.get(name, (None, UNKNOWN))
    if ratio is None:
        return None
    outcome = objectives.find_objective(name).judge(interval)
    if name == study.objective:
        outcome = verdict.outcome
    if verdict.second is not None and name == verdict.second.objective:
        outcome = verdict.second.outcome
    return MetricComparison(ratio=ratio, interval=interval, outcome=outcome)


def limits(study: StudyRecord) -> str | None:
    """Describe the metric constraints, or return None."""
    kept = study.settings.get("measurement", {})
    found = [f"p99 <= {kept['slo_ms']:g} ms"] if kept.get("slo_ms") else []
    if study.objective == "goodput":
        found = [f"a deadline of {kept['slo_ms']:g} ms for each request"]
    return " and ".join((*found, *kept.get("constraints", ()))) or None


def has_energy(study: StudyRecord) -> bool:
    """Whether any evaluation measured energy."""
    measured = [trial.measurement for trial in study.trials]
    return any(launch is not None and launch.energy is not None for launch in measured)


def in_short(study: StudyRecord, configuration: Configuration) -> str:
    """Knobs that differ from the default, by short names."""
    changed = [
        f"{name.rpartition('.')[2]}={formatting.knob_value(value)}"
        for name, value in configuration.items()
        if study.default.get(name) != value
    ]
    return " ".join(changed) or "the default"


def is_luckier_than_best(study: StudyRecord) -> Trial | None:
    """Trial with the best measurement, unless of the best configuration."""
    objective = objectives.find_objective(study.objective)
    measured = [(trial, value) for trial in study.trials if (value := objective.of(trial))]
    if not measured or study.best is None or not study.is_finished:
        return None
    sign = 1 if objective.is_minimised else -1
    first, _ = min(measured, key=lambda pair: sign * pair[1])
    return None if first.configuration == study.best else first


def causes_in_words(trials: Iterable[Trial]) -> str:
    """Causes with counts, most frequent first: "oom 9, timeout 3"."""
    return ", ".join(f"{cause} {count}" for cause, count in count_causes(trials))


def count_causes(trials: Iterable[Trial]) -> list[tuple[str, int]]:
    """Causes with counts, most frequent first."""
    counts = collections.Counter(trial.outcome.cause or trial.outcome.status for trial in trials)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
