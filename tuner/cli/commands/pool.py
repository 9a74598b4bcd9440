"""`tune pool`: run a scenario of many models, in virtual time or on this machine."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import rich.console
import rich.table
import rich.text

from tuner.cli.commands import CommandResult, options, table
from tuner.evaluation.scenarios import emulated, files, served
from tuner.evaluation.scenarios.emulated import Emulation
from tuner.evaluation.scenarios.results import Counts, ScenarioResult
from tuner.evaluation.scenarios.served import ScenarioRun
from tuner.evaluation.scenarios.values import Scenario
from tuner.report import formatting
from tuner.study.interruption import resumable
from tuner.study.progress import Terminal
from tuner.values.measurement import LATE_S, MAX_LATE_SHARE
from tuner.values.plain import to_plain

OF_A_SERVICE = ("send_lag_ms", "sent_late", "client_cores", "server")
"""Facts about a real run that the JSON contains."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument(
        "scenario", type=pathlib.Path, metavar="FILE", help="scenario file (docs/scenarios.md)"
    )
    told = "serve on this machine with real replicas in real time; default: emulate in virtual time"
    options.add_flag(parser, "--serve", told)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    scenario = files.read(arguments.scenario)
    if arguments.serve:
        with resumable(None):
            served_ = served.run(scenario, say=terminal.say)
        data = {name: to_plain(getattr(served_, name)) for name in OF_A_SERVICE}
        return _make_result(scenario, served_, "", _of_service(served_), data, note=_doubt(served_))
    found, _ = emulated.run(scenario, check=terminal.check)
    planned_per_s = found.planned_per_s if found.requests else None
    data = {"work": to_plain(found.work), "planned_per_s": planned_per_s}
    more, note = _of_emulation(found), _caution(scenario)
    return _make_result(scenario, found, " of virtual time", more, data, note=note)


def _make_result(
    scenario: Scenario,
    found: ScenarioResult,
    time: str,
    more: Sequence[str],
    data: dict[str, Any],
    *,
    note: str | None,
) -> CommandResult:
    notes = [] if note is None else [note]
    head = (
        f"{scenario.name}: {formatting.plural(found.requests, 'request')} in {scenario.seconds:g} s{time}; "
        f"goodput {formatting.number(found.goodput_per_s)} requests/s"
    )
    parts: list[rich.console.RenderableType] = [rich.text.Text(head), _table(found)]
    parts += [_by_deadline(name, found) for name in found.by_deadline]
    parts += [rich.text.Text(line) for line in (*_reasons(found), *more)]
    parts += [rich.text.Text(f"note: {note}", style="yellow") for note in notes]
    return CommandResult(
        text=rich.console.Group(*parts), data={**_data(found), **data, "notes": notes}
    )


def _of_emulation(found: Emulation) -> tuple[str, ...]:
    work = found.work
    workers = (
        f"workers: {100 * work.exec_share:.1f} % of their time in batches, {100 * work.load_share:.1f} % "
        f"in {formatting.plural(work.loads, 'load')}; {formatting.plural(work.missed_windows, 'action')} missed "
        "the window"
    )
    planned = f"the scheduler can plan {found.planned_per_s:,.0f} requests/s on one core here"
    return workers, planned


def _caution(scenario: Scenario) -> str | None:
    jitter = scenario.emulated.jitter
    if min(jitter) < max(jitter):
        return None
    return (
        "durations do not vary (emulated.jitter is 0), so the shares in time are an "
        "upper bound; set a jitter, as real replicas vary (docs/scenarios.md)"
    )


def _doubt(found: ScenarioRun) -> str | None:
    if found.sent_late <= MAX_LATE_SHARE:
        return None
    return (
        f"{formatting.percent(found.sent_late)} of the requests were sent more than {1e3 * LATE_S:g} ms after they "
        "were due: all connections were busy, or the load generator was; the wait counts"
    )


def _of_service(found: ScenarioRun) -> tuple[str, ...]:
    server = found.server
    told = "; ".join(f"{count:,} {reason}" for reason, count in server.refusals.items())
    missed = f"{formatting.plural(server.too_late, 'action')} missed the window"
    work = f"replicas: {formatting.plural(server.loads, 'load')}; {missed}"
    late = f"p99 of how late requests were sent: {formatting.number(found.send_lag_ms)} ms"
    client = f"{late}; the load generator took {formatting.number(found.client_cores)} cores"
    return (*([f"the server rejected: {told}"] if told else ()), work, client)


def _table(found: ScenarioResult) -> rich.table.Table:
    titles = ("requests", "refused", "admitted", "in time", "late", "dropped", "p50", "p99.9")
    made = table("", *titles)
    for name, one in found.streams.items():
        trips = [f"{value:.1f} ms" for value in one.latencies_ms] or ["–"] * 4
        made.add_row(
            name,
            f"{one.requests:,}",
            f"{sum(one.refused_at_once.values()):,}",
            f"{one.admitted:,}",
            f"{one.in_time:,}",
            f"{one.late:,}",
            f"{sum(one.dropped.values()):,}",
            trips[0],
            trips[2],
        )
    return made


def _reasons(found: ScenarioResult) -> Iterator[str]:
    for name, one in found.streams.items():
        for what, reasons in (("refused", one.refused_at_once), ("dropped", one.dropped)):
            if reasons:
                told = "; ".join(f"{count:,} {reason}" for reason, count in reasons.items())
                yield f"{name}, {what}: {told}"


def _by_deadline(name: str, found: ScenarioResult) -> rich.table.Table:
    made = table(f"{name}: deadline", "requests", "in time")
    for size, one in found.by_deadline[name].items():
        made.add_row(
            f"{formatting.number(size)} ms",
            f"{one.requests:,}",
            formatting.percent(one.in_time / one.requests),
        )
    return made


def _data(found: ScenarioResult) -> dict[str, Any]:
    return {
        "scenario": found.scenario,
        "seconds": found.seconds,
        "goodput_per_s": found.goodput_per_s,
        "streams": {name: _plain(one) for name, one in found.streams.items()},
        "by_deadline_ms": {
            name: {f"{size:.9g}": _plain(one) for size, one in by.items()}
            for name, by in found.by_deadline.items()
        },
    }


def _plain(one: Counts) -> dict[str, Any]:
    return {**to_plain(one), "admitted": one.admitted}
