"""Facts of a study for pages, figures and the terminal."""

from __future__ import annotations

import collections
import dataclasses
import math
import pathlib
import statistics
from collections.abc import Iterable, Iterator
from typing import Literal

from serving.settings import SETTINGS
from tuner import advice as advices
from tuner.advice import advise, export_of_best
from tuner.metrics import objective as objectives
from tuner.metrics import prices, tail_latency
from tuner.metrics.tail_latency import TailLatency
from tuner.report import formatting, open_loop
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.workload import workload_in_words
from tuner.values.configuration import Configuration, Value
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import LATE_S, MAX_LATE_SHARE, MAX_LITTLES_LAW_ERROR, Measurement
from tuner.values.study_record import KnobInfo, StudyRecord
from tuner.values.trial import Trial
from tuner.values.verdict import VerdictOutcome

ArmName = Literal["default", "best"]
SHOWN = frozenset({"better", "worse", "no difference shown"})
"""Statuses of a best that was compared with the default."""
P99 = objectives.find_objective("p99").field
ARMS: tuple[ArmName, ArmName] = ("default", "best")
SEARCHES = {
    "structured": "a prediction from the model's profile and a Gaussian process",
    "gp": "a Gaussian process",
}
"""Samplers in plain words."""
MAX_GROUPS = 5
"""Maximum groups of models that are listed by name."""
ALL = 0.999
"""Share of requests in time that leaves nothing to improve."""
PLAIN = (
    "answers checked",
    "the budget of",
    "ended early after",
    "accelerator.clock_mhz left out",
    "accelerator.share left out",
    "energy counts",
    "cost counts",
    "cost is the price",
    "accuracy of the model's variants",
    "not shown in an open loop",
    "starts from what earlier studies",
    "fixed, and not searched:",
    "no prediction:",
)
"""First words of notes that are for information only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricSummary:
    """A metric over an arm's evaluations."""

    middle: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> MetricSummary:
        """Summarise positive values; the geometric mean suits ratios."""
        known = [value for value in values if value > 0]
        if not known:
            return cls(middle=math.nan, low=math.nan, high=math.nan)
        middle = math.exp(math.fsum(map(math.log, known)) / len(known))
        return cls(middle=middle, low=min(known), high=max(known))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A metric's ratio of best to default, from round evaluations."""

    ratio: float
    interval: Interval
    outcome: VerdictOutcome
    """What the interval shows for this metric."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArmMeasurements:
    """An arm's measurements and their origin."""

    measurements: tuple[Measurement, ...]
    is_verified: bool
    """True: round evaluations after the search. False: the search's own."""

    @property
    def tail(self) -> TailLatency:
        """p99 of all their requests pooled."""
        return tail_latency.pooled(self.measurements)

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
    def fewest_requests(self) -> int:
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
    """Return the trials that were ok and measured."""
    return tuple(trial for trial in trials if trial.measurement is not None)


