"""Tables of a study's page; sortable cells carry their plain value."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.metrics.tail_latency import TailLatency
from tuner.report import formatting
from tuner.report.markup import Child, Markup, element, row, table
from tuner.report.study import study_view
from tuner.values.interval import Interval
from tuner.values.measurement import Energy, Measurement
from tuner.values.sampler_comparison import ComparisonRecord
from tuner.values.study_record import StudyRecord
from tuner.values.trial import Trial

IN_EVERY_TABLE = ("mean_ms", "p50_ms", "p95_ms", study_view.P99, "throughput_per_s", "energy_j")

MakeCell = Callable[[Trial], Markup]


def configurations(study: StudyRecord) -> Markup:
    """Tabulate every knob's default and best value."""
    changed = study_view.changed_knobs(study)
    sides = [side for side in (study.default, study.best) if side is not None]
    rows = []
    for knob in study.knobs:
        fixed = element("span", " fixed", class_="soft") if len(knob.values) == 1 else None
        name = element("td", formatting.knob_label(knob.name, knob.unit), fixed)
        values = [formatting.knob_value(side.get(knob.name)) for side in sides]
        rows.append(row(name, *values, class_="changed" if knob.name in changed else None))
    return table(["knob", *arm_heads(len(sides))], rows)


def side_by_side(study: StudyRecord) -> Markup | None:
    """Tabulate the metrics of default and best, or return None."""
    sides = [study_view.arm_measurements(study, role) for role in study_view.ARMS]
    sides = sides if study_view.has_two_arms(study) else sides[:1]
    if not any(side.measurements for side in sides):
        return None
    shown = [
        ("mean (ms)", "mean_ms"),
        ("p50 (ms)", "p50_ms"),
        ("p95 (ms)", "p95_ms"),
        ("p95 - p5 (ms)", "spread_ms"),
        ("requests/s" if study.shared is None else "answered/s", "throughput_per_s"),
    ]
    if study.shared is not None:
        shown += [
            ("in time/s", "goodput_per_s"),
            ("due/s", "offered_per_s"),
            ("answered in time, of all due", "answered_share"),
        ]
    if study_view.has_energy(study):
        shown.append(("energy (J/request)", "energy_j"))
    if any(math.isfinite(one.cpu_s) for side in sides for one in side.measurements):
        shown += [
            ("CPU (core-s per 1,000 requests)", "cpu_s"),
            ("memory (MiB-s per 1,000 requests)", "memory_mib_s"),
        ]
    if study.client_batch > 1:
        shown += [("items/s", "items_per_s"), ("time per item (ms)", "time_per_item_ms")]
    rows = [row(label, *(_metric(side.figure(field)) for side in sides)) for label, field in shown]
    rows.append(row("p99 (ms) of all requests", *(_tail(side.tail) for side in sides)))
    counts = [f"{len(side.measurements)} × ≥ {side.min_requests:,}" for side in sides]
    rows.append(row("evaluations × requests", *(cell(text=count) for count in counts)))
    return table(["", *arm_heads(len(sides))], rows, class_="figures")


def arm_heads(count: int = 2) -> list[Child]:
    """Return coloured headings of the first `count` arms."""
    return [element("span", arm, class_=f"is-{arm}") for arm in study_view.ARMS[:count]]


def trials(study: StudyRecord) -> Markup:
    """Tabulate every trial with its metrics, configuration and failure reason."""
    columns = _trial_columns(study)
    rows = []
    for trial in study.trials:
        class_ = "broken" if trial.measurement is None else None
        if trial.configuration == study.best:
            class_ = "is-best-row"
        elif trial.configuration == study.default:
            class_ = f"{class_ or ''} is-default-row".strip()
        rows.append(row(*(make(trial) for _, make in columns), class_=class_))
    return sortable([heading for heading, _ in columns], rows)


def sortable(columns: Iterable[str], rows: Iterable[Markup]) -> Markup:
    """Return a table whose headings sort it; knob names wrap after dots and underscores."""
    heads = []
    for column in columns:
        parts: list[Child] = []
        for part in re.split(r"(?<=[._])", column):
            parts += [part, Markup("<wbr>")]
        heads.append(element("button", *parts[:-1], type="button"))
    return table(heads, rows, class_="sortable")


def cell(value: float | None = None, *, text: str | None = None, **attributes: Any) -> Markup:
    """Return a numeric cell that sorts by its value; `text` replaces the number shown."""
    shown = formatting.number(value) if text is None else text
    return element("td", shown, class_="number", **attributes, data_value=value)


def interval_cell(ends: Interval) -> Markup:
    """Return an interval's cell, which sorts by the lower end."""
    return cell(ends.low, text=formatting.interval(ends))


def word_cell(word: str) -> Markup:
    """Return a cell that sorts by its word."""
    return element("td", word, data_value=word)


def facts(data: Mapping[str, Any]) -> Markup | None:
    """Tabulate nested data by dotted name."""
    rows = [row(name, element("td", text, class_="text")) for name, text in _flat(data)]
    return table(["name", "value"], rows) if rows else None


def environment(record: StudyRecord | ComparisonRecord) -> Markup:
    """Tabulate environment and settings side by side."""
    told = (("Environment", record.environment), ("Settings", record.settings))
    halves = (
        element("div", element("h3", title), facts(data) or element("p", "Not recorded."))
        for title, data in told
    )
    return element("div", *halves, class_="halves")


