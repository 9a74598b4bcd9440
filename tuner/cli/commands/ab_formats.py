"""The result of `tune ab` as text, JSON, JUnit XML and Markdown."""

from __future__ import annotations

import argparse
import socket
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

import rich.console
import rich.text

import serving
from tuner.cli.commands import table
from tuner.load_generator.error_responses import reported_line
from tuner.measurement import comparison
from tuner.metrics import objective as objectives
from tuner.metrics import tail_latency
from tuner.report import formatting
from tuner.study import ab, ab_arms
from tuner.study.ab import AbResult
from tuner.values.interval import Interval

SCHEMA = "luthier.ab/2"
"""Version of the JSON, which changes when a field is removed or changes its meaning."""
FIGURES = ("mean", "p50", "p99", "throughput")
"""Metrics shown in addition to the compared one."""


def answer(found: AbResult) -> str:
    """Return the result in words."""
    if found.limit is None:
        return found.verdict.text
    undecided = f"the limit lies within the interval of {len(found.verdict.best)} pairs"
    if ab.fails_more(found.tallies):
        undecided = "evaluations of B failed more often than those of A"
    head = {
        "within": "Passed: the limit is kept",
        "worse": "Failed: the limit is exceeded",
        "undecided": f"Undecided: {undecided}",
    }[found.decision]
    return f"{head} ({found.limit.text}). {found.verdict.text}"


def notes(found: AbResult) -> list[str]:
    """Return notes on the result."""
    told = []
    if found.why_in_turn is not None:
        told.append(f"evaluated in turn with restarts, not side by side: {found.why_in_turn}")
    if found.runs:
        were = "were running and were" if len(found.runs) > 1 else "was running and was"
        told.append(
            f"{' and '.join(found.runs)} {were} not restarted, so the interval does not "
            "include the difference between evaluations of one configuration"
        )
    elif (evaluation_sd := found.verdict.evaluation_sd or 0.0) >= formatting.LEAST_SHARE:
        told.append(
            "the ratio of the mean latencies of A and B varies by "
            f"{formatting.percent(evaluation_sd)} between evaluations (standard "
            "deviation), which the interval includes"
        )
    for role, tally in found.tallies.items():
        if tally.failed:
            told.append(
                f"{tally.failed} of {formatting.plural(tally.evaluations, 'evaluation')} of {role} failed "
                f"({tally.reason}); their pairs do not count"
            )
    if found.repeats:
        told.append(
            f"{formatting.plural(found.repeats, 'slice')} measured again or left out, because other processes took "
            "more of the machine than usual"
        )
    if len(set(found.models)) > 1:
        told.append("A and B are different models: their responses are not compared")
    return told


def text(found: AbResult) -> rich.console.RenderableType:
    """Return the result for a terminal."""
    style = {"within": "green", "better": "green", "worse": "red"}.get(found.decision, "yellow")
    made = table("", "A", "B", "B over A")
    for row in _rows(found):
        made.add_row(*row)
    return rich.console.Group(
        rich.text.Text(answer(found), style=style),
        "",
        *(rich.text.Text(line) for line in _what(found)),
        "",
        made,
        *(rich.text.Text(f"note: {note}") for note in notes(found)),
    )


def _what(found: AbResult) -> list[str]:
    sides = [f"{role}: {told}" for role, told in zip(ab_arms.ARMS, found.told, strict=True)]
    return [*sides, f"load: {found.load}"]


def _rows(found: AbResult) -> list[tuple[str, str, str, str]]:
    rows = []
    for name in _table_metrics(found):
        objective, middles = objectives.find_objective(name), _middles(found, name)
        shown, ratio = ["–", "–"], "–"
        if middles is not None:
            shown = [f"{formatting.number(value)} {objective.unit}".strip() for value in middles]
            ratio = f"× {formatting.number(middles[1] / middles[0])}"
        if name == found.objective:
            ratio = formatting.ratio(found.verdict.ratio, found.verdict.interval)
        rows.append((objective.label, shown[0], shown[1], ratio))
    return rows


def _table_metrics(found: AbResult) -> list[str]:
    return [found.objective, *(name for name in FIGURES if name != found.objective)]


