"""Provenance of an export, as comment lines and annotations.

All text is reduced to printable lines, so that no name can become a setting.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterable, Iterator, Mapping

from scipy import special

from serving.error_text import printable_line
from tuner.advice import export_of_best, failures
from tuner.export.export_input import ACCELERATOR, ExportInput, Knobs
from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.settings.workload import rate_in_words, workload_in_words
from tuner.values.configuration import Configuration
from tuner.values.interval import Interval
from tuner.values.measurement import Measurement
from tuner.values.study_record import StudyRecord

FIGURES = ("mean", "p99", "throughput")
MAX_CHARACTERS = 1000


def comments(lines: Iterable[str]) -> str:
    """Return lines as one-line comments."""
    return "".join(f"# {_indented_line(line)}".rstrip() + "\n" for line in lines)


def _indented_line(text: str) -> str:
    return " " * (len(text) - len(text.lstrip(" "))) + printable_line(text)


def head(
    subject: ExportInput,
    what: str,
    *,
    use: str,
    knobs: Knobs,
    reasons: Mapping[str, str] = types.MappingProxyType({}),
    otherwise: str = "not a setting of the server",
    remarks: Iterable[str] = (),
) -> str:
    """Return the comments at the head of a file, and an empty line.

    Args:
        what: beginning of the first line.
        knobs: the knobs, of which those not taken are listed.
        reasons: knob -> reason why it was not taken.
        otherwise: reason for all other knobs.
    """
    record = subject.record
    load = workload_in_words(
        record.concurrency,
        record.client_batch,
        rate_per_s=record.rate_per_s,
        arrivals=record.arrivals,
        objective=record.objective,
        offered_per_s=record.offered_per_s,
    )
    lines = [
        f"{what} for {record.model} at {load}, by `tune`.",
        f"Study {record.name}: {len(record.trials)} trials, sampler {record.sampler}.",
        f"Use: {use}",
        "",
        subject.advice.reason,
    ]
    other = export_of_best(record)
    if other is not None and subject.advice.configuration == record.default:
        lines.append(f"Best configuration found (improvement not shown): {other}")
    lines += ["", *_measured_lines(record, subject.advice.configuration)]
    if remarks := list(remarks):
        lines += ["", *remarks]
    if knobs.left:
        lines += ["", "Not exported:"]
    for name, value in knobs.left.items():
        is_of_machine = name.startswith(ACCELERATOR) and name not in reasons
        why = "set it on the machine" if is_of_machine else reasons.get(name, otherwise)
        lines.append(f"  {name}: {value} ({why})")
    if notes := [*failures(record), *record.notes]:
        lines += ["", "Notes:", *(f"  {note}" for note in notes)]
    return f"{comments(lines)}\n"


def facts(subject: ExportInput) -> dict[str, str]:
    """Return the study, workload, metrics and verdict, one line each."""
    record = subject.record
    told = {"study": record.name, "model": record.model}
    if not record.is_open:
        told["concurrency"] = str(record.concurrency)
    elif record.rate_per_s is None:
        told["rate"] = "found by each evaluation"
    else:
        told["rate"] = rate_in_words(record.rate_per_s)
    told |= {
        "client-batch": str(record.client_batch),
        "advice": subject.advice.reason,
        "measured": _figures(record, measurements(subject)),
    }
    if record.verdict is not None:
        told["verdict"] = record.verdict.text
    return {name: _indented_line(text)[:MAX_CHARACTERS] for name, text in told.items()}


def in_flight(subject: ExportInput) -> int:
    """Return the number of requests in flight: concurrency, or rate times p99 (Little's law)."""
    record = subject.record
    if not record.is_open:
        return record.concurrency
    waiting = [(one.rate_per_s or 0.0) * one.p99_ms / 1e3 for one in measurements(subject)]
    return max(1, math.ceil(max(waiting, default=0.0)))


def measurements(subject: ExportInput) -> tuple[Measurement, ...]:
    """Return the configuration's evaluations, from the verdict or else from the search."""
    return measurements_of(subject.record, subject.advice.configuration)


def measurements_of(record: StudyRecord, configuration: Configuration) -> tuple[Measurement, ...]:
    """Return a configuration's evaluations, from the verdict or else from the search."""
    verdict = record.verdict
    if verdict is None or not is_verified(record, configuration):
        return _evaluations(record, configuration)
    return verdict.best if configuration == record.best else verdict.default


def is_verified(record: StudyRecord, configuration: Configuration) -> bool:
    """Whether a configuration was evaluated for the verdict; if not, it was selected by luck too."""
    return record.verdict is not None and configuration in (record.best, record.default)


def _measured_lines(record: StudyRecord, chosen: Configuration) -> Iterator[str]:
    verdict = record.verdict
    if verdict is not None and chosen in (record.default, record.best):
        for name, found in ((record.objective, verdict), (record.second, verdict.second)):
            if found is not None:
                yield f"Verdict: {found.text}"
                low, high = _ends(found.interval, ".3g", "unknown")
                told = f"95 % interval {low} to {high}"
                if found.interval.is_vague:
                    told = "too few pairs for an interval"
                yield f"{name}, best over default: {found.ratio:.3g} ({told})"
        yield f"  best: {_figures(record, verdict.best)}"
        yield f"  default: {_figures(record, verdict.default)}"
        return
    afresh = "Too few pairs of evaluations worked" if record.failure_counts else "Not re-evaluated"
    yield f"{afresh}; figures of the search, which flatter the selected configuration:"
    sides = {"default": record.default, "best": record.best}
    if chosen not in sides.values():
        sides["these settings"] = chosen
    if record.best == record.default:
        del sides["best"]
    for role, configuration in sides.items():
        if configuration is not None:
            yield f"  {role}: {_figures(record, _evaluations(record, configuration))}"


def _evaluations(record: StudyRecord, configuration: Configuration) -> tuple[Measurement, ...]:
    return tuple(
        trial.measurement
        for trial in record.trials
        if trial.measurement is not None and trial.configuration == configuration
    )


def _figures(record: StudyRecord, evaluations: tuple[Measurement, ...]) -> str:
    if not evaluations:
        return "not measured"
    second = () if record.second is None else (record.second,)
    names = tuple(dict.fromkeys((record.objective, *second, *FIGURES)))
    if record.objective in FIGURES and not second:
        names = FIGURES
    told = [_figure(objectives.find_objective(name), evaluations) for name in names]
    count = f"{len(evaluations)} evaluation{'s' * (len(evaluations) > 1)}"
    return f"{', '.join(told)} ({count}; in brackets 95 % intervals)"


def _figure(objective: objectives.Objective, evaluations: tuple[Measurement, ...]) -> str:
    if objective.name == "p99":
        tail = tail_latency.pool_tails(evaluations)
        if not tail.is_reportable:
            return f"p99 not known ({tail.why_not})"
        low, high = _ends(tail.interval, ".4g", "?")
        effective = f"{tail.effective:,.0f} effective requests"
        return f"p99 {tail.value_ms:.4g} ms [{low}, {high}] of {effective}"
    label = "" if objective.name == "throughput" else f"{objective.name} "
    values = [value for value in map(objective.value, evaluations) if value > 0]
    if not values:
        return f"{label}not measured"
    logs = [math.log(value) for value in values]
    middle = math.fsum(logs) / len(logs)
    interval = objective.interval(evaluations[0])
    if len(logs) > 1:
        # Over evaluations, because users will meet the differences between them.
        spread = math.sqrt(math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1))
        reach = float(special.stdtrit(len(logs) - 1, 0.975)) * spread / math.sqrt(len(logs))
        interval = Interval(low=math.exp(middle - reach), high=math.exp(middle + reach))
    low, high = _ends(interval, ".4g", "?")
    return f"{label}{math.exp(middle):.4g} {objective.unit} [{low}, {high}]"


def _ends(interval: Interval, form: str, unknown: str) -> list[str]:
    ends = (interval.low, interval.high)
    return [unknown if end is None else format(end, form) for end in ends]
