"""Provenance of an export, as comment lines and annotations.

Study, reason, metrics with intervals, and knobs that the format lacks, reduced to printable lines,
so that no name can become a setting.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping

from scipy import special

from serving.error_text import printable_line
from tuner.advice import export_of_best, failures
from tuner.export.export_input import ACCELERATOR, ExportInput, Knobs
from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.settings.workload import rate_in_words, workload_in_words
from tuner.values.configuration import Configuration, Value
from tuner.values.interval import Interval
from tuner.values.measurement import Measurement
from tuner.values.study_record import StudyRecord

FIGURES = ("mean", "p99", "throughput")
MAX_CHARACTERS = 1000


def comments(lines: Iterable[str]) -> str:
    """Lines as one-line comments."""
    return "".join(f"# {_indented_line(line)}".rstrip() + "\n" for line in lines)


def _indented_line(text: str) -> str:
    """Printable text on one line, with its leading spaces."""
    return " " * (len(text) - len(text.lstrip(" "))) + printable_line(text)


def lines(
    subject: ExportInput,
    what: str,
    *,
    use: str,
    knobs: Knobs,
    reasons: Mapping[str, str],
    otherwise: str,
    remarks: Iterable[str] = (),
) -> Iterator[str]:
    """Yield the header of an export.

    Args:
        subject: what is exported.
        what: start of the first line.
        use: command that uses the file.
        knobs: those not taken are listed.
        reasons: why knobs were not taken, by name.
        otherwise: reason for all others.
        remarks: notes about the file.
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
    yield f"{what} for {record.model} at {load}, by `tune`."
    yield f"Study {record.name}: {len(record.trials)} trials, sampler {record.sampler}."
    yield f"Use: {use}"
    yield ""
    yield subject.advice.reason
    other = export_of_best(record)
    if other is not None and subject.advice.configuration == record.default:
        yield f"Best configuration found (improvement not shown): {other}"
    yield ""
    yield from _measured_lines(record, subject.advice.configuration)
    yield from _section("", list(remarks), indent="")
    left = [
        f"{name}: {value} ({_why(name, reasons, otherwise)})" for name, value in knobs.remaining()
    ]
    yield from _section("Not exported:", left)
    yield from _section("Notes:", [*failures(record), *record.notes])


def facts(subject: ExportInput) -> dict[str, str]:
    """Study, workload, metrics and verdict as one-line texts."""
    record = subject.record
    told = {
        "study": record.name,
        "model": record.model,
        **_workload(record),
        "client-batch": str(record.client_batch),
        "advice": subject.advice.reason,
        "measured": _figures(record, measurements(subject)),
    }
    if record.verdict is not None:
        told["verdict"] = record.verdict.text
    return {name: _indented_line(text)[:MAX_CHARACTERS] for name, text in told.items()}


def _workload(record: StudyRecord) -> dict[str, str]:
    if not record.is_open:
        return {"concurrency": str(record.concurrency)}
    found = "found by each launch"
    return {"rate": found if record.rate_per_s is None else rate_in_words(record.rate_per_s)}


def in_flight(subject: ExportInput) -> int:
    """Requests in flight: concurrency, or rate times p99 (Little's law)."""
    record = subject.record
    if not record.is_open:
        return record.concurrency
    waiting = [(launch.rate_per_s or 0.0) * launch.p99_ms / 1e3 for launch in measurements(subject)]
    return max(1, math.ceil(max(waiting, default=0.0)))


def measurements(subject: ExportInput) -> tuple[Measurement, ...]:
    """Evaluations of the exported configuration, from a verdict if any."""
    record, configuration = subject.record, subject.advice.configuration
    if record.verdict is not None and configuration == record.best:
        return record.verdict.best
    if record.verdict is not None and configuration == record.default:
        return record.verdict.default
    return _evaluations(record, configuration)


def _section(title: str, found: list[str], *, indent: str = "  ") -> Iterator[str]:
    if found:
        yield ""
        if title:
            yield title
        for line in found:
            yield f"{indent}{line}"


