"""A study in a notebook: its trials and requests as tables of pandas, its verdict, and its end as a page shows it.

    import tuner

    study = tuner.load("runs/NAME")
    study                           # what `tune` says at its end
    study.trials()                  # a row for each launch of the search
    study.requests(3)               # a row for each request of launch 3
    study.verdict                   # best against default, None while it is open

In: a study's folder. Out: a `Study`, which reads the folder once. Writes nothing. `tuner.load` imports this file
when it is called: pandas takes half a second, and a command needs none of it.
"""

from __future__ import annotations

import dataclasses
import io
import math
import pathlib
from collections.abc import Callable, Mapping

import pandas as pd
import rich.console

from tuner import study_files
from tuner.errors import WrongUse
from tuner.report import terminal
from tuner.store import records, run_folder
from tuner.store.run_folder import RunFolder
from tuner.values import UNKNOWN, Interval, Measurement, StudyRecord, Verdict

RUNS = pathlib.Path("runs")
"""Where a study is looked for that is given by its name alone."""
WIDTH = 100
"""Characters of a line in `repr`; a page has room for longer ones."""
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
    "p99_ms": lambda measured: measured.told_p99_ms,
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
    """A study that was read from its folder, finished or not."""

    record: StudyRecord
    """All of it, as reports and exports see it."""
    _folder: RunFolder

    @property
    def verdict(self) -> Verdict | None:
        """Best against default on fresh starts; None where the study has not come to one."""
        return self.record.verdict

    def trials(self) -> pd.DataFrame:
        """One row for each launch of the search, by its number.

        Columns: origin (default, initial, guided, ...), status (ok, infeasible, failed), cause and reason; each knob
        by its dotted name; the figures, NaN where a launch has none:

        - mean_ms, p50_ms, p95_ms, p99_ms: round trips in ms, each with its 95 % interval (mean_low_ms, mean_high_ms);
          p99_ms is NaN under 459 effective requests (p99_effective)
        - spread_ms: p95 - p5
        - throughput_per_s, items_per_s; goodput_per_s: answers within the deadline
        - cpu_s (core-seconds), memory_mib_s, price: of 1,000 answers; energy_j: of one
        - requests, errors, refused: how many, in `seconds` that were measured after `warmup_s`
        - peak_memory_mb: largest memory of one replica, in MiB

        and launch_s, overhead_s (seconds of the trial that were neither warm-up nor measurement), started_at (UTC).
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
                    "launch_s": trial.launch_s,
                    "overhead_s": trial.overhead_s,
                    "started_at": pd.Timestamp(trial.started_at, unit="s", tz="UTC"),
                }
            )
        knobs = [knob.name for knob in self.record.knobs]
        ends = ["launch_s", "overhead_s", "started_at"]
        columns = ["trial", "origin", "status", "cause", "reason", *knobs, *_columns(), *ends]
        return pd.DataFrame(rows, columns=columns).set_index("trial")

    def requests(self, trial: int) -> pd.DataFrame:
        """One row for each request of a launch of the search, in the order in which they ended, the warm-up's too.

        Columns: intended_s, started_s and finished_s, seconds from the start of the load (in a closed loop a request
        is due when it is sent); round_trip_ms from when it was due to its end; status, of HTTP, 0 where no answer
        came; connection, which one of the client's; is_measured, whether it lies in the part that was measured.

        Raises:
            WrongUse: there is no such launch, or its requests were not kept.
        """
        by_number = {one.number: one for one in self.record.trials}
        if trial not in by_number:
            known = f"0 to {max(by_number)}" if by_number else "none"
            raise WrongUse(f"study {self.record.name!r} has no trial {trial} (trials: {known})")
        path = self._folder.path / "trials" / str(trial) / "requests.npz"
        kept = records.read(path)
        if kept is None:
            how = by_number[trial].outcome
            raise WrongUse(
                f"trial {trial} kept no requests ({how.reason or how.status}): no {path}"
            )
        table = pd.DataFrame({name: getattr(kept, name) for name in records.COLUMNS})
        table["round_trip_ms"] = (table["finished_s"] - table["intended_s"]) * 1e3
        measured = by_number[trial].measured
        at_s = table["intended_s" if self.record.is_open else "finished_s"]
        table["is_measured"] = measured is not None and at_s.between(
            measured.warmup_s, measured.warmup_s + measured.seconds, inclusive="right"
        )
        return table.rename_axis("request")

    def __repr__(self) -> str:
        return "\n".join(terminal.lines(self.record, self._files(), width=WIDTH))

    def _repr_html_(self) -> str:
        """What a notebook shows: the same lines, with colours."""
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
    """Read a study.

    Args:
        study: its folder, as runs/NAME, or its name, which is then looked for in runs/.
        storage: Optuna storage URL of a study that was made with one.

    Raises:
        UnknownStudy: there is no study; the error lists those that are in the same folder.
        WrongUse: a file of it is missing or broken.
    """
    given = pathlib.Path(study)
    runs = RUNS if given.name == str(given) else given.parent
    folder = run_folder.find(runs, str(study))
    settings = study_files.settings_of(folder)
    store = study_files.store_of(folder, settings, url=storage)
    return Study(study_files.read(folder, store, settings), folder)


def _columns() -> tuple[str, ...]:
    """Names of the figures, each round trip's interval beside it."""
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