def _trial_columns(study: StudyRecord) -> list[tuple[str, MakeCell]]:
    columns: list[tuple[str, MakeCell]] = [
        ("trial", lambda trial: cell(trial.number, text=str(trial.number))),
        ("origin", lambda trial: word_cell(trial.origin)),
        ("outcome", _outcome),
    ]
    for name in (study.objective, study.second):
        objective = None if name is None else objectives.find_objective(name)
        if objective is not None and objective.field not in IN_EVERY_TABLE:
            columns.append((objective.axis, _field(objective.field)))
    columns += [
        ("mean (ms)", _field("mean_ms")),
        ("95 % interval", _measured(lambda one: interval_cell(one.mean_interval))),
        ("p50 (ms)", _field("p50_ms")),
        ("p95 (ms)", _field("p95_ms")),
        ("p99 (ms)", _of_tail(_p99)),
        ("p99: 95 % interval", _of_tail(_p99_interval)),
        ("effective requests", _of_tail(_effective)),
        ("requests/s", _field("throughput_per_s")),
        ("requests", _field("requests")),
        ("errors", _field("errors")),
    ]
    if study.shared is not None:
        columns.append(("refused", _field("refused")))
    if study.is_open:
        columns.append(("sent late", _measured(_sent_late)))
    if study_view.has_energy(study):
        columns += [
            ("energy (J/request)", _of_energy(_joules)),
            ("power (W)", _of_energy(lambda energy: cell(energy.power_w))),
            ("GPU clock (MHz)", _of_energy(lambda energy: cell(energy.clock_mhz))),
        ]
    names = [knob.name for knob in study.knobs]
    extra = sorted({n for trial in study.trials for n in trial.configuration} - set(names))
    columns += [(name, _knob(name)) for name in (*names, *extra)]
    if any(trial.node for trial in study.trials):
        columns.append(("machine", lambda trial: word_cell(trial.node)))
    columns.append(("launch (s)", lambda trial: cell(trial.startup_s)))
    columns.append(("started (UTC)", _started))
    return columns


def _measured(make: Callable[[Measurement], Markup]) -> MakeCell:
    return lambda trial: cell() if trial.measured is None else make(trial.measured)


def _field(field: str) -> MakeCell:
    return _measured(lambda one: cell(getattr(one, field)))


def _of_tail(make: Callable[[TailLatency], Markup]) -> MakeCell:
    return _measured(lambda one: make(tail_latency.of_evaluation(one)))


def _of_energy(make: Callable[[Energy], Markup]) -> MakeCell:
    return _measured(lambda one: cell() if one.energy is None else make(one.energy))


def _outcome(trial: Trial) -> Markup:
    outcome = trial.outcome.status + (f": {trial.outcome.cause}" if trial.outcome.cause else "")
    why = trial.outcome.reason
    if trial.measurement is not None and trial.measurement.ended_early:
        why = f"ended after {trial.measurement.seconds:.1f} s: cannot beat the best"
    reason = element("div", why, class_="reason") if why else None
    return element("td", outcome, reason, class_="text" if reason else None, data_value=outcome)


def _p99(tail: TailLatency) -> Markup:
    value, shown = tail.value_ms if tail.is_reportable else None, formatting.number(tail.value_ms)
    return cell(value, text=shown, title=tail.why_not or None)


def _p99_interval(tail: TailLatency) -> Markup:
    return interval_cell(tail.interval) if tail.is_reportable else cell()


def _effective(tail: TailLatency) -> Markup:
    return cell(tail.effective, text=f"{tail.effective:,.0f}")


def _sent_late(measured: Measurement) -> Markup:
    late = measured.late_share
    return cell(late, text="–" if late is None else formatting.percent(late))


def _joules(energy: Energy) -> Markup:
    sources = (f"{name}: {formatting.number(joules)}" for name, joules in energy.sources.items())
    return cell(energy.per_request_j, title=", ".join(sources))


def _knob(name: str) -> MakeCell:
    def make(trial: Trial) -> Markup:
        value = trial.configuration.get(name)
        shown = formatting.knob_value(value)
        return element("td", shown, data_value=shown if isinstance(value, bool) else value)

    return make


def _started(trial: Trial) -> Markup:
    started = dt.datetime.fromtimestamp(trial.started_at, tz=dt.UTC)
    return element(
        "td",
        f"{started:%H:%M:%S}",
        title=f"{started:%Y-%m-%d %H:%M:%S}",
        data_value=trial.started_at,
    )


def _metric(figure: study_view.MetricSummary) -> Markup:
    middle = formatting.number(figure.middle)
    if figure.low == figure.high:
        return cell(text=middle)
    ends = f"{formatting.number(figure.low)} to {formatting.number(figure.high)}"
    return _with_spread(middle, f"({ends})")


def _tail(found: TailLatency) -> Markup:
    if not found.is_reportable:
        return cell(text=formatting.tail(found))
    return _with_spread(formatting.number(found.value_ms), formatting.tail_spread(found))


def _with_spread(middle: str, spread: str) -> Markup:
    parts = element("b", middle), element("span", f" {spread}", class_="spread")
    return element("td", *parts, class_="number")


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value))
        else:
            yield name, "–" if value is None else str(value)
