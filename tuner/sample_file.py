"""CSV file of random samples, one row per evaluation, resumable after a kill.

Rows begin with the draw, so other draws (seed, space or model) are rejected before measuring. A row
cut off by a kill is removed. One process owns the file (`flock`).
"""

from __future__ import annotations

import csv
import datetime as dt
import fcntl
import io
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from tuner.bench import Launch
from tuner.errors import WrongUse
from tuner.store.run_folder import storage_errors
from tuner.values import Configuration, Measurement

FIGURES: Mapping[str, Callable[[Measurement], object]] = {
    "requests": lambda one: one.requests,
    "errors": lambda one: one.errors,
    "measured_s": lambda one: one.seconds,
    "mean_ms": lambda one: one.mean_ms,
    "p50_ms": lambda one: one.p50_ms,
    "p95_ms": lambda one: one.p95_ms,
    "p99_ms": lambda one: one.p99_ms if one.has_p99 else None,
    "effective_requests": lambda one: one.effective,
    "consistency_ms": lambda one: one.spread_ms,
    "throughput_per_s": lambda one: one.throughput_per_s,
    "items_per_s": lambda one: one.items_per_s,
    "time_per_item_ms": lambda one: one.time_per_item_ms,
    "cpu_s_per_1000": lambda one: _known(one.cpu_s),
    "mib_s_per_1000": lambda one: _known(one.memory_mib_s),
    "energy_j": lambda one: None if one.energy is None else one.energy_j,
    "little_error": lambda one: one.little_error,
    "peak_memory_mb": lambda one: one.noise.peak_memory_mb,
    "server_cpu_s": lambda one: one.noise.server_cpu_s,
    "client_cpu_s": lambda one: one.noise.client_cpu_s,
    "throttled_s": lambda one: one.noise.throttled_s,
    "steal_s": lambda one: one.noise.steal_s,
}
"""Metric columns; empty without a measurement or host data."""
OUTCOME = ("status", "cause", "reason")
LAST = ("launch_s", "started_at")


class Draw(NamedTuple):
    """Draw of one row."""

    number: int
    concurrency: int
    client_batch: int
    configuration: Configuration


class SampleFile:
    """CSV file open for writing; a context manager.

    Args:
        path: created if missing.
        knobs: names in column order.

    Raises:
        WrongUse: not writable, in use, or with other columns.
    """

    def __init__(
        self, path: pathlib.Path, *, model: str, home: str, seed: int, knobs: Sequence[str]
    ) -> None:
        self.path = path
        self.columns = (
            "number",
            "model",
            "home",
            "seed",
            "concurrency",
            "client_batch",
            *knobs,
            *OUTCOME,
            *FIGURES,
            *LAST,
        )
        self.statuses: list[str] = []
        """Status of each row in order."""
        self._model = model
        self._home = home
        self._seed = seed
        self._knobs = tuple(knobs)
        with storage_errors(str(path), option="--out"):
            self._file = path.open("a+", encoding="utf-8", newline="")
        try:
            self._lock()
            self._rows = self._read()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._file.close()

    def check(self, draws: Sequence[Draw]) -> None:
        """Check that the rows are the first of these draws.

        Raises:
            WrongUse: one differs.
        """
        for row, draw in zip(self._rows, draws, strict=False):
            drawn = self._drawn(draw)
            if row[: len(drawn)] != drawn:
                differs = next(i for i, text in enumerate(drawn) if row[i] != text)
                raise WrongUse(
                    f"{self.path}, row {draw.number}: {self.columns[differs]} is {row[differs]!r}, "
                    f"this command draws {drawn[differs]!r}; go on with the options that the file "
                    "was begun with, or name another --out"
                )

    def append(self, draw: Draw, launch: Launch) -> None:
        """Write one whole row."""
        measured = launch.measurement
        outcome = launch.outcome
        row = [
            *self._drawn(draw),
            outcome.status,
            outcome.cause or "",
            " ".join(outcome.reason.split()),
            *(_text(None if measured is None else of(measured)) for of in FIGURES.values()),
            _text(launch.launch_s),
            dt.datetime.fromtimestamp(launch.started_at, tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        ]
        self._write(row)
        self.statuses.append(outcome.status)

    def _drawn(self, draw: Draw) -> list[str]:
        load = (draw.concurrency, draw.client_batch)
        plain = (draw.number, self._model, self._home, self._seed, *load)
        return [_text(value) for value in (*plain, *map(draw.configuration.get, self._knobs))]

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise WrongUse(
                f"--out {self.path}: another `tune sample` writes it; wait for its end, or name another"
            ) from None

    def _read(self) -> list[list[str]]:
        """Return the rows; check the header, or write a missing one."""
        self._file.seek(0)
        try:
            text = self._file.read()
            whole = text[: text.rfind("\n") + 1]
            rows = list(csv.reader(io.StringIO(whole)))
        except (UnicodeDecodeError, csv.Error):
            raise self._other("no CSV in UTF-8") from None
        if rows and tuple(rows[0]) != self.columns:
            raise self._other(f"its columns are {', '.join(rows[0])[:200]}")
        if not rows and not ",".join(self.columns).startswith(text):
            raise self._other("no CSV of samples")
        if whole != text:  # a kill cut off the last row
            os.ftruncate(self._file.fileno(), len(whole.encode()))
        if not rows:
            self._write(self.columns)
            return []
        place = self.columns.index("status")
        for number, row in enumerate(rows[1:]):
            if len(row) != len(self.columns) or row[0] != str(number):
                raise self._other(f"row {number} is not one of `tune sample`")
            self.statuses.append(row[place])
        return rows[1:]

    def _other(self, what: str) -> WrongUse:
        return WrongUse(
            f"--out {self.path} holds something else ({what}; expected the columns "
            f"{', '.join(self.columns)[:200]}...); name another file"
        )

    def _write(self, row: Sequence[str]) -> None:
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        with storage_errors(str(self.path), option="--out"):
            self._file.write(line.getvalue())
            self._file.flush()


def _text(value: Any) -> str:
    """Format a value: None is empty, floats six digits."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None