def failed_trials(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return the infeasible and failed trials."""
    return tuple(trial for trial in trials if trial.outcome.status != "ok")


def best_so_far(study: StudyRecord) -> list[tuple[int, float]]:
    """Return (trial number, best objective so far), from the first success."""
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


def configuration_of(study: StudyRecord, role: ArmName) -> Configuration | None:
    """Return the arm's configuration."""
    return study.default if role == "default" else study.best


def arm_measurements(study: StudyRecord, role: ArmName) -> ArmMeasurements:
    """Return the arm's measurements, from the verdict if any, else the search."""
    if study.verdict is not None:
        found = study.verdict.default if role == "default" else study.verdict.best
        if found:
            return ArmMeasurements(measurements=found, is_verified=True)
    wanted = configuration_of(study, role)
    measured = tuple(
        trial.measurement
        for trial in study.trials
        if trial.measurement is not None and trial.configuration == wanted
    )
    return ArmMeasurements(measurements=measured, is_verified=False)


def tried_values(study: StudyRecord, knob: KnobInfo) -> tuple[Value, ...]:
    """Return the knob's tried values, in grid order, others last."""
    seen = {trial.configuration.get(knob.name) for trial in study.trials}
    inside = tuple(value for value in knob.values if value in seen)
    outside = {value for value in seen if value is not None and value not in knob.values}
    return inside + tuple(sorted(outside, key=lambda value: (isinstance(value, str), value)))


def varied_knobs(study: StudyRecord) -> tuple[KnobInfo, ...]:
    """Return the knobs with at least two tried values."""
    return tuple(knob for knob in study.knobs if len(tried_values(study, knob)) > 1)


def changed_knobs(study: StudyRecord) -> tuple[str, ...]:
    """Return the knobs whose best value differs from the default."""
    if study.best is None:
        return ()
    best = study.best
    return tuple(
        knob.name for knob in study.knobs if best.get(knob.name) != study.default.get(knob.name)
    )


def has_two_arms(study: StudyRecord) -> bool:
    """Whether there is a best to compare with the default."""
    return study.best is not None and (study.best != study.default or study.verdict is not None)


def _money(study: StudyRecord) -> str:
    """Return the cost of 1,000 requests on both sides, with known prices."""
    file = pathlib.Path(study.folder) / prices.COPY
    if study.verdict is None or not file.is_file():
        return ""
    currency = prices.read(str(file)).currency
    sides = [
        [one.price for one in launches if one.price > 0]
        for launches in (study.verdict.best, study.verdict.default)
    ]
    if not all(sides):
        return ""
    best, default = (formatting.number(statistics.geometric_mean(side)) for side in sides)
    return f" 1,000 requests cost {best}{currency and f' {currency}'} instead of {default}."


def headline(study: StudyRecord) -> str:
    """Return the result in one or two sentences."""
    if not study.is_finished:
        return f"The study is not finished: {_so_far(study)}."
    found = advices.best_status(study)
    if found is None:
        if not study.trials:
            return "Nothing was measured: the study has no trial."
        causes = {trial.outcome.cause for trial in study.trials}
        way = ""
        if causes == {"constraint"} and study.shared is None:
            way = f" Give a limit that can be kept.{_nearest(study)}"
        elif causes == {"overload"}:
            way = " Give a rate that can be served; --find-rate finds it."
        return f"No configuration worked: {_reasons(study.trials)}.{way}"
    if study.verdict is not None and found in {*SHOWN, "traded"}:
        second = study.verdict.second
        told = study.verdict.text if second is None else f"{study.verdict.text} {second.text}"
        return f"{told}{_money(study)}"
    default, best = advices.failure_counts(study)
    trouble = advices.trouble_of_default(study)
    again = "was not re-measured"
    if best.launched:
        again = f"worked on {best.launched - best.failed} of {best.launched} fresh starts"
    return {
        "same": _same(study),
        "nothing works": f"The default does not work here ({trouble}), and the best that was found "
        f"{advices.failure_text(best)}.",
        "default lost": f"The default does not work here ({trouble}); the best {again}.",
        "best fails": f"The best that was found is no solution: it {advices.failure_text(best)}, the "
        f"default {advices.share(default)}.",
        "default fails": f"The default {advices.failure_text(default)}, the best {advices.share(best)}.",
        "not compared": "Too few pairs of fresh starts worked to compare default and best: the "
        f"default {advices.failure_text(default)}, the best {advices.share(best)}.",
        "not measured": "A better configuration was seen in the search, but it was not re-measured "
        "beside the default: take its figures as a guess.",
    }[found]


def _nearest(study: StudyRecord) -> str:
    """Return the evaluation nearest to the metric constraints, if any."""
    told = [trial for trial in study.trials if trial.missed is not None]
    if not told:
        return ""
    limits_ = MeasurementSettings(
        constraints=tuple(study.settings.get("measurement", {}).get("constraints", ())),
        slo_ms=study.settings.get("measurement", {}).get("slo_ms"),
    ).limits
    beyond = {
        trial.number: max(limit.slack(limit.of.value(trial.missed)) for limit in limits_)
        for trial in told
        if trial.missed is not None and limits_
    }
    if not beyond:
        return ""
    number = min(beyond, key=lambda one: beyond[one])
    return f" Trial {number} came nearest, {formatting.percent(math.expm1(beyond[number]))} beyond."


def tone(study: StudyRecord) -> Literal["better", "worse"] | None:
    """Return whether the best was shown better or worse."""
    if not study.is_finished:
        return None
    found = advices.best_status(study)
    if found in {"better", "traded", "default fails"}:
        return "better"
    return "worse" if found in {"worse", "best fails"} else None


def figures_of_merit(study: StudyRecord) -> tuple[str, ...]:
    """Return the study's own and the common objectives."""
    second = () if study.second is None else (study.second,)
    return tuple(dict.fromkeys((study.objective, *second, "mean", "p99", "throughput")))


def compare_metric(study: StudyRecord, name: str) -> MetricComparison | None:
    """Return the comparison in one metric, if the verdict has it."""
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
    outcome = objectives.find_objective(name).judged(interval)
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


def advice(study: StudyRecord) -> tuple[str, ...]:
    """Return what to run and why, unless already reported."""
    found = advise(study) if study.is_finished else None
    return () if found is None or study.best == study.default else (found.reason,)


def to_try(study: StudyRecord) -> str | None:
    """Return the export command for the best, if not recommended."""
    return export_of_best(study) if study.is_finished and study.best != study.default else None


TO_TRY = "The best that was found, to try all the same:"
"""Introduces `to_try`."""


def is_plain(note: str) -> bool:
    """Whether a note is for information only."""
    return note.lower().startswith(PLAIN)


def warnings(study: StudyRecord) -> tuple[str, ...]:
    """Return the reasons to doubt the result."""
    own = (note for note in study.notes if not is_plain(note))
    return (*own, *cautions(study), *open_loop.cautions(study))


def remarks(study: StudyRecord) -> tuple[str, ...]:
    """Return the notes for information."""
    meant = meaning_of_default(study)
    return (
        *filter(is_plain, study.notes),
        *(() if meant is None else (meant,)),
        *_front(study),
        *_ties(study),
        *_of_evaluations(study),
        *_against_prediction(study),
        *_all_in_time(study),
        *open_loop.sentences(study),
        *_refused_tails(study),
    )


def _front(study: StudyRecord) -> Iterator[str]:
    """Yield the points of the Pareto front."""
    if study.second is None or not study.front:
        return
    sides = objectives.find_objective(study.objective), objectives.find_objective(study.second)
    shown = "; ".join(
        ", ".join(
            formatting.quantity(value, side.unit)
            for value, side in zip(point.values, sides, strict=True)
        )
        + f" ({in_short(study, point.configuration)}"
        + (", chosen" if point.is_chosen else f", trial {point.trial}")
        + ")"
        for point in study.front
    )
    yield (
        f"The front of {sides[0].label} and {sides[1].label} has "
        f"{formatting.plural(len(study.front), 'point')}: {shown}."
    )


def _of_evaluations(study: StudyRecord) -> Iterator[str]:
    """Yield the noise between evaluations, without machine drift."""
    if study.verdict is not None and study.verdict.launch_sd is not None:
        yield (
            f"Launches have {formatting.percent(study.verdict.launch_sd)} of their own in the ratio of best to default "
            "(standard deviation); the interval has it."
        )


def _ties(study: StudyRecord) -> Iterator[str]:
    """Yield the configurations that may equally be the best."""
    tied = [one for one in study.finalists[1:] if one.is_tied]
    if not tied:
        return
    shown = "; ".join(
        f"{in_short(study, one.configuration)}"
        + (f", {formatting.ratio(one.ratio, one.interval)}" if one.is_compared else "")
        for one in tied
    )
    whole = formatting.plural(len(tied), "configuration")
    yield (
        f"{whole} could as well be the best: {shown}. Of those that cannot be told apart the cheapest "
        "is chosen, then the one nearest to the default."
    )


def _against_prediction(study: StudyRecord) -> Iterator[str]:
    """Yield how the best compares with the prediction's choice."""
    against = None if study.verdict is None else study.verdict.against_guess
    if against is None:
        return
    yield (
        f"Without any search, a prediction from the model's profile would choose "
        f"{in_short(study, against.configuration)}: best over that "
        f"{formatting.ratio(against.ratio, against.interval)}, {against.outcome}, "
        f"{formatting.plural(against.pairs, 'pair')} of fresh launches."
    )


def _all_in_time(study: StudyRecord) -> Iterator[str]:
    """Yield a note that a scenario demands too little to compare configurations."""
    found = arm_measurements(study, "default").measurements
    offered = sum(one.offered_per_s for one in found)
    if study.shared is None or study.objective != "goodput" or not offered:
        return
    if sum(one.goodput_per_s for one in found) >= ALL * offered:
        yield (
            "The default answers all that is due in time, so that nothing can be better: give the scenario the rates "
            "that are feared, or shorter deadlines."
        )


def in_short(study: StudyRecord, configuration: Configuration) -> str:
    """Return the knobs that differ from the default, by short names."""
    changed = [
        f"{name.rpartition('.')[2]}={formatting.knob_value(value)}"
        for name, value in configuration.items()
        if study.default.get(name) != value
    ]
    return " ".join(changed) or "the default"


def meaning_of_default(study: StudyRecord) -> str | None:
    """Return the default's meaning, if it differs from the untuned server."""
    if study.shared is not None:
        return (
            "Default means what the scenario's file says (workers, memory, settings), and the search space's "
            "default where it says nothing."
        )
    limits = [
        f"{knob.name} = {formatting.knob_value(value)}"
        for knob in study.knobs
        if knob.name in SETTINGS
        and not study.is_of_other_engine
        and SETTINGS[knob.name].default is None
        and str not in SETTINGS[knob.name].kinds  # the default variant is the untuned one
        and (value := study.default.get(knob.name)) is not None
    ]
    if not limits:
        return None
    return (
        f"Default means that of the search space, with {' and '.join(limits)}; the untuned server "
        "sets no such limit."
    )


def is_luckier_than_best(study: StudyRecord) -> Trial | None:
    """Return the trial with the best measurement, unless it has the best configuration."""
    objective = objectives.find_objective(study.objective)
    measured = [(trial, value) for trial in study.trials if (value := objective.of(trial))]
    if not measured or study.best is None or not study.is_finished:
        return None
    sign = 1 if objective.is_minimised else -1
    first, _ = min(measured, key=lambda pair: sign * pair[1])
    return None if first.configuration == study.best else first


def cautions(study: StudyRecord) -> tuple[str, ...]:
    """Return what the evaluations say against the result."""
    found = [*advices.failures(study), *_worse_beside(study)]
    broken = failed_trials(study.trials)
    if broken and successful_trials(study.trials):
        whole = formatting.plural(len(study.trials), "trial")
        found.append(f"{len(broken)} of {whole} gave no figure: {_failures(broken)}.")
    off = [
        trial.number
        for trial in study.trials
        if trial.measurement is not None
        and (trial.measurement.little_error or 0.0) > MAX_LITTLES_LAW_ERROR
    ]
    if off:
        numbers = ", ".join(map(str, off[:8])) + (" ..." if len(off) > 8 else "")
        found.append(
            f"The load was not what it should have been in {formatting.plural(len(off), 'trial')} "
            f"({numbers}): throughput x mean is more than {formatting.percent(MAX_LITTLES_LAW_ERROR)} off the "
            "concurrency."
        )
    found += _sent_late(study)
    errors = sum(trial.measurement.errors for trial in study.trials if trial.measurement)
    if errors:
        found.append(f"{formatting.plural(errors, 'request')} failed in trials that count as ok.")
    return tuple(found)


def _sent_late(study: StudyRecord) -> Iterator[str]:
    """Yield a note that clients were late in the comparison."""
    shares = {
        role: statistics.fmean(one.late_share or 0.0 for one in side.measurements)
        for role in ARMS
        if (side := arm_measurements(study, role)).is_verified
    }
    if max(shares.values(), default=0.0) > MAX_LATE_SHARE:
        told = (f"{formatting.percent(share)} of the {role}'s" for role, share in shares.items())
        yield (
            f"Of the requests by which they are compared, {' and '.join(told)} were sent more than "
            f"{1e3 * LATE_S:g} ms after they were due: all connections were busy, or the load generator was; "
            "the wait counts."
        )


def _refused_tails(study: StudyRecord) -> Iterator[str]:
    """Yield why a p99 is missing."""
    for role in ARMS if has_two_arms(study) else ARMS[:1]:
        side = arm_measurements(study, role)
        if side.measurements and not side.tail.is_told:
            yield f"No p99 of the {role}: {side.tail.why_not}."


def _worse_beside(study: StudyRecord) -> Iterator[str]:
    """Yield metrics that got worse unlike the objective."""
    if study.verdict is None or study.verdict.outcome == "worse":
        return
    for name, field in (("p99", P99), ("throughput", "throughput_per_s")):
        beside = compare_metric(study, name)
        # p99 rises with the rate up to its bound, and with what a scenario's deadline admits.
        is_meant = (study.objective == "rate" or study.shared is not None) and name == "p99"
        if name == study.objective or is_meant:
            continue
        objective = objectives.find_objective(name)
        if beside is None:
            yield from _longer_tail(study) if name == "p99" else ()
            continue
        if beside.outcome != "worse":
            continue
        default, best = (arm_measurements(study, role).figure(field).middle for role in ARMS)
        yield (
            f"The {objective.label} of the best is worse than that of the default: "
            f"{formatting.number(default)} → {formatting.number(best)} {objective.unit}, "
            f"{formatting.ratio(beside.ratio, beside.interval)}."
        )


def _longer_tail(study: StudyRecord) -> Iterator[str]:
    """Yield a note that the best's p99 is longer, by pooled requests."""
    default, best = (arm_measurements(study, role).tail for role in ARMS)
    ends = default.interval.high, best.interval.low
    if ends[0] is None or ends[1] is None or ends[1] <= ends[0]:
        return
    yield (
        "The p99 of the best is worse than that of the default over the requests of all fresh starts "
        f"together: {formatting.tail(default)} → {formatting.tail(best)} ms. Where the slowest requests count, "
        f"limit them (--constraint 'p99_ms <= {formatting.number(default.value_ms)}'), or search for them "
        "(--objective p99)."
    )


def _so_far(study: StudyRecord) -> str:
    """Describe an unfinished study, as the end of a sentence."""
    if not study.trials:
        return "nothing was measured yet"
    tried = formatting.plural(len(study.trials), "trial")
    if study.best is None:
        return f"of {tried} so far none worked: {_reasons(study.trials)}"
    if study.fresh_starts:
        return f"the search ended after {tried}, and its best is being measured again"
    if study.best == study.default:
        return f"of {tried} so far the default has the best figure"
    return f"of {tried} so far one has a better figure than the default, not measured again yet"


def _same(study: StudyRecord) -> str:
    """Report that the default is the best."""
    others = {trial.configuration for trial in study.trials} - {study.default}
    if not others:
        return (
            "Nothing was searched: only the default configuration was launched. Give the study "
            "more time (--max-time) or trials."
        )
    tried = formatting.plural(len(others) + 1, "configuration")
    if not any(trial.configuration in others for trial in successful_trials(study.trials)):
        return f"The default configuration is the only one of {tried} that worked."
    return (
        f"The default configuration is the best of {tried} that were launched; nothing to change."
    )


def _reasons(trials: Iterable[Trial]) -> str:
    """Return the causes with counts, and an example."""
    broken = failed_trials(trials)
    (most, _), *_ = _count_causes(broken)
    first = next(trial for trial in broken if most in (trial.outcome.cause, trial.outcome.status))
    return (
        f"{_failures(broken)}; for example trial {first.number}: {first.outcome.reason.rstrip('.')}"
    )


def _failures(trials: Iterable[Trial]) -> str:
    """Return the causes with counts, most frequent first: "oom 9, timeout 3"."""
    return ", ".join(f"{cause} {count}" for cause, count in _count_causes(trials))


def _count_causes(trials: Iterable[Trial]) -> list[tuple[str, int]]:
    counts = collections.Counter(trial.outcome.cause or trial.outcome.status for trial in trials)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))