def _why(name: str, reasons: Mapping[str, str], otherwise: str) -> str:
    if name in reasons:
        return reasons[name]
    return "set it on the machine" if name.startswith(ACCELERATOR) else otherwise


def _measured_lines(record: StudyRecord, chosen: Configuration) -> Iterable[str]:
    verdict = record.verdict
    if verdict is None or chosen not in (record.default, record.best):
        afresh = (
            "Too few pairs of evaluations worked" if record.failure_counts else "Not re-evaluated"
        )
        yield f"{afresh}; figures of the search, which flatter the selected configuration:"
        sides = {"default": record.default, "best": record.best}
        if chosen not in sides.values():
            sides["these settings"] = chosen
        if record.best == record.default:
            del sides["best"]
        for role, configuration in sides.items():
            if configuration is not None:
                yield f"  {role}: {_figures(record, _evaluations(record, configuration))}"
        return
    yield f"Verdict: {verdict.text}"
    yield f"{record.objective}, best over default: {verdict.ratio:.3g} ({_ratio_ends(verdict.interval)})"
    if verdict.second is not None:
        beside = verdict.second
        yield f"Verdict: {beside.text}"
        yield f"{beside.objective}, best over default: {beside.ratio:.3g} ({_ratio_ends(beside.interval)})"
    yield f"  best: {_figures(record, verdict.best)}"
    yield f"  default: {_figures(record, verdict.default)}"


def _evaluations(
    record: StudyRecord, configuration: Mapping[str, Value]
) -> tuple[Measurement, ...]:
    return tuple(
        trial.measurement
        for trial in record.trials
        if trial.measurement is not None and trial.configuration == configuration
    )


def _figures(record: StudyRecord, launches: tuple[Measurement, ...]) -> str:
    if not launches:
        return "not measured"
    second = () if record.second is None else (record.second,)
    names = tuple(dict.fromkeys((record.objective, *second, *FIGURES)))
    if record.objective in FIGURES and not second:
        names = FIGURES
    told = [_figure(objectives.find_objective(name), launches) for name in names]
    count = f"{len(launches)} launch" + ("es" if len(launches) > 1 else "")
    return f"{', '.join(told)} ({count}; in brackets 95 % intervals)"


def _figure(objective: objectives.Objective, launches: tuple[Measurement, ...]) -> str:
    if objective.name == "p99":
        return _tail(tail_latency.pool_tails(launches))
    label = "" if objective.name == "throughput" else f"{objective.name} "
    values = [value for value in map(objective.value, launches) if value > 0]
    if not values:
        return f"{label}not measured"
    logs = [math.log(value) for value in values]
    middle = math.fsum(logs) / len(logs)
    ends = objective.interval(launches[0])
    if len(logs) > 1:
        # Over evaluations, because users will meet the differences between them.
        spread = math.sqrt(math.fsum((log - middle) ** 2 for log in logs) / (len(logs) - 1))
        reach = float(special.stdtrit(len(logs) - 1, 0.975)) * spread / math.sqrt(len(logs))
        ends = Interval(low=math.exp(middle - reach), high=math.exp(middle + reach))
    low, high = ("?" if end is None else f"{end:.4g}" for end in (ends.low, ends.high))
    return f"{label}{math.exp(middle):.4g} {objective.unit} [{low}, {high}]"


def _tail(tail: tail_latency.TailLatency) -> str:
    if not tail.is_reportable:
        return f"p99 not known ({tail.why_not})"
    low, high = (
        "?" if end is None else f"{end:.4g}" for end in (tail.interval.low, tail.interval.high)
    )
    return f"p99 {tail.value_ms:.4g} ms [{low}, {high}] of {tail.effective:,.0f} effective requests"


def _ratio_ends(interval: Interval) -> str:
    if interval.is_vague:
        return "too few pairs for an interval"
    low, high = (
        "unknown" if end is None else f"{end:.3g}" for end in (interval.low, interval.high)
    )
    return f"95 % interval {low} to {high}"


def shell_quote(path: object) -> str:
    """Quote a path for the shell."""
    return shlex.quote(str(path))
