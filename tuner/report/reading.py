"""What pages and figures ask of a study: trials searched and failed, what a role measured.

In: `StudyRecord`. Out: values. No figure and no HTML here, so that a page and a terminal say the
same.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from tuner import advice as advices
from tuner import objective as objectives
from tuner.advice import advised, export_of_best
from tuner.report import wording
from tuner.values import (
    LEAST_FOR_P99,
    MOST_LITTLE_ERROR,
    Configuration,
    KnobInfo,
    Measurement,
    StudyRecord,
    Trial,
    Value,
)

Role = Literal["default", "best"]
ROLES: tuple[Role, Role] = ("default", "best")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One figure of merit of one role over its launches: geometric mean, smallest, largest."""

    middle: float
    low: float
    high: float

    @classmethod
    def over(cls, values: Iterable[float]) -> Figure:
        """Summarise positive values; geometric mean, because ratios of it are what is compared."""
        known = [value for value in values if value > 0]
        if not known:
            return cls(middle=math.nan, low=math.nan, high=math.nan)
        middle = math.exp(math.fsum(map(math.log, known)) / len(known))
        return cls(middle=middle, low=min(known), high=max(known))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """The measurements that stand for a role, and where they come from."""

    measurements: tuple[Measurement, ...]
    is_verified: bool
    """True: alternating fresh starts after the search. False: launches of the search itself."""

    def figure(self, field: str) -> Figure:
        """Summary of one field of the measurements, such as `mean_ms`."""
        return Figure.over(getattr(item, field) for item in self.measurements)

    @property
    def fewest_requests(self) -> int:
        """Requests of the shortest launch."""
        return min((item.requests for item in self.measurements), default=0)


