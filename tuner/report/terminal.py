"""Summary that `tune` prints at the end."""

from __future__ import annotations

import io
import pathlib
import shlex
from collections.abc import Mapping

import rich.console
import rich.table
import rich.text

from tuner.metrics import objective as objectives
from tuner.metrics.objective import Objective
from tuner.report import formatting
from tuner.report.console_text import LabelledCommand, show
from tuner.report.study import headline, study_notes, study_view
from tuner.settings.recommended_commands import serve_command
from tuner.values.study_record import StudyRecord

WIDTH = 100


def summary(study: StudyRecord, files: Mapping[str, pathlib.Path]) -> rich.console.RenderableType:
    """Summary for a terminal.

    Args:
        study: the finished or stopped study.
        files: written files by label ("report", "settings"), in order.
    """
    load = study_view.workload(study)
    title = f"{study.model} at {load} ({study.name})"
    if study.is_of_other_engine:
        title += f", engine {study.engine}"
    if study.spawner == "docker":
        title += ", replicas in containers"
    parts: list[rich.console.RenderableType] = [rich.text.Text(title, style="bold")]
    if study.trials:
        parts.append(_table(study))
    parts.append(rich.text.Text(headline.headline(study), style=_style(study)))
    parts += [rich.text.Text(line) for line in headline.advice(study)]
    if (command := headline.to_try(study)) is not None:
        parts.append(LabelledCommand(headline.TO_TRY, command))
    parts += [
        rich.text.Text(f"note: {note}", style="yellow") for note in study_notes.warnings(study)
    ]
    parts += [rich.text.Text(f"note: {note}") for note in study_notes.remarks(study)]
    told = {name: str(path) for name, path in files.items()}
    if "settings" in files and not study.is_of_other_engine:
        told["use"] = serve_command(
            study.served_model, files["settings"], is_trusted=study.is_trusted
        )
    if "models" in files:
        told["models"] = f"then deploy its models with: sh {shlex.quote(str(files['models']))}"
    width = max(map(len, told), default=0)
    parts += [LabelledCommand(f"{name:{width}} ", text) for name, text in told.items()]
    return rich.console.Group(*parts)


def lines(
    study: StudyRecord, files: Mapping[str, pathlib.Path], *, width: int = WIDTH
) -> tuple[str, ...]:
    """It as plain lines, folded to `width` except for paths and commands."""
    console = rich.console.Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=True, highlight=False
    )
    with console.capture() as captured:
        show(console, summary(study, files))
    return tuple(line.rstrip() for line in captured.get().splitlines())


def _table(study: StudyRecord) -> rich.table.Table:
    has_best = study.best is not None
    made = rich.table.Table(box=None, pad_edge=False)
    made.add_column("", overflow="fold")
    made.add_column("default", justify="right", overflow="fold")
    if has_best:
        made.add_column("best", justify="right", overflow="fold")
        made.add_column("best / default", justify="right", overflow="fold")
    changed = study_view.changed_knobs(study)
    for knob in study.knobs:
        cells = [formatting.knob_label(knob.name, knob.unit), _value(study.default, knob.name)]
        if study.best is not None:
            cells += [_value(study.best, knob.name), "changed" if knob.name in changed else ""]
        style = "bold" if knob.name in changed else None
        made.add_row(*map(rich.text.Text, cells), style=style)
    made.add_section()
    _add_figures(made, study, has_best)
    return made


def _add_figures(made: rich.table.Table, study: StudyRecord, has_best: bool) -> None:
    default, best = (study_view.arm_measurements(study, role) for role in study_view.ARMS)
    for name in study_view.figures_of_merit(study):
        objective = objectives.find_objective(name)
        cells = [f"{name} ({objective.unit})", _figure(default, objective)]
        if has_best:
            cells += [_figure(best, objective), _ratio(study, name)]
        made.add_row(*map(rich.text.Text, cells))
    if study.client_batch > 1:
        sides = (default, best) if has_best else (default,)
        rates = [formatting.number(side.figure("items_per_s").middle) for side in sides]
        made.add_row(*map(rich.text.Text, ("items/s", *rates)))


def _figure(side: study_view.ArmMeasurements, objective: Objective) -> str:
    if objective.name == "p99":
        return formatting.tail(side.tail)
    return formatting.number(side.figure(objective.field).middle)


def _ratio(study: StudyRecord, name: str) -> str:
    if study.verdict is None:
        return "too few pairs" if study.failure_counts else "not re-measured"
    found = study_view.compare_metric(study, name)
    return "" if found is None else formatting.ratio(found.ratio, found.interval)


def _style(study: StudyRecord) -> str:
    tone = headline.tone(study)
    return "bold" if tone is None else {"better": "bold green", "worse": "bold red"}[tone]


def _value(configuration: Mapping[str, object], name: str) -> str:
    value = configuration.get(name)
    return formatting.knob_value(value) if isinstance(value, int | float | str) else "–"
