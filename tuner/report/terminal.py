"""Summary that `tune` prints at its end."""

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
    """Return the summary for a terminal.

    Args:
        study: the finished or stopped study.
        files: written files by label ("report", "settings"), in order.
    """
    title = f"{study.model} at {study_view.workload(study)} ({study.name})"
    if study.is_of_other_engine:
        title += f", engine {study.engine}"
    if study.spawner == "docker":
        title += ", replicas in containers"
    if study.limits == "pod":
        title += ", limited as a whole"
    parts: list[rich.console.RenderableType] = [rich.text.Text(title, style="bold")]
    if study.trials:
        parts.append(_table(study))
    parts.append(rich.text.Text(headline.headline(study), style=_style(study)))
    parts += [rich.text.Text(line) for line in headline.advice(study)]
    parts += [rich.text.Text(f"Where it runs: {line}") for line in headline.confirmations(study)]
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
    """Return the summary as lines, folded to `width` except for paths and commands."""
    console = rich.console.Console(
        file=io.StringIO(), width=width, color_system=None, force_terminal=True, highlight=False
    )
    with console.capture() as captured:
        show(console, summary(study, files))
    return tuple(line.rstrip() for line in captured.get().splitlines())


def _table(study: StudyRecord) -> rich.table.Table:
    has_best = study.best is not None
    changed = study_view.changed_knobs(study)
    made = rich.table.Table(box=None, pad_edge=False)
    made.add_column("", overflow="fold")
    for head in ("default", "best", "best / default")[: 3 if has_best else 1]:
        made.add_column(head, justify="right", overflow="fold")
    for knob in study.knobs:
        sides = (study.default, study.best) if study.best is not None else (study.default,)
        cells = [formatting.knob_label(knob.name, knob.unit)]
        cells += [formatting.knob_value(side.get(knob.name)) for side in sides]
        cells += ["changed" if knob.name in changed else ""] * has_best
        style = "bold" if knob.name in changed else None
        made.add_row(*map(rich.text.Text, cells), style=style)
    made.add_section()
    arms = study_view.ARMS if has_best else study_view.ARMS[:1]
    measured = [study_view.arm_measurements(study, arm) for arm in arms]
    for name in study_view.figures_of_merit(study):
        objective = objectives.find_objective(name)
        cells = [f"{name} ({objective.unit})", *(_figure(side, objective) for side in measured)]
        cells += [_ratio(study, name)] * has_best
        made.add_row(*map(rich.text.Text, cells))
    if study.client_batch > 1:
        rates = [formatting.number(side.figure("items_per_s").middle) for side in measured]
        made.add_row(*map(rich.text.Text, ("items/s", *rates)))
    return made


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
