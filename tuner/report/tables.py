"""Tables of a study's page; sortable cells carry their plain value."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.metrics.objective import Objective
from tuner.report import formatting
from tuner.report.markup import Child, Markup, element, table
from tuner.report.study import study_view
from tuner.values.measurement import Measurement
from tuner.values.sampler_comparison import ComparisonRecord
from tuner.values.study_record import KnobInfo, StudyRecord
from tuner.values.trial import Trial

IN_EVERY_TABLE = ("mean_ms", "p50_ms", "p95_ms", study_view.P99, "throughput_per_s", "energy_j")


def configurations(study: StudyRecord) -> Markup:
    """Every knob's default and best value."""
    changed = study_view.changed_knobs(study)
    rows = []
    for knob in study.knobs:
        cells = [
            element("td", formatting.knob_label(knob.name, knob.unit), *_not_searched(knob)),
            element("td", _value(study.default, knob.name)),
        ]
        if study.best is not None:
            cells.append(element("td", _value(study.best, knob.name)))
        rows.append(element("tr", *cells, class_="changed" if knob.name in changed else None))
    heads: list[Child] = ["knob", element("span", "default", class_="is-default")]
    if study.best is not None:
        heads.append(element("span", "best", class_="is-best"))
    return table(heads, rows)


def _not_searched(knob: KnobInfo) -> tuple[Child, ...]:
    return (element("span", " fixed", class_="soft"),) if len(knob.values) == 1 else ()


def side_by_side(study: StudyRecord) -> Markup | None:
    """Metrics of default and best, or None."""
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
    rows = [
        element(
            "tr",
            element("td", label),
            *(_number(side.figure(field)) for side in sides),
        )
        for label, field in shown
    ]
    p99 = [_tail(side.tail) for side in sides]
    rows.append(element("tr", element("td", "p99 (ms) of all requests"), *p99))
    counts = [f"{len(side.measurements)} × ≥ {side.min_requests:,}" for side in sides]
    rows.append(
        element(
            "tr",
            element("td", "launches × requests"),
            *(element("td", count, class_="number") for count in counts),
        )
    )
    heads: list[Child] = [""]
    for role, _ in zip(study_view.ARMS, sides, strict=False):
        heads.append(element("span", role, class_=f"is-{role}"))
    return table(heads, rows, class_="figures")


def trials(study: StudyRecord) -> Markup:
    """Every trial with metrics, configuration and failure reason."""
    names = [knob.name for knob in study.knobs]
    extra = sorted({n for trial in study.trials for n in trial.configuration} - set(names))
    own = [objective.axis for objective in _own(study)]
    columns = [
        "trial",
        "origin",
        "outcome",
        *own,
        "mean (ms)",
        "95 % interval",
        "p50 (ms)",
        "p95 (ms)",
        "p99 (ms)",
        "p99: 95 % interval",
        "effective requests",
        "requests/s",
        "requests",
        "errors",
        *(("refused",) if study.shared is not None else ()),
        *(("sent late",) if study.is_open else ()),
        *(
            ("energy (J/request)", "power (W)", "GPU clock (MHz)")
            if study_view.has_energy(study)
            else ()
        ),
        *names,
        *extra,
        "launch (s)",
        "started (UTC)",
    ]
    rows = [_trial_row(study, trial, [*names, *extra]) for trial in study.trials]
    return table([sorter(column) for column in columns], rows, class_="sortable")


def sorter(label: str) -> Markup:
    """Sorting heading; knob names may break at dots and underscores."""
    parts: list[Child] = []
    for part in re.split(r"(?<=[._])", label):
        parts += [part, Markup("<wbr>")]
    return element("button", *parts[:-1], type="button")


def facts(data: Mapping[str, Any]) -> Markup | None:
    """Nested data as rows of dotted name and value."""
    rows = [
        element("tr", element("td", name), element("td", text, class_="text"))
        for name, text in _flat(data)
    ]
    return table(["name", "value"], rows) if rows else None


def environment(record: StudyRecord | ComparisonRecord) -> Markup:
    """Environment and settings side by side."""
    told = (("Environment", record.environment), ("Settings", record.settings))
    return element(
        "div",
        *(
            element("div", element("h3", title), facts(data) or element("p", "Not recorded."))
            for title, data in told
        ),
        class_="halves",
    )


def cell(value: float | None, *, text: str | None = None) -> Markup:
    """Sortable number; "–" for None."""
    shown = formatting.number(value) if text is None else text
    return element("td", shown, class_="number", data_value=value)


