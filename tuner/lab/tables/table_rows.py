"""Conversion between recorded evaluations and rows of `evaluations.csv`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.error_text import one_line
from tuner.lab.tables.table import RecordedEvaluation, outcome_of, status_of
from tuner.values.configuration import Configuration, Value
from tuner.values.histogram import LatencyHistogram
from tuner.values.measurement import Block, HostNoise

NOISE = ("peak_memory_mb", "steal_s", "throttled_s", "client_cpu_s", "server_cpu_s")
LATER = ("neighbour_cpu_s", "block_client_cpu_s")
COLUMNS = (
    "evaluation",
    "pass",
    "block",
    "started_at",
    "status",
    "requests",
    "seconds",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    *NOISE,
    "startup_s",
    "loaded_s",
    "spread_ms",
    "throughput_per_s",
    "start_s",
    "errors",
    "reason",
    *LATER,
)
"""Columns after the knobs; those about a whole evaluation are repeated in each row."""
BUCKETS = ("evaluation", "first", "counts")


def evaluation_of(
    rows: Sequence[Mapping[str, str]],
    kinds: Mapping[str, type],
    histogram: LatencyHistogram | None,
) -> RecordedEvaluation:
    """Parse an evaluation's rows, or raise ValueError or KeyError for a bad or missing cell."""
    first = rows[0]
    is_ok = first["status"] == "ok"
    return RecordedEvaluation(
        number=int(first["evaluation"]),
        cell=Configuration({name: _value(first[name], kind) for name, kind in kinds.items()}),
        sweep=int(first["pass"]),
        started_at=float(first["started_at"]),
        outcome=outcome_of(first["status"], first["reason"]),  # type: ignore[arg-type]
        startup_s=float(first["startup_s"]),
        loaded_s=float(first["loaded_s"]),
        errors=int(first["errors"]),
        blocks=tuple(map(_block, rows)) if is_ok else (),
        histogram=histogram if is_ok else None,
        noise=HostNoise(
            **{name: _number(first[name]) for name in NOISE},
            neighbour_cpu_s=_number(first.get("neighbour_cpu_s") or ""),
        ),
    )


def _block(row: Mapping[str, str]) -> Block:
    figures = ("start_s", "seconds", "mean_ms", "p50_ms", "p99_ms", "throughput_per_s")
    return Block(
        requests=int(row["requests"]),
        spread_ms=_number(row["spread_ms"]),
        client_cpu_s=_number(row.get("block_client_cpu_s") or ""),
        **{name: float(row[name]) for name in figures},
    )


def rows_of(evaluation: RecordedEvaluation) -> Iterator[list[str]]:
    """Yield one row per block, or a single row without a block for a failed evaluation."""
    whole = {
        "evaluation": evaluation.number,
        "pass": evaluation.sweep,
        "started_at": f"{evaluation.started_at:.2f}",
        "status": status_of(evaluation.outcome),
        "startup_s": evaluation.startup_s,
        "loaded_s": evaluation.loaded_s,
        "errors": evaluation.errors,
        "reason": one_line(evaluation.outcome.reason),
        **{name: getattr(evaluation.noise, name) for name in (*NOISE, "neighbour_cpu_s")},
    }
    for number, block in enumerate(evaluation.blocks or (None,)):
        row = dict(whole)
        if block is not None:
            told = dataclasses.asdict(block)
            row |= {"block": number, "block_client_cpu_s": told.pop("client_cpu_s"), **told}
        else:
            row |= {"requests": 0}
        yield [*map(_text, evaluation.cell.values()), *(_text(row.get(name)) for name in COLUMNS)]


def _value(text: str, kind: type) -> Value:
    if kind is bool:
        return {"true": True, "false": False}[text]
    value: Value = kind(text)
    return value


def _number(text: str) -> float | None:
    return float(text) if text else None


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
