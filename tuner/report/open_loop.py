"""Default and best of a closed-loop study, compared in an open loop: sentence, caution and table.

At a fixed concurrency, a batch's requests arrive together. One evaluation of each is not a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator

from tuner.metrics import tail_latency
from tuner.report import formatting, tables
from tuner.report.markup import Markup, element, row, soft, table
from tuner.report.study.study_view import ARMS
from tuner.values.measurement import Measurement
from tuner.values.study_record import StudyRecord
from tuner.values.verification_state import OpenLoopCheck

MAX_MORE = 1.15


def title(found: OpenLoopCheck) -> str:
    """Describe the open loop."""
    return (
        f"an open loop at {formatting.percent(found.share)} of the best's rate "
        f"({formatting.number(found.rate_per_s)} requests/s, Poisson arrivals)"
    )


def sentences(study: StudyRecord) -> Iterator[str]:
    """Yield a sentence with both results."""
    found = study.open_loop
    if found is None:
        return
    told = "; ".join(f"the {role} {_did(found, role)}" for role in reversed(ARMS))
    yield f"In {title(found)}, one evaluation each: {told}."


def cautions(study: StudyRecord) -> Iterator[str]:
    """Yield how the best falls short in the open loop."""
    found = study.open_loop
    if found is None:
        return
    best, default = (found.of(role) for role in reversed(ARMS))
    if best.measurement is None and best.outcome.cause == "overload":
        yield (
            f"The best could not serve {formatting.percent(found.share)} of its own rate when requests came at "
            f"random: {best.outcome.reason}."
        )
    if best.measurement is None or default.measurement is None:
        return
    ratio = best.measurement.mean_ms / default.measurement.mean_ms
    if ratio > MAX_MORE:
        waits = study.best is not None and study.best.get("batching.timeout_us")
        why = ": at a fixed concurrency, waiting for a full batch looks free" if waits else ""
        yield (
            f"In an open loop the mean of the best was {formatting.number(ratio)} times that of the default "
            f"(one evaluation each){why}."
        )


def section(study: StudyRecord) -> tuple[Markup, ...]:
    """Return a table with heading and caption; empty without an open-loop check."""
    found = study.open_loop
    if found is None:
        return ()
    evaluations = [found.of(role) for role in ARMS]
    rows = [
        row(label, *(_cell(evaluation.measurement, field) for evaluation in evaluations))
        for label, field in (
            ("mean (ms)", "mean_ms"),
            ("p50 (ms)", "p50_ms"),
            ("p95 (ms)", "p95_ms"),
            ("p99 (ms)", "p99_ms"),
            ("requests/s", "throughput_per_s"),
            ("requests", "requests"),
        )
    ]
    failed = [
        soft(f"The {evaluation.role}: {evaluation.outcome.reason}.")
        for evaluation in evaluations
        if evaluation.measurement is None
    ]
    caption = (
        f"Default and best in {title(found)}: latency counts from when a request was due. One evaluation "
        "of each, so a small difference means nothing."
    )
    shown = table(["", *tables.arm_heads()], rows, class_="figures")
    return element("h3", "In an open loop"), shown, *failed, soft(caption)


def _did(found: OpenLoopCheck, arm: str) -> str:
    evaluation = found.of(arm)
    if evaluation.measurement is None:
        return f"{evaluation.outcome.status} ({evaluation.outcome.reason})"
    return f"mean {formatting.number(evaluation.measurement.mean_ms)} ms, {_p99(evaluation.measurement)}"


def _p99(measured: Measurement) -> str:
    tail = tail_latency.of_evaluation(measured)
    if not tail.is_reportable:
        return f"p99 not known from {tail.effective:,.0f} effective requests"
    return f"p99 {formatting.tail(tail)} ms"


def _cell(measured: Measurement | None, field: str) -> Markup:
    if field == "p99_ms" and measured is not None:
        tail = tail_latency.of_evaluation(measured)
        return tables.cell(text=formatting.tail(tail) if tail.is_reportable else "too few")
    value = None if measured is None else getattr(measured, field)
    return tables.cell(text=formatting.number(value))
