"""Facts about a study, for pages, figures and the terminal."""

from __future__ import annotations

import collections
import dataclasses
import functools
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
    "structured": "rules of thumb from the default's latency and a Gaussian process",
    "gp": "a Gaussian process",
}

MAX_GROUPS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """Summary of a metric over an arm's evaluations."""

    middle: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> MetricSummary:
        """Summarise positive values by their geometric mean, minimum and maximum."""
        known = [value for value in values if value > 0]
        if not known:
            return cls(middle=math.nan, low=math.nan, high=math.nan)
        middle = math.exp(math.fsum(map(math.log, known)) / len(known))
        return cls(middle=middle, low=min(known), high=max(known))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """Ratio of a metric for the best to that for the default."""

    ratio: float
    interval: Interval
    outcome: VerdictOutcome


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmMeasurements:
    """An arm's measurements and their origin."""

    measurements: tuple[Measurement, ...]
    is_verified: bool
    """Whether the measurements come from rounds after the search."""

    @property
    def tail(self) -> TailLatency:
        """p99 of all requests pooled."""
        return tail_latency.pool_tails(self.measurements)

    def figure(self, field: str) -> MetricSummary:
        """Summarise a field, such as `mean_ms`; the p99 is pooled."""
        if field == P99:
            middle, ends = self.tail.value_ms, self.tail.interval
            low = middle if ends.low is None else ends.low
            high = middle if ends.high is None else ends.high
            return MetricSummary(middle=middle, low=low, high=high)
        return MetricSummary.over(getattr(item, field) for item in self.measurements)

    @property
    def min_requests(self) -> int:
        """Number of requests of the shortest evaluation."""
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
    has_no_prediction = any(note.startswith("no prediction:") for note in study.notes)
    known = SEARCHES.get("gp" if has_no_prediction else study.sampler)
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
    """Return the trials that succeeded and were measured."""
    return tuple(trial for trial in trials if trial.measurement is not None)


def failed_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return infeasible and failed trials."""
    return tuple(trial for trial in trials if trial.outcome.status != "ok")


def best_so_far(study: StudyRecord) -> list[tuple[int, float]]:
    """Return (trial number, best objective so far) from the first success on."""
    objective = objectives.find_objective(study.objective)
    steps: list[tuple[int, float]] = []
    for trial in study.trials:
        seen = [value for _, value in steps[-1:]]
        if (value := objective.of(trial)) is not None:
            seen.append(value)
        if seen:
            steps.append((trial.number, functools.reduce(objective.better, seen)))
    return steps


def arm_measurements(study: StudyRecord, arm: ArmName) -> ArmMeasurements:
    """Return an arm's measurements from the verdict, if any, else the search."""
    if study.verdict is not None:
        found = study.verdict.default if arm == "default" else study.verdict.best
        if found:
            return ArmMeasurements(measurements=found, is_verified=True)
    return ArmMeasurements(measurements=search_measurements(study, arm), is_verified=False)


def search_measurements(study: StudyRecord, arm: ArmName) -> tuple[Measurement, ...]:
    """Return the search's measurements of an arm's configuration."""
    wanted = study.default if arm == "default" else study.best
    return tuple(
        trial.measurement
        for trial in study.trials
        if trial.measurement is not None and trial.configuration == wanted
    )


def ordered_values(knob: KnobInfo, tried: Iterable[Value]) -> tuple[Value, ...]:
    """Return the knob's grid, then tried values outside it, in order."""
    outside = set(tried) - set(knob.values)
    return knob.values + tuple(sorted(outside, key=lambda value: (isinstance(value, str), value)))


def varied_knobs(study: StudyRecord) -> tuple[KnobInfo, ...]:
    """Return knobs with at least two tried values."""
    tried = (
        {trial.configuration.get(knob.name) for trial in study.trials} - {None}
        for knob in study.knobs
    )
    return tuple(knob for knob, seen in zip(study.knobs, tried, strict=True) if len(seen) > 1)


def changed_knobs(study: StudyRecord) -> tuple[str, ...]:
    """Return knobs whose best value differs from the default."""
    default, best = study.default, study.best
    names = (knob.name for knob in study.knobs)
    return () if best is None else tuple(n for n in names if best.get(n) != default.get(n))


def has_two_arms(study: StudyRecord) -> bool:
    """Return whether there is a best to compare with the default."""
    return study.best is not None and (study.best != study.default or study.verdict is not None)


def figures_of_merit(study: StudyRecord) -> tuple[str, ...]:
    """Return the study's own objectives, and the common ones."""
    second = () if study.second is None else (study.second,)
    return tuple(dict.fromkeys((study.objective, *second, "mean", "p99", "throughput")))


def compare_metric(study: StudyRecord, name: str) -> MetricComparison | None:
    """Compare one metric, or return None if the verdict lacks it."""
    verdict = study.verdict
    if verdict is None:
        return None
    found: dict[str, tuple[float | None, Interval, VerdictOutcome | None]] = {
        "p99": (verdict.p99_ratio, verdict.p99_interval, None),
        "throughput": (verdict.throughput_ratio, verdict.throughput_interval, None),
    }
    if (second := verdict.second) is not None:
        found[second.objective] = second.ratio, second.interval, second.outcome
    found[study.objective] = verdict.ratio, verdict.interval, verdict.outcome
    ratio, interval, outcome = found.get(name, (None, UNKNOWN, None))
    if ratio is None:
        return None
    outcome = outcome or objectives.find_objective(name).judge(interval)
    return MetricComparison(ratio=ratio, interval=interval, outcome=outcome)


def limits(study: StudyRecord) -> str | None:
    """Describe the metric constraints, or return None if there are none."""
    kept = study.settings.get("measurement", {})
    found = [f"p99 <= {kept['slo_ms']:g} ms"] if kept.get("slo_ms") else []
    if study.objective == "goodput":
        found = [f"a deadline of {kept['slo_ms']:g} ms for each request"]
    return " and ".join((*found, *kept.get("constraints", ()))) or None


def has_energy(study: StudyRecord) -> bool:
    """Return whether any evaluation measured energy."""
    return any(t.measurement is not None and t.measurement.energy is not None for t in study.trials)


def in_short(study: StudyRecord, configuration: Configuration) -> str:
    """Describe the knobs that differ from the default, by short names."""
    changed = [
        f"{name.rpartition('.')[2]}={formatting.knob_value(value)}"
        for name, value in configuration.items()
        if study.default.get(name) != value
    ]
    return " ".join(changed) or "the default"


def is_luckier_than_best(study: StudyRecord) -> Trial | None:
    """Return the trial with the best measurement, unless it has the best configuration."""
    objective = objectives.find_objective(study.objective)
    measured = [(trial, value) for trial in study.trials if (value := objective.of(trial))]
    if not measured or study.best is None or not study.is_finished:
        return None
    sign = 1 if objective.is_minimised else -1
    first, _ = min(measured, key=lambda pair: sign * pair[1])
    return None if first.configuration == study.best else first


def causes_in_words(trials: Iterable[Trial]) -> str:
    """Describe failure causes, most frequent first: "oom 9, timeout 3"."""
    return ", ".join(f"{cause} {count}" for cause, count in count_causes(trials))


def count_causes(trials: Iterable[Trial]) -> list[tuple[str, int]]:
    """Return failure causes with counts, most frequent first."""
    counts = collections.Counter(trial.outcome.cause or trial.outcome.status for trial in trials)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
