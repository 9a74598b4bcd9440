"""`tune compare`: samplers under one total budget each, on one model."""

from __future__ import annotations

import argparse

import rich.console
import rich.text

from tuner import compare
from tuner.commands import options
from tuner.commands.said import Said
from tuner.commands.study import finite
from tuner.compare import Order
from tuner.errors import WrongUse
from tuner.progress import Terminal
from tuner.report import files as report_files
from tuner.report.lines import Copied


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of a study that make sense for several, and which samplers, how often."""
    options.add_group(parser, "target")
    group = options.add_group(parser, "search", only=["trials", "initial", "epsilon", "seed"])
    group.add_argument(
        "--samplers",
        required=True,
        metavar="NAMES",
        help="samplers to compare, with commas between them, for example random,gp",
    )
    group.add_argument(
        "--repeats",
        type=options.parsing(int),
        default=1,
        metavar="COUNT",
        help="searches of each sampler, each with a seed of its own; default 1",
    )
    options.add_group(parser, "measurement")
    options.add_group(parser, "store", only=["study", "runs_dir"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Compare, write the page, say what differs."""
    samplers = tuple(dict.fromkeys(filter(None, arguments.samplers.split(","))))
    if len(samplers) < 2:
        raise WrongUse(f"--samplers {arguments.samplers}: expected at least two, as random,gp")
    if arguments.repeats < 1:
        raise WrongUse(f"--repeats {arguments.repeats}: expected a whole number from 1")
    settings = options.settings_of(arguments)
    if settings.measurement.second is not None:
        raise WrongUse(
            f"--objective {settings.measurement.objective}: a comparison has one objective"
        )
    order = Order(settings=settings, samplers=samplers, repeats=arguments.repeats)
    record, folder = compare.compare(order, terminal=terminal)
    page = report_files.write_comparison(record, folder.path / "compare.html")
    sentences = [difference.text for difference in record.differences]
    sentences += [f"note: {note}" for note in record.notes]
    return Said(
        text=rich.console.Group(*map(rich.text.Text, sentences), Copied("report ", str(page))),
        data={
            **finite(record.as_json()),
            "files": {"report": str(page), "folder": str(folder.path)},
        },
    )
