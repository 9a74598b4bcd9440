"""`tune confirm`: measure an export where it runs, against its study."""

from __future__ import annotations

import argparse
import pathlib

import rich.console
import rich.text

from tuner.cli.commands import CommandResult, options
from tuner.cli.commands.study import finite
from tuner.errors import UsageError
from tuner.export import confirmation_job
from tuner.load_generator.endpoint import parse_header
from tuner.measurement.confirmation import MARGIN, MIN_EVALUATIONS
from tuner.report import files as report_files
from tuner.study import confirmation, study_files
from tuner.study.confirmation import ConfirmationSpec
from tuner.study.progress import Terminal
from tuner.values.confirmation import Confirmation, ConfirmationOutcome
from tuner.values.plain import to_plain

EXIT_CODES: dict[ConfirmationOutcome, int] = {"same": 0, "better": 0, "worse": 3, "undecided": 4}
STYLES: dict[ConfirmationOutcome, str] = {"same": "green", "better": "green", "worse": "red"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_value(
        parser,
        "--url",
        "URL",
        "the running export: http://HOST:PORT, or http://HOST:PORT/v2/models/NAME; default: "
        "required without --measured and --job",
    )
    options.add_value(
        parser,
        "--admin",
        "URL",
        "its admin port, which tells all settings, with the token in LUTHIER_ADMIN_TOKEN; "
        "default: only what the inference port tells is compared",
    )
    options.add_value(
        parser,
        "--header",
        "'NAME: VALUE'",
        "header sent with every request; repeatable; default: none",
        action="append",
        default=[],
    )
    options.add_value(
        parser,
        "--measured",
        "FILE",
        "output of `tune load --json`, one line for each evaluation, instead of a load from here; "
        "default: load it from here",
        parse=pathlib.Path,
    )
    options.add_flag(
        parser,
        "--job",
        "print a Kubernetes Job that loads the export inside its cluster, and measure nothing; "
        "default: no",
    )
    told = "the exported trial (tune export --trial N); default: the recommendation"
    options.add_value(parser, "--trial", "N", told, parse=int)
    options.add_value(
        parser,
        "--repeats",
        "COUNT",
        "evaluations; default: as many as the study has of the configuration, at least 6",
        parse=_parse_count,
    )
    options.add_value(
        parser,
        "--margin",
        "SHARE",
        f"difference that still counts as the same, above 0 and below 1; default {MARGIN:g}",
        parse=_parse_share,
        default=MARGIN,
    )
    options.add_study(parser, "runs_dir", "storage")


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    folder, storage = options.find_study(arguments), getattr(arguments, "storage", None)
    if arguments.job:
        return _job(arguments)
    if arguments.url is None and arguments.measured is None:
        raise UsageError(
            "nothing to measure: give --url URL of the running export, or --measured FILE of loads "
            "that ran elsewhere"
        )
    if arguments.admin is not None and arguments.url is None:
        raise UsageError("--admin: needs --url URL, the server that it belongs to")
    spec = ConfirmationSpec(
        folder=folder,
        storage=storage,
        url=arguments.url,
        admin_url=arguments.admin,
        headers=dict(parse_header(text) for text in arguments.header),
        loads=arguments.measured,
        trial=arguments.trial,
        repeats=arguments.repeats,
        margin=arguments.margin,
    )
    found = confirmation.confirm(spec, terminal=terminal)
    settings = study_files.settings_of(folder)
    record = study_files.read(folder, study_files.store_of(folder, settings, url=storage), settings)
    report = report_files.write_study(record, folder.path / "report.html")
    return CommandResult(
        text=_text(found, report),
        data={"study": folder.name, "confirmation": finite(to_plain(found)), "report": str(report)},
        exit_code=EXIT_CODES[found.outcome],
    )


def _job(arguments: argparse.Namespace) -> CommandResult:
    for flag in ("measured", "admin"):
        if getattr(arguments, flag) is not None:
            raise UsageError(f"--{flag}: not allowed with --job, which measures nothing")
    found = confirmation.find(
        options.find_study(arguments),
        storage=getattr(arguments, "storage", None),
        trial=arguments.trial,
    )
    text = confirmation_job.manifest(
        found.record,
        found.settings.target,
        found.settings.measurement,
        url=arguments.url,
        repeats=arguments.repeats or found.repeats,
        seconds=max(one.seconds for one in found.measured),
    )
    return CommandResult(text=text.rstrip("\n"), data={"files": {"confirm.yaml": text}})


def _text(found: Confirmation, report: pathlib.Path) -> rich.console.RenderableType:
    lines = [rich.text.Text(found.text, style=STYLES.get(found.outcome, "yellow"))]
    if found.checked:
        lines.append(rich.text.Text(f"The same as in the study: {'; '.join(found.checked)}."))
    lines.append(rich.text.Text(f"Not checked: {'; '.join(found.unchecked)}."))
    lines.append(rich.text.Text(f"report  {report}"))
    return rich.console.Group(*lines)


def _parse_count(text: str) -> int:
    count = int(text)
    if count < MIN_EVALUATIONS:
        raise ValueError(f"{text!r}: expected a whole number from {MIN_EVALUATIONS}")
    return count


def _parse_share(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise ValueError(f"{text!r}: expected a share above 0 and below 1, as 0.1")
    return share