def succeeded(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials that were ok and measured."""
    return tuple(trial for trial in trials if trial.measurement is not None)


def failed(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Trials that were infeasible or failed."""
    return tuple(trial for trial in trials if trial.outcome.status != "ok")


def best_so_far(study: StudyRecord) -> list[tuple[int, float]]:
    """(trial number, best objective up to it) of the trials from the first ok one on."""
    objective = objectives.named(study.objective)
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


def configuration_of(study: StudyRecord, role: Role) -> Configuration | None:
    """The role's configuration."""
    return study.default if role == "default" else study.best


def launches(study: StudyRecord, role: Role) -> Launches:
    """Measurements of the role: those of the verdict, else those of the search."""
    if study.verdict is not None:
        found = study.verdict.default if role == "default" else study.verdict.best
        if found:
            return Launches(measurements=found, is_verified=True)
    wanted = configuration_of(study, role)
    measured = tuple(
        trial.measurement
        for trial in study.trials
        if trial.measurement is not None and trial.configuration == wanted
    )
    return Launches(measurements=measured, is_verified=False)


def tried_values(study: StudyRecord, knob: KnobInfo) -> tuple[Value, ...]:
    """Values of the knob that some trial had, in the order of the grid, others after."""
    seen = {trial.configuration.get(knob.name) for trial in study.trials}
    inside = tuple(value for value in knob.values if value in seen)
    outside = {value for value in seen if value is not None and value not in knob.values}
    return inside + tuple(sorted(outside, key=lambda value: (isinstance(value, str), value)))


def varied_knobs(study: StudyRecord) -> tuple[KnobInfo, ...]:
    """Knobs of which at least two values were tried."""
    return tuple(knob for knob in study.knobs if len(tried_values(study, knob)) > 1)


def changed_knobs(study: StudyRecord) -> tuple[str, ...]:
    """Names of the knobs whose best value differs from the default, in the order of the study."""
    if study.best is None:
        return ()
    best = study.best
    return tuple(
        knob.name for knob in study.knobs if best.get(knob.name) != study.default.get(knob.name)
    )


def has_two_sides(study: StudyRecord) -> bool:
    """Whether there is a best to put beside the default."""
    return study.best is not None and (study.best != study.default or study.verdict is not None)


def duration_s(study: StudyRecord) -> float:
    """Seconds of launching, loading and measuring over all trials, without what lies between."""
    return math.fsum(
        trial.launch_s
        + trial.overhead_s
        + (trial.measurement.warmup_s + trial.measurement.seconds if trial.measurement else 0.0)
        for trial in study.trials
    )


def headline(study: StudyRecord) -> str:
    """The answer in one sentence: what fresh starts showed, or why they show nothing."""
    found = advices.standing(study)
    if found is None:
        if not study.trials:
            return "Nothing was measured: the study has no trial."
        return f"No configuration worked: {_failures(failed(study.trials))}."
    if study.verdict is not None and found == study.verdict.outcome:
        return study.verdict.text
    default, best = advices.tallies(study)
    trouble = advices.trouble_of_default(study)
    again = "was not re-measured"
    if best.launched:
        again = f"worked on {best.launched - best.failed} of {best.launched} fresh starts"
    return {
        "same": "The default configuration is the best that was found; nothing to change.",
        "nothing works": f"The default does not work here ({trouble}), and the best that was found "
        f"{advices.failed(best)}.",
        "default lost": f"The default does not work here ({trouble}); the best {again}.",
        "best fails": f"The best that was found is no solution: it {advices.failed(best)}, the "
        f"default {advices.share(default)}.",
        "default fails": f"The default {advices.failed(default)}, the best {advices.share(best)}.",
        "not compared": "Too few pairs of fresh starts worked to compare default and best: the "
        f"default {advices.failed(default)}, the best {advices.share(best)}.",
        "not measured": "A better configuration was seen in the search, but it was not re-measured "
        "beside the default: take its figures as a guess.",
    }[found]


def tone(study: StudyRecord) -> Literal["better", "worse"] | None:
    """Whether the best was shown to be better or worse than the default, by its figures or by failures."""
    found = advices.standing(study)
    if found in {"better", "default fails"}:
        return "better"
    return "worse" if found in {"worse", "best fails"} else None


def advice(study: StudyRecord) -> tuple[str, ...]:
    """What to run and why, and how to have what was found all the same; nothing where that was said."""
    found = advised(study)
    if found is None or study.best == study.default:
        return ()
    command = export_of_best(study)
    if command is None:
        return (found.reason,)
    return (found.reason, f"The best that was found, to try all the same: {command}")


def cautions(study: StudyRecord) -> tuple[str, ...]:
    """What the launches themselves say against the result, beside the study's own notes."""
    found = list(advices.failures(study))
    broken = failed(study.trials)
    if broken:
        whole = wording.plural(len(study.trials), "trial")
        found.append(f"{len(broken)} of {whole} gave no figure: {_failures(broken)}.")
    off = [
        trial.number
        for trial in study.trials
        if trial.measurement is not None and trial.measurement.little_error > MOST_LITTLE_ERROR
    ]
    if off:
        numbers = ", ".join(map(str, off[:8])) + (" ..." if len(off) > 8 else "")
        found.append(
            f"The load was not what it should have been in {wording.plural(len(off), 'trial')} "
            f"({numbers}): throughput x mean is more than {wording.percent(MOST_LITTLE_ERROR)} off the "
            "concurrency."
        )
    errors = sum(trial.measurement.errors for trial in study.trials if trial.measurement)
    if errors:
        found.append(f"{wording.plural(errors, 'request')} failed in trials that count as ok.")
    fewest = [launches(study, role).fewest_requests for role in ROLES]
    short = [count for count in fewest if 0 < count < LEAST_FOR_P99]
    if short:
        found.append(
            f"p99 rests on as few as {wording.plural(min(short), 'request')} a launch; below "
            f"{LEAST_FOR_P99} it has no upper end."
        )
    return tuple(found)


def _failures(trials: Iterable[Trial]) -> str:
    """Causes with their counts, the most frequent first: "oom 9, timeout 3"."""
    causes = [trial.outcome.cause or trial.outcome.status for trial in trials]
    names, counts = np.unique(causes, return_counts=True)
    order = sorted(zip(counts.tolist(), names.tolist(), strict=True), key=lambda x: (-x[0], x[1]))
    return ", ".join(f"{name} {count}" for count, name in order)
