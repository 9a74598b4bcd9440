"""Study in a notebook, with trials and requests as pandas tables.

    import tuner

    study = tuner.load("runs/NAME")
    study                           # the summary of `tune`
    study.trials()                  # a row for each evaluation of the search
    study.requests(3)               # a row for each request of evaluation 3
    study.verdict                   # best against default, or None

`tuner.load` imports this module late, because pandas takes half a second.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Mapping

import pandas as pd
import rich.console

from tuner.errors import UsageError
from tuner.report import terminal
from tuner.store import records, run_folder
from tuner.store.run_folder import RunFolder
from tuner.study import study_files
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.measurement import Measurement
from tuner.values.study_record import StudyRecord
from tuner.values.verdict import Verdict

RUNS = pathlib.Path("runs")
WIDTH = 100
PAGE_WIDTH = 160
_ENDS: Mapping[str, Callable[[Measurement], Interval]] = {
    "mean": lambda measured: measured.mean_interval,
    "p50": lambda measured: measured.p50_interval,
    "p95": lambda measured: measured.p95_interval,
    "p99": lambda measured: measured.p99_interval if measured.has_p99 else UNKNOWN,
}
_FIGURES: Mapping[str, Callable[[Measurement], float | None]] = {
    "mean_ms": lambda measured: measured.mean_ms,
    "p50_ms": lambda measured: measured.p50_ms,
    "p95_ms": lambda measured: measured.p95_ms,
    "p99_ms": lambda measured: measured.reportable_p99_ms,
    "spread_ms": lambda measured: measured.spread_ms or None,
    "throughput_per_s": lambda measured: measured.throughput_per_s,
    "items_per_s": lambda measured: measured.items_per_s,
    "goodput_per_s": lambda measured: measured.goodput,
    "cpu_s": lambda measured: measured.cpu_s,
    "memory_mib_s": lambda measured: measured.memory_mib_s,
    "price": lambda measured: measured.price,
    "energy_j": lambda measured: measured.energy_j,
    "requests": lambda measured: measured.requests,
    "errors": lambda measured: measured.errors,
    "refused": lambda measured: measured.refused,
    "p99_effective": lambda measured: measured.p99_effective,
    "warmup_s": lambda measured: measured.warmup_s,
    "seconds": lambda measured: measured.seconds,
    "peak_memory_mb": lambda measured: measured.noise.peak_memory_mb,
}


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Study:
    """Study read from its folder, finished or not."""

    record: StudyRecord
    _folder: RunFolder

    @property
    def verdict(self) -> Verdict | None:
        """Verdict on best against default, or None if there is none."""
        return self.record.verdict

    def trials(self) -> pd.DataFrame:
        """Return one row for each evaluation of the search, ordered by number.

        Columns: origin (default, initial, guided, ...), status (ok, infeasible, failed), cause and
        reason; each knob by its dotted name; the metrics, NaN where unknown:

        - mean_ms, p50_ms, p95_ms, p99_ms: latencies in ms, each with its 95 % interval
          (mean_low_ms, mean_high_ms); p99_ms is NaN if p99_effective is below 459
        - spread_ms: p95 - p5
        - throughput_per_s, items_per_s; goodput_per_s: responses within the deadline
        - cpu_s (core-seconds), memory_mib_s, price: per 1,000 responses; energy_j: per response
        - requests, errors, refused: counts, in `seconds` measured after `warmup_s`
        - peak_memory_mb: largest memory of one replica, in MiB

        and startup_s, overhead_s (seconds outside warm-up and measurement), node (name of the machine; empty:
        this one), started_at (UTC).
        """
        rows = []
        for trial in self.record.trials:
            measured = trial.measured
            figures = (
                dict.fromkeys(_columns(), math.nan) if measured is None else _figures(measured)
            )
            rows.append(
                {
                    "trial": trial.number,
                    "origin": trial.origin,
                    "status": trial.outcome.status,
                    "cause": trial.outcome.cause or "",
                    "reason": trial.outcome.reason,
                    **trial.configuration,
                    **figures,
                    "startup_s": trial.startup_s,
                    "overhead_s": trial.overhead_s,
                    "node": trial.node,
                    "started_at": pd.Timestamp(trial.started_at, unit="s", tz="UTC"),
                }
            )
        knobs = [knob.name for knob in self.record.knobs]
        ends = ["startup_s", "overhead_s", "node", "started_at"]
        columns = ["trial", "origin", "status", "cause", "reason", *knobs, *_columns(), *ends]
        return pd.DataFrame(rows, columns=columns).set_index("trial")

    def requests(self, trial: int) -> pd.DataFrame:
        """Return one row for each request of an evaluation, with warm-up, in order of completion.

        Columns: intended_s (when it was due; in a closed loop, when it was sent), started_s and
        finished_s, in seconds from the phase's start; latency_ms, from due to end; the HTTP
        status, 0 without a response; the client's connection; is_measured, whether it is in the
        measured part.

        Raises:
            UsageError: there is no such evaluation, or its requests were not saved.
        """
        by_number = {one.number: one for one in self.record.trials}
        if trial not in by_number:
            known = f"0 to {max(by_number)}" if by_number else "none"
            raise UsageError(f"study {self.record.name!r} has no trial {trial} (trials: {known})")
        path = self._folder.path / "trials" / str(trial) / "requests.npz"
        kept = records.read(path)
        if kept is None:
            how = by_number[trial].outcome
            raise UsageError(
                f"trial {trial} has no recorded requests ({how.reason or how.status}): no {path}"
            )
        table = pd.DataFrame({name: getattr(kept, name) for name in records.COLUMNS})
        table["latency_ms"] = (table["finished_s"] - table["intended_s"]) * 1e3
        measured = by_number[trial].measured
        at_s = table["intended_s" if self.record.is_open else "finished_s"]
        table["is_measured"] = measured is not None and at_s.between(
            measured.warmup_s, measured.warmup_s + measured.seconds, inclusive="right"
        )
        return table.rename_axis("request")

    def __repr__(self) -> str:
        return "\n".join(terminal.lines(self.record, self._files(), width=WIDTH))

    def _repr_html_(self) -> str:
        console = rich.console.Console(
            file=io.StringIO(), width=PAGE_WIDTH, record=True, highlight=False
        )
        console.print(terminal.summary(self.record, self._files()), markup=False)
        form = '<pre style="white-space: pre-wrap">{code}</pre>'
        return console.export_html(inline_styles=True, code_format=form)

    def _files(self) -> dict[str, pathlib.Path]:
        names = {"settings": "best.yaml", "report": "report.html"}
        paths = {what: self._folder.path / name for what, name in names.items()}
        return {what: path for what, path in paths.items() if path.exists()}


def load(study: str | pathlib.Path, *, storage: str | None = None) -> Study:
    """Read a study from its folder, such as runs/NAME, or by its name in runs/.

    Raises:
        UnknownStudy: there is no such study; the error lists existing ones.
        UsageError: one of the study's files is missing or broken.
    """
    given = pathlib.Path(study)
    runs = RUNS if given.name == str(given) else given.parent
    folder = run_folder.find(runs, str(study))
    settings = study_files.settings_of(folder)
    store = study_files.store_of(folder, settings, url=storage)
    return Study(study_files.read(folder, store, settings), folder)


def _columns() -> tuple[str, ...]:
    names = []
    for name in _FIGURES:
        names.append(name)
        if (stem := name.removesuffix("_ms")) in _ENDS:
            names += [f"{stem}_low_ms", f"{stem}_high_ms"]
    return tuple(names)


def _figures(measured: Measurement) -> dict[str, float]:
    found = {name: figure(measured) for name, figure in _FIGURES.items()}
    for stem, interval_of in _ENDS.items():
        ends = interval_of(measured)
        found |= {f"{stem}_low_ms": ends.low, f"{stem}_high_ms": ends.high}
    return {name: math.nan if value is None else value for name, value in found.items()}
