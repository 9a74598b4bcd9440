"""`tune ab`: is B as good as A? For a person, for a program, and for a CI page."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import xml.etree.ElementTree as ET
from typing import Any

import rich.console
import rich.table
import rich.text

from tuner import ab, tails
from tuner import objective as objectives
from tuner.ab import Compared
from tuner.commands import options
from tuner.commands.said import Said
from tuner.errors import WrongUse
from tuner.progress import Terminal
from tuner.report import wording
from tuner.settings import (
    NO_LOAD,
    MeasurementSettings,
    SearchSettings,
    StoreSettings,
    StudySettings,
    TargetSettings,
    duration_s,
)
from tuner.values import Interval, Measurement

SCHEMA = "luthier.ab/1"
"""Of the JSON: a later version has another number where a field has gone or means something else."""
EXIT_CODES = {"within": 0, "worse": 3, "undecided": 4}
"""By what a limit says; without a limit it is 0."""
NOT_OFFERED = frozenset({"energy", "cost", "goodput", "rate"})
"""Objectives that need a price file, a limit, or a device whose energy is counted."""
LOAD = (
    "trust",
    "concurrency",
    "rate",
    "arrivals",
    "client_batch",
    "payload",
    "shape",
    "values",
    "home",
)
FIGURES = (
    ("mean", "mean_ms"),
    ("p50", "p50_ms"),
    ("p99", "p99_ms"),
    ("throughput", "throughput_per_s"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Both sides, the load, and what is asked of the answer."""
    for side in ab.ROLES:
        parser.add_argument(
            side.lower(),
            metavar=side,
            help="a settings file (as best.yaml), a study, a model, an engine file, or http://HOST:PORT of a "
            "server that runs",
        )
    parser.add_argument(
        "--model",
        metavar="NAME|FILE",
        default="",
        help="model of a side that names none: of a settings file, an engine file, a URL; default: none",
    )
    parser.add_argument(
        "--fail-if",
        metavar="TEXT",
        type=options.parsing(ab.limit_of),
        default=None,
        help="'p99 worse by 5 %%': what B must not be, of A; the exit code is then 0 where it is not, 3 where it "
        "is, and 4 where the time was too short to tell; the metric is an objective; default: none, and 0",
    )
    parser.add_argument(
        "--max-time",
        metavar="TIME",
        type=options.parsing(duration_s),
        default=180.0,
        help="longest time, as 90s or 3m; it ends before, where the answer is clear; default 3m",
    )
    parser.add_argument(
        "--junit",
        metavar="FILE",
        type=pathlib.Path,
        help="write the answer as JUnit XML; default: not",
    )
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        type=pathlib.Path,
        help="append the answer as Markdown; default: not",
    )
    options.add_group(parser, "target", only=LOAD)
    options.add_group(parser, "measurement", only=["objective", "seconds", "warmup_s", "timeout_s"])
    options.add_group(parser, "store", only=["runs_dir"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Compare, and say it in each form that was asked for."""
    for path in filter(None, (arguments.junit, arguments.markdown)):
        if path.is_dir():
            raise WrongUse(f"{path} is a folder, expected a file to write the answer to")
        if not path.absolute().parent.is_dir():
            raise WrongUse(f"{path}: there is no folder {path.absolute().parent}")
    found = ab.compare(_order(arguments), terminal=terminal)
    if arguments.junit is not None:
        arguments.junit.write_text(junit(found), encoding="utf-8")
    if arguments.markdown is not None:
        with arguments.markdown.open("a", encoding="utf-8") as file:
            file.write(markdown(found))
    return Said(text=text(found), data=as_json(found), exit_code=EXIT_CODES.get(found.decision, 0))


def _order(arguments: argparse.Namespace) -> ab.Order:
    """What is asked for, checked.

    Raises:
        WrongUse: it makes no sense.
    """
    limit = arguments.fail_if
    named = argparse.Namespace(**{**vars(arguments), "model": arguments.model or ab.NO_MODEL})
    target = options.group_of(named, TargetSettings)
    if target.concurrency is None and not target.is_open:
        raise WrongUse(NO_LOAD)
    measurement = options.group_of(arguments, MeasurementSettings)
    if limit is not None:
        measurement = dataclasses.replace(measurement, objective=limit.objective)
    if measurement.second is not None or measurement.first in NOT_OFFERED:
        raise WrongUse(
            f"--objective {measurement.objective}: two sides are compared in one of mean, p50, p95, p99, throughput, "
            "time-per-item, consistency, cpu and memory"
        )
    return ab.Order(
        words=(arguments.a, arguments.b),
        settings=StudySettings(
            target=target,
            search=SearchSettings(sampler="random", max_time_s=arguments.max_time),
            measurement=measurement,
            store=options.group_of(arguments, StoreSettings),
        ),
        limit=limit,
    )


def answer(found: Compared) -> str:
    """The answer in a sentence."""
    if found.limit is None:
        return found.verdict.text
    head = {
        "within": f"Not {found.limit.text}",
        "worse": f"{found.limit.text[0].upper()}{found.limit.text[1:]}",
        "undecided": f"Undecided whether {found.limit.text}",
    }[found.decision]
    return f"{head}. {found.verdict.text}"


def notes(found: Compared) -> list[str]:
    """What else there is to know."""
    told = []
    if found.why_in_turn is not None:
        told.append(f"launched afresh in turn, not side by side: {found.why_in_turn}")
    if found.runs:
        told.append(
            f"{' and '.join(found.runs)} ran before, and was not started anew: what its launches differ by is not in "
            "the interval"
        )
    elif found.verdict.launch_sd is not None:
        told.append(
            f"launches have {wording.percent(found.verdict.launch_sd)} of their own in the ratio; the interval has it"
        )
    if found.repeats:
        told.append(
            f"{wording.plural(found.repeats, 'slice')} measured again: others took more of the machine than usual"
        )
    return told


def text(found: Compared) -> rich.console.RenderableType:
    """For a person."""
    style = {"within": "green", "better": "green", "worse": "red"}.get(found.decision, "yellow")
    made = rich.table.Table(box=None, pad_edge=False)
    for place, title in enumerate(("", "A", "B", "B over A")):
        made.add_column(title, justify="right" if place else "left", overflow="fold")
    for row in _rows(found):
        made.add_row(*row)
    sides = [f"{role}: {told}" for role, told in zip(ab.ROLES, found.told, strict=True)]
    return rich.console.Group(
        rich.text.Text(answer(found), style=style),
        "",
        *sides,
        "",
        made,
        *(rich.text.Text(f"note: {note}") for note in notes(found)),
    )


def _rows(found: Compared) -> list[tuple[str, str, str, str]]:
    rows = []
    for name, field in FIGURES:
        objective = objectives.named(name)
        middles = [_middle(side, field) for side in (found.verdict.default, found.verdict.best)]
        shown = [
            "–" if value is None else f"{wording.number(value)} {objective.unit}"
            for value in middles
        ]
        ratio = "–"
        if name == found.objective:
            ratio = wording.ratio(found.verdict.ratio, found.verdict.interval)
        elif middles[0] is not None and middles[1] is not None:
            ratio = f"× {wording.number(middles[1] / middles[0])}"
        rows.append((objective.label, shown[0], shown[1], ratio))
    return rows


def _middle(launches: tuple[Measurement, ...], field: str) -> float | None:
    """Of all launches: what one objective says of them together; None where they do not tell."""
    if field == "p99_ms":
        tail = tails.pooled(launches)
        return tail.value_ms if tail.is_told else None
    values = [float(getattr(one, field)) for one in launches]
    weights = [one.requests for one in launches]
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)


def as_json(found: Compared) -> dict[str, Any]:
    """For a program."""
    return {
        "schema": SCHEMA,
        "a": {"given": found.words[0], "is": found.told[0]},
        "b": {"given": found.words[1], "is": found.told[1]},
        "objective": found.objective,
        "limit": None if found.limit is None else found.limit.text,
        "decision": found.decision,
        "outcome": found.verdict.outcome,
        "ratio": found.verdict.ratio,
        "interval": _ends(found.verdict.interval),
        "another_day": _ends(found.verdict.another_day),
        "rounds": len(found.verdict.best),
        "seconds": found.seconds,
        "side_by_side": found.why_in_turn is None,
        "launch_sd": found.verdict.launch_sd,
        "repeats": found.repeats,
        "figures": {
            name: {
                role: _middle(side, field)
                for role, side in zip(
                    ("a", "b"), (found.verdict.default, found.verdict.best), strict=True
                )
            }
            for name, field in FIGURES
        },
        "text": answer(found),
        "notes": notes(found),
    }


def _ends(interval: Interval) -> list[float | None]:
    return [interval.low, interval.high]


def junit(found: Compared) -> str:
    """For a page of test results: one case, which fails where B is worse, and is an error where nobody can tell."""
    name = found.objective if found.limit is None else found.limit.text
    suite = ET.Element("testsuite", name="tune ab", tests="1", time=f"{found.seconds:.3f}")
    case = ET.SubElement(
        suite, "testcase", classname="tune.ab", name=name, time=f"{found.seconds:.3f}"
    )
    is_wrong = found.limit is not None and found.decision == "worse"
    is_open = found.decision == "undecided"
    suite.set("failures", str(int(is_wrong)))
    suite.set("errors", str(int(is_open)))
    if is_wrong:
        ET.SubElement(case, "failure", message=answer(found), type="worse")
    elif is_open:
        ET.SubElement(case, "error", message=answer(found), type="undecided")
    ET.SubElement(case, "system-out").text = "\n".join(
        [
            answer(found),
            *(f"{role}: {told}" for role, told in zip(ab.ROLES, found.told, strict=True)),
        ]
    )
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def markdown(found: Compared) -> str:
    """For a CI page."""
    rows = [("", "A", "B", "B over A"), ("---", "---:", "---:", "---:"), *_rows(found)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    sides = "\n".join(
        f"- {role}: `{told}`" for role, told in zip(ab.ROLES, found.told, strict=True)
    )
    told = "".join(f"\n> {note}" for note in notes(found))
    return f"### tune ab\n\n{answer(found)}\n\n{sides}\n\n{table}\n{told}\n"