def _trial_row(study: StudyRecord, trial: Trial, names: Sequence[str]) -> Markup:
    outcome = trial.outcome.status + (f": {trial.outcome.cause}" if trial.outcome.cause else "")
    started = dt.datetime.fromtimestamp(trial.started_at, tz=dt.UTC)
    why = trial.outcome.reason
    if trial.measurement is not None and trial.measurement.ended_early:
        why = f"ended after {trial.measurement.seconds:.1f} s: cannot beat the best"
    reason = element("div", why, class_="reason") if why else None
    class_ = "broken" if trial.measurement is None else None
    measured = trial.measured
    own = [
        cell(None if measured is None else objective.value(measured)) for objective in _own(study)
    ]
    if trial.configuration == study.best:
        class_ = "is-best-row"
    elif trial.configuration == study.default:
        class_ = f"{class_ or ''} is-default-row".strip()
    return element(
        "tr",
        element("td", trial.number, class_="number", data_value=trial.number),
        element("td", trial.origin, data_value=trial.origin),
        element("td", outcome, reason, class_="text" if reason else None, data_value=outcome),
        *own,
        *_figures(measured),
        *_rejected_cells(study, measured),
        *_sent_late(study, measured),
        *(_energy(measured) if study_view.has_energy(study) else ()),
        *(
            element("td", _value(trial.configuration, name), data_value=_key(trial, name))
            for name in names
        ),
        cell(trial.startup_s),
        element(
            "td",
            f"{started:%H:%M:%S}",
            title=f"{started:%Y-%m-%d %H:%M:%S}",
            data_value=trial.started_at,
        ),
        class_=class_,
    )


def _own(study: StudyRecord) -> list[Objective]:
    found = [objectives.find_objective(name) for name in (study.objective, study.second) if name]
    return [objective for objective in found if objective.field not in IN_EVERY_TABLE]


def _figures(measured: Measurement | None) -> list[Markup]:
    if measured is None:
        return [cell(None)] * 10
    ends = formatting.interval(measured.mean_interval)
    tail = tail_latency.of_evaluation(measured)
    between = formatting.interval(tail.interval) if tail.is_reportable else "–"
    return [
        cell(measured.mean_ms),
        element("td", ends, class_="number", data_value=measured.mean_interval.low),
        cell(measured.p50_ms),
        cell(measured.p95_ms),
        element(
            "td",
            formatting.number(tail.value_ms),
            class_="number",
            title=tail.why_not or None,
            data_value=tail.value_ms if tail.is_reportable else None,
        ),
        element("td", between, class_="number", data_value=tail.interval.low),
        cell(tail.effective, text=f"{tail.effective:,.0f}"),
        cell(measured.throughput_per_s),
        cell(measured.requests, text=f"{measured.requests:,}"),
        cell(measured.errors),
    ]


def _rejected_cells(study: StudyRecord, measured: Measurement | None) -> list[Markup]:
    if study.shared is None:
        return []
    return [cell(None if measured is None else measured.refused)]


def _sent_late(study: StudyRecord, measured: Measurement | None) -> list[Markup]:
    if not study.is_open:
        return []
    late = None if measured is None else measured.late_share
    return [cell(late, text="–" if late is None else formatting.percent(late))]


def _energy(measured: Measurement | None) -> list[Markup]:
    energy = None if measured is None else measured.energy
    if energy is None:
        return [cell(None)] * 3
    by_source = ", ".join(
        f"{name}: {formatting.number(joules)}" for name, joules in energy.sources.items()
    )
    per_request = element(
        "td",
        formatting.number(energy.per_request_j),
        class_="number",
        title=by_source,
        data_value=energy.per_request_j,
    )
    return [per_request, cell(energy.power_w), cell(energy.clock_mhz)]


def _number(figure: study_view.MetricSummary) -> Markup:
    if figure.low == figure.high:
        return element("td", formatting.number(figure.middle), class_="number")
    spread = f" ({formatting.number(figure.low)} to {formatting.number(figure.high)})"
    return element(
        "td",
        element("b", formatting.number(figure.middle)),
        element("span", spread, class_="spread"),
        class_="number",
    )


def _tail(found: tail_latency.TailLatency) -> Markup:
    if not found.is_reportable:
        return element("td", formatting.tail(found), class_="number")
    return element(
        "td",
        element("b", formatting.number(found.value_ms)),
        element("span", f" {formatting.tail_spread(found)}", class_="spread"),
        class_="number",
    )


def _value(configuration: Mapping[str, Any], name: str) -> str:
    return formatting.knob_value(configuration[name]) if name in configuration else "–"


def _key(trial: Trial, name: str) -> str | float | None:
    value = trial.configuration.get(name)
    return formatting.knob_value(value) if isinstance(value, bool) else value


def _flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            yield name, ", ".join(map(str, value))
        else:
            yield name, "–" if value is None else str(value)
