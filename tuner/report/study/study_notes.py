"""Notes on a study: reasons to doubt the result, and remarks."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from serving.settings import SETTINGS
from tuner import advice as advices
from tuner.metrics import objective as objectives
from tuner.report import formatting, open_loop
from tuner.report.study.study_view import (
    ARMS,
    arm_measurements,
    causes_in_words,
    compare_metric,
    failed_trials,
    has_two_arms,
    in_short,
    successful_trials,
)
from tuner.values.measurement import LATE_S, MAX_LATE_SHARE, MAX_LITTLES_LAW_ERROR
from tuner.values.study_record import StudyRecord

ALL = 0.999
MORE_CPU = 1.2
"""Ratio of the CPU time that best and default hold for a request above which it is noted."""

PLAIN = (
    "answers checked",
    "the budget of",
    "ended early after",
    "limits: of the whole server",
    "accelerator.clock_mhz left out",
    "accelerator.share left out",
    "energy counts",
    "cost counts",
    "cost is the price",
    "accuracy of the model's variants",
    "not shown in an open loop",
    "starts from earlier studies",
    "fixed, not searched:",
    "no prediction:",
)


def is_plain(note: str) -> bool:
    """Whether a note gives no reason for doubt."""
    return note.lower().startswith(PLAIN)


def warnings(study: StudyRecord) -> tuple[str, ...]:
    """Return all reasons to doubt the result."""
    own = (note for note in study.notes if not is_plain(note))
    return (*own, *cautions(study), *open_loop.cautions(study))


def remarks(study: StudyRecord) -> tuple[str, ...]:
    """Return informational notes."""
    meant = meaning_of_default(study)
    return (
        *filter(is_plain, study.notes),
        *(() if meant is None else (meant,)),
        *_front(study),
        *_ties(study),
        *_of_evaluations(study),
        *_against_prediction(study),
        *_more_cpu(study),
        *_all_in_time(study),
        *open_loop.sentences(study),
        *_refused_tails(study),
    )


def _front(study: StudyRecord) -> Iterator[str]:
    if study.second is None or not study.pareto_front:
        return
    sides = objectives.find_objective(study.objective), objectives.find_objective(study.second)
    shown = []
    for point in study.pareto_front:
        pairs = zip(point.values, sides, strict=True)
        values = ", ".join(formatting.quantity(value, side.unit) for value, side in pairs)
        which = "chosen" if point.is_chosen else f"trial {point.trial}"
        shown.append(f"{values} ({in_short(study, point.configuration)}, {which})")
    yield (
        f"The front of {sides[0].label} and {sides[1].label} has "
        f"{formatting.plural(len(shown), 'point')}: {'; '.join(shown)}."
    )


def _of_evaluations(study: StudyRecord) -> Iterator[str]:
    evaluation_sd = 0.0 if study.verdict is None else study.verdict.evaluation_sd or 0.0
    if evaluation_sd >= formatting.LEAST_SHARE:
        yield (
            "The ratio of best to default varies by "
            f"{formatting.percent(evaluation_sd)} between evaluations (standard "
            "deviation), which the interval includes."
        )


def _ties(study: StudyRecord) -> Iterator[str]:
    tied = [one for one in study.shortlist[1:] if one.is_tied]
    if not tied:
        return
    shown = "; ".join(
        f"{in_short(study, one.configuration)}"
        + (f", {formatting.ratio(one.ratio, one.interval)}" if one.is_compared else "")
        for one in tied
    )
    whole = formatting.plural(len(tied), "configuration")
    yield (
        f"{whole} may be the best as well: {shown}. Of configurations that cannot be told "
        "apart, the cheapest is chosen, then the one nearest to the default."
    )


def _against_prediction(study: StudyRecord) -> Iterator[str]:
    against = None if study.verdict is None else study.verdict.against_prediction
    if against is None:
        return
    yield (
        "Without a search, rules of thumb from the default's latency would choose "
        f"{in_short(study, against.configuration)}: best over that "
        f"{formatting.ratio(against.ratio, against.interval)}, {against.outcome}, "
        f"{formatting.plural(against.pairs, 'pair')} of evaluations."
    )


def _all_in_time(study: StudyRecord) -> Iterator[str]:
    found = arm_measurements(study, "default").measurements
    offered = sum(one.offered_per_s for one in found)
    if study.shared is None or study.objective != "goodput" or not offered:
        return
    if sum(one.goodput_per_s for one in found) >= ALL * offered:
        yield (
            "The default answers everything in time, so nothing can be better: use "
            "higher rates or shorter deadlines in the scenario."
        )


def meaning_of_default(study: StudyRecord) -> str | None:
    """Explain the default, if it differs from the untuned server."""
    if study.shared is not None:
        return (
            "Default means the values of the scenario's file (workers, memory, "
            "settings), and the search space's default for the rest."
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


def cautions(study: StudyRecord) -> tuple[str, ...]:
    """Return the reasons for doubt that the evaluations give."""
    found = [*advices.failures(study), *_worse_beside(study)]
    broken = failed_trials(study.trials)
    if broken and successful_trials(study.trials):
        whole = formatting.plural(len(study.trials), "trial")
        found.append(f"{len(broken)} of {whole} gave no figure: {causes_in_words(broken)}.")
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
        found.append(
            f"{formatting.plural(errors, 'request')} failed in trials that count as successful."
        )
    return tuple(found)


def _sent_late(study: StudyRecord) -> Iterator[str]:
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


def _more_cpu(study: StudyRecord) -> Iterator[str]:
    if not has_two_arms(study) or objectives.COSTS & {study.objective, study.second}:
        return
    default, best = (arm_measurements(study, role).figure("cpu_s").middle for role in ARMS)
    if best > MORE_CPU * default:
        yield (
            f"The best holds more CPU than the default, {formatting.number(best)} instead of "
            f"{formatting.number(default)} core-s per 1,000 requests. Where others need the cores, search for both "
            "(--objective mean,cost)."
        )


def _refused_tails(study: StudyRecord) -> Iterator[str]:
    for role in ARMS if has_two_arms(study) else ARMS[:1]:
        side = arm_measurements(study, role)
        if side.measurements and not side.tail.is_reportable:
            yield f"No p99 of the {role}: {side.tail.why_not}."


def _worse_beside(study: StudyRecord) -> Iterator[str]:
    if study.verdict is None or study.verdict.outcome == "worse":
        return
    for name in ("p99", "throughput"):
        # p99 rises with the rate up to its bound, and with what a scenario's deadline admits.
        is_meant = (study.objective == "rate" or study.shared is not None) and name == "p99"
        if name == study.objective or is_meant:
            continue
        objective, beside = objectives.find_objective(name), compare_metric(study, name)
        if beside is None:
            yield from _longer_tail(study) if name == "p99" else ()
        elif beside.outcome == "worse":
            sides = (arm_measurements(study, role).figure(objective.field) for role in ARMS)
            default, best = (formatting.number(side.middle) for side in sides)
            yield (
                f"The {objective.label} of the best is worse than that of the default: "
                f"{default} → {best} {objective.unit}, {formatting.ratio(beside.ratio, beside.interval)}."
            )


def _longer_tail(study: StudyRecord) -> Iterator[str]:
    default, best = (arm_measurements(study, role).tail for role in ARMS)
    high, low = default.interval.high, best.interval.low
    if high is not None and low is not None and low > high:
        yield (
            "The p99 of the best is worse than that of the default over the requests of all evaluations "
            f"together: {formatting.tail(default)} → {formatting.tail(best)} ms. Where the slowest requests count, "
            f"limit them (--constraint 'p99_ms <= {formatting.number(default.value_ms)}'), or search for them "
            "(--objective p99)."
        )
