"""The result of a study in one or two sentences, and what to run."""

from __future__ import annotations

import datetime as dt
import math
import pathlib
import statistics
from collections.abc import Iterable
from typing import Literal

from tuner import advice as advices
from tuner.advice import advise, export_of_best
from tuner.metrics import prices
from tuner.report import formatting
from tuner.report.study.study_view import (
    causes_in_words,
    count_causes,
    failed_trials,
    successful_trials,
)
from tuner.settings.measurement import MeasurementSettings
from tuner.values.study_record import StudyRecord
from tuner.values.trial import Trial

SHOWN = frozenset({"better", "worse", "no difference shown", "traded"})


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
            way = f" Use a limit that can be kept.{_nearest(study)}"
        elif causes == {"overload"}:
            way = " Use a rate that can be served; --find-rate finds it."
        return f"No configuration worked: {_reasons(study.trials)}.{way}"
    if study.verdict is not None and found in SHOWN:
        second = "" if study.verdict.second is None else f" {study.verdict.second.text}"
        return f"{study.verdict.text}{second}{_money(study)}"
    default, best = advices.failure_counts(study)
    trouble = advices.trouble_of_default(study)
    again = "was not re-evaluated"
    if best.evaluations:
        again = f"worked in {best.evaluations - best.failed} of {best.evaluations} evaluations"
    return {
        "same": _same(study),
        "nothing works": f"The default does not work here ({trouble}), and the best configuration found "
        f"{advices.failure_text(best)}.",
        "default lost": f"The default does not work here ({trouble}); the best {again}.",
        "best fails": f"The best configuration found is no solution: it {advices.failure_text(best)}, "
        f"the default {advices.share(default)}.",
        "default fails": f"The default {advices.failure_text(default)}, the best {advices.share(best)}.",
        "not compared": "Too few pairs of evaluations worked to compare default and best: the default "
        f"{advices.failure_text(default)}, the best {advices.share(best)}.",
        "not measured": "The search found a better configuration, but it was not re-evaluated beside the "
        "default: treat its figures as an estimate.",
    }[found]


def _money(study: StudyRecord) -> str:
    file = pathlib.Path(study.folder) / prices.COPY
    if study.verdict is None or not file.is_file():
        return ""
    currency = prices.read(str(file)).currency
    sides = [
        [one.price for one in evaluations if one.price > 0]
        for evaluations in (study.verdict.best, study.verdict.default)
    ]
    if not all(sides):
        return ""
    best, default = (formatting.number(statistics.geometric_mean(side)) for side in sides)
    return f" 1,000 requests cost {best}{currency and f' {currency}'} instead of {default}."


def _nearest(study: StudyRecord) -> str:
    measurement = study.settings.get("measurement", {})
    limits = MeasurementSettings(
        constraints=tuple(measurement.get("constraints", ())), slo_ms=measurement.get("slo_ms")
    ).limits
    beyond = {
        trial.number: max(limit.log_excess(limit.of.value(trial.missed)) for limit in limits)
        for trial in study.trials
        if trial.missed is not None and limits
    }
    if not beyond:
        return ""
    number = min(beyond, key=lambda one: beyond[one])
    return f" Trial {number} came nearest, {formatting.percent(math.expm1(beyond[number]))} beyond."


def tone(study: StudyRecord) -> Literal["better", "worse"] | None:
    """Return whether the best was shown to be better or worse, or None if neither."""
    if not study.is_finished:
        return None
    found = advices.best_status(study)
    if found in {"better", "traded", "default fails"}:
        return "better"
    return "worse" if found in {"worse", "best fails"} else None


def advice(study: StudyRecord) -> tuple[str, ...]:
    """Return a finished study's reason for its recommendation, unless the default is best."""
    found = advise(study) if study.is_finished else None
    return () if found is None or study.best == study.default else (found.reason,)


def confirmations(study: StudyRecord) -> tuple[str, ...]:
    """Return how exports did where they ran, a line for each, newest first."""
    return tuple(
        f"{dt.datetime.fromtimestamp(one.measured_at, tz=dt.UTC):%Y-%m-%d %H:%M} UTC, {one.where}: "
        f"{one.text} Not checked: {'; '.join(one.unchecked)}."
        for one in reversed(study.confirmations)
    )


def to_try(study: StudyRecord) -> str | None:
    """Return the command to export the best; None while unfinished or if the default is best."""
    return export_of_best(study) if study.is_finished and study.best != study.default else None


TO_TRY = "Best configuration found (improvement not shown):"


def _so_far(study: StudyRecord) -> str:
    if not study.trials:
        return "nothing has been measured yet"
    tried = formatting.plural(len(study.trials), "trial")
    if study.best is None:
        return f"none of {tried} so far worked: {_reasons(study.trials)}"
    if study.failure_counts:
        return f"the search ended after {tried}, and the best is being re-evaluated"
    if study.best == study.default:
        return f"the default is the best of {tried} so far"
    return f"one of {tried} so far is better than the default, but not re-evaluated yet"


def _same(study: StudyRecord) -> str:
    others = {trial.configuration for trial in study.trials} - {study.default}
    if not others:
        return (
            "Nothing was searched: only the default configuration was evaluated. Use "
            "more time (--max-time) or trials."
        )
    tried = formatting.plural(len(others) + 1, "configuration")
    if not any(trial.configuration in others for trial in successful_trials(study.trials)):
        return f"The default configuration is the only one of {tried} that worked."
    return f"The default configuration is the best of {tried}; nothing to change."


def _reasons(trials: Iterable[Trial]) -> str:
    broken = failed_trials(trials)
    (most, _), *_ = count_causes(broken)
    first = next(trial for trial in broken if most in (trial.outcome.cause, trial.outcome.status))
    return f"{causes_in_words(broken)}; for example trial {first.number}: {first.outcome.reason.rstrip('.')}"
