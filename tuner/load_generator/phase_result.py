"""Result of a phase, and concatenation of a configuration's time slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tuner.load_generator import error_responses
from tuner.load_generator.columns import COLUMNS
from tuner.values.request_records import CpuTimeSeries, RequestRecords


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PhaseResult:
    """Result of one phase; times are in seconds since its first send."""

    records: RequestRecords
    origin_s: float
    """Time of the first send, on the system's monotonic clock."""
    warmup_end_s: float
    measured_end_s: float
    client_cpu_s: float
    """CPU time of the client in the measured part."""
    client_cpu: CpuTimeSeries
    """CPU time of the client over the whole phase."""
    wall_s: float
    reconnects: int
    last_loss: str
    fell_behind: float
    first_error: str
    hint: str = ""

    @property
    def measured_s(self) -> float:
        """Length of the measured part."""
        return self.measured_end_s - self.warmup_end_s

    @property
    def why_failed(self) -> str:
        """Message about a failed request, or an empty string."""
        if self.first_error:
            hint = f"; {self.hint}" if self.hint else ""
            return f'the first one said "{self.first_error}"{hint}'
        return f"the last of them: {self.last_loss}" if self.last_loss else ""


def parse(report: Mapping[str, Any], blob: bytes, indexes: Sequence[str]) -> PhaseResult:
    """Parse the client's last frame; `indexes` names inputs that may be out of range."""
    said = error_responses.message(report["first_error"])
    count = report["requests"]
    columns, start = {}, 0
    for name, code in COLUMNS:
        kind = np.dtype(code)
        columns[name] = np.frombuffer(blob, kind, count, start).copy()  # aligned, and our own
        start += kind.itemsize * count
    readings = np.frombuffer(blob, np.float64, 2 * report["cpu_readings"], start).copy()
    at_s, used_s = readings.reshape(2, -1)
    return PhaseResult(
        records=RequestRecords(**columns),
        client_cpu=CpuTimeSeries(at_s=at_s, used_s=used_s),
        first_error=error_responses.reported_line(said),
        hint=error_responses.hint(said, indexes),
        **report["result"],
    )


def concatenate(parts: Sequence[PhaseResult]) -> PhaseResult:
    """Concatenate the measured parts of closed loops, without warm-ups.

    Each request keeps its latency and its offset within its part.
    """
    columns: dict[str, list[Any]] = {field.name: [] for field in dataclasses.fields(RequestRecords)}
    moments, used = [], []
    begin_s = used_s = 0.0
    for part in parts:
        records, shift_s = part.records, begin_s - part.warmup_end_s
        at_s = records.finished_s
        chosen = (at_s > part.warmup_end_s) & (at_s <= part.measured_end_s)
        for name, column in columns.items():
            values = getattr(records, name)[chosen]
            column.append(values + shift_s if name.endswith("_s") else values)
        read_s = part.client_cpu.at_s
        inside = (read_s > part.warmup_end_s) & (read_s < part.measured_end_s)
        readings = 2 + int(np.count_nonzero(inside))
        edges_s = np.linspace(part.warmup_end_s, part.measured_end_s, readings)
        steps = np.concatenate([[0.0], np.cumsum(part.client_cpu.between(edges_s))])
        moments.append(edges_s + shift_s)
        used.append(used_s + steps)
        begin_s, used_s = begin_s + part.measured_s, used_s + float(steps[-1])
    lost = [part for part in parts if part.last_loss]
    failed = [part for part in parts if part.first_error]
    return PhaseResult(
        records=RequestRecords(
            **{name: np.concatenate(column) for name, column in columns.items()}
        ),
        origin_s=parts[0].origin_s,
        warmup_end_s=0.0,
        measured_end_s=begin_s,
        client_cpu_s=sum(part.client_cpu_s for part in parts),
        client_cpu=CpuTimeSeries(at_s=np.concatenate(moments), used_s=np.concatenate(used)),
        wall_s=sum(part.wall_s for part in parts),
        reconnects=sum(part.reconnects for part in parts),
        last_loss=lost[-1].last_loss if lost else "",
        fell_behind=0.0,
        first_error=failed[0].first_error if failed else "",
        hint=failed[0].hint if failed else "",
    )