def _middles(found: AbResult, name: str) -> tuple[float, float] | None:
    sides = (found.verdict.default, found.verdict.best)
    if name == "p99" and name != found.objective:
        tail_a, tail_b = map(tail_latency.pool_tails, sides)
        return (
            (tail_a.value_ms, tail_b.value_ms)
            if tail_a.is_reportable and tail_b.is_reportable
            else None
        )
    return comparison.middles(*sides, name)


def as_json(found: AbResult) -> dict[str, Any]:
    """Return the result as JSON."""
    return {
        "schema": SCHEMA,
        "a": {"given": found.words[0], "is": found.told[0]},
        "b": {"given": found.words[1], "is": found.told[1]},
        "objective": found.objective,
        "load": found.load,
        "version": serving.__version__,
        "host": socket.gethostname(),
        "threshold": None if found.limit is None else found.limit.text,
        "decision": found.decision,
        "outcome": found.verdict.outcome,
        "ratio": found.verdict.ratio,
        "interval": _ends(found.verdict.interval),
        "between_session_interval": _ends(found.verdict.between_session_interval),
        "rounds": len(found.verdict.best),
        "seconds": found.seconds,
        "interleaved": found.why_in_turn is None,
        "evaluation_sd": found.verdict.evaluation_sd,
        "repeats": found.repeats,
        "failed": {role.lower(): tally.failed for role, tally in found.tallies.items()},
        "figures": {name: _figure(found, name) for name in _table_metrics(found)},
        "text": answer(found),
        "notes": notes(found),
    }


def _figure(found: AbResult, name: str) -> dict[str, Any]:
    a, b = _middles(found, name) or (None, None)
    return {"a": a, "b": b, "unit": objectives.find_objective(name).unit}


def _ends(interval: Interval) -> list[float | None]:
    return [interval.low, interval.high]


def junit(found: AbResult) -> str:
    """Return JUnit XML with one case: a failure if B is worse, an error if undecided."""
    kind = "error" if found.decision == "undecided" else "failure"
    is_passed = found.limit is None or found.decision == "within"
    name = found.objective if found.limit is None else f"not {found.limit.text}"
    return _suite(
        name=f"{name}: {found.words[1]} against {found.words[0]}",
        classname=f"tune.ab.{found.models[1]}",
        seconds=found.seconds,
        problem=None if is_passed else (kind, found.decision, answer(found)),
        output=[
            answer(found),
            *_what(found),
            *(" ".join(row) for row in _rows(found)),
            *notes(found),
        ],
    )


def junit_of_error(arguments: argparse.Namespace, why: str) -> str:
    """Return JUnit XML for a failed comparison."""
    return _suite(
        name=f"{arguments.b} against {arguments.a}",
        classname=f"tune.ab.{arguments.model or ab_arms.NO_MODEL}",
        seconds=0.0,
        problem=("error", "not measured", why),
        output=[],
    )


def _suite(
    *,
    name: str,
    classname: str,
    seconds: float,
    problem: tuple[str, str, str] | None,
    output: Sequence[str],
) -> str:
    suite = ET.Element("testsuite", name="tune ab", tests="1", time=f"{seconds:.3f}")
    for kind, attribute in (("failure", "failures"), ("error", "errors")):
        suite.set(attribute, str(int(problem is not None and problem[0] == kind)))
    case = ET.SubElement(suite, "testcase", classname=classname, name=name, time=f"{seconds:.3f}")
    if problem is not None:
        kind, type_, told = problem
        told = reported_line(told)  # may hold a server's text, in colours
        ET.SubElement(case, kind, message=told, type=type_).text = told
    if output:
        ET.SubElement(case, "system-out").text = "\n".join(map(reported_line, output))
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def markdown(found: AbResult) -> str:
    """Return the result as Markdown for a CI page."""
    rows = [("", "A", "B", "B over A"), ("---", "---:", "---:", "---:"), *_rows(found)]
    grid = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    what = "\n".join(f"- {line}" for line in _what(found))
    told = "".join(f"\n> {note}\n" for note in notes(found))
    mark = {"within": "✅ ", "worse": "❌ ", "undecided": "⚠️ "}.get(found.decision, "")
    head = f"### {mark if found.limit else ''}tune ab: {found.models[1]}"
    return f"{head}\n\n{answer(found)}\n\n{what}\n\n{grid}\n{told}\n"
