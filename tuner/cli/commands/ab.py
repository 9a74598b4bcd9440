"""`tune ab`: compare two arms."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib

from serving.errors import ServingError
from tuner.cli.commands import CommandResult, options
from tuner.cli.commands.ab_formats import as_json, junit, junit_of_error, markdown, text
from tuner.errors import TunerError, UsageError
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.option import duration_s
from tuner.settings.search import SearchSettings
from tuner.settings.store import StoreSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import ab, ab_arms
from tuner.study.progress import Terminal

EXIT_CODES = {"within": 0, "worse": 3, "undecided": 4}
"""Exit code of each decision; 0 if there is no threshold."""
NO_LOAD = "no load given; use --concurrency N (closed loop) or --rate R (open loop)"
LOAD = (*options.REQUESTS, "rate", "arrivals", "trust", "spawner")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    for side in ab_arms.ARMS:
        parser.add_argument(
            side.lower(),
            metavar=side,
            help="a settings file (as best.yaml), study, model or engine file, or the URL of "
            "a running server: http://HOST:PORT, http://HOST:PORT/v2/models/NAME, or any "
            "page",
        )
    told = "model of a side that names none (settings file, engine file, URL); default: none"
    options.add_value(parser, "--model", "NAME|FILE", told, default="")
    options.add_value(
        parser,
        "--fail-if",
        "TEXT",
        "threshold such as 'p99 worse by 5 %', by which B must not differ from A; exit "
        "code 0 if kept, 3 if exceeded, 4 if undecided in the time; metric: "
        f"{', '.join(ab.METRICS)}; default: none, exit code 0",
        parse=ab.parse_threshold,
    )
    options.add_value(
        parser,
        "--max-time",
        "TIME",
        "longest time, as 90s or 3m; ends earlier once the result is clear, and finishes "
        "the current round, at least two; default 3m",
        parse=duration_s,
        default=180.0,
    )
    for flag, told in (
        ("--junit", "write the result as JUnit XML; default: no"),
        ("--markdown", "append the result as Markdown; default: no"),
    ):
        options.add_value(parser, flag, "FILE", told, parse=pathlib.Path)
    options.add_group(parser, "target", only=LOAD)
    options.add_group(
        parser, "measurement", only=["objective", "seconds", "timeout_s", "load_clients"]
    )
    options.add_group(parser, "store", only=["runs_dir"])


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    for path in filter(None, (arguments.junit, arguments.markdown)):
        if path.is_dir():
            raise UsageError(f"{path} is a folder, expected a file for the result")
        if not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: no such folder: {path.absolute().parent}")
    try:
        found = ab.compare(_order(arguments), terminal=terminal)
    except (TunerError, ServingError) as error:
        _write(arguments, junit_of_error(arguments, str(error)), f"### tune ab\n\n{error}\n")
        raise
    _write(arguments, junit(found), markdown(found))
    code = 0 if found.limit is None else EXIT_CODES[found.decision]
    return CommandResult(text=text(found), data=as_json(found), exit_code=code)


def _write(arguments: argparse.Namespace, xml: str, page: str) -> None:
    if arguments.junit is not None:
        arguments.junit.write_text(xml, encoding="utf-8")
    if arguments.markdown is not None:
        with arguments.markdown.open("a", encoding="utf-8") as file:
            file.write(page)


def _order(arguments: argparse.Namespace) -> ab.AbSpec:
    limit = arguments.fail_if
    named = argparse.Namespace(**{**vars(arguments), "model": arguments.model or ab_arms.NO_MODEL})
    target = options.group_of(named, TargetSettings)
    if target.concurrency is None and not target.is_open:
        raise UsageError(NO_LOAD)
    measurement = options.group_of(arguments, MeasurementSettings)
    if limit is not None:
        if "objective" in vars(arguments) and measurement.objective != limit.objective:
            raise UsageError(
                f"--objective {measurement.objective}: not allowed with --fail-if "
                f"{limit.text!r}, whose metric is compared; leave --objective out"
            )
        measurement = dataclasses.replace(measurement, objective=limit.objective)
    if measurement.objective not in ab.METRICS:
        raise UsageError(
            f"--objective {measurement.objective}: expected one of {', '.join(ab.METRICS)}"
        )
    return ab.AbSpec(
        words=(arguments.a, arguments.b),
        settings=StudySettings(
            target=target,
            search=SearchSettings(sampler="random", max_time_s=arguments.max_time),
            measurement=measurement,
            store=options.group_of(arguments, StoreSettings),
        ),
        limit=limit,
    )
