"""`tune resume`: continue an interrupted study."""

from __future__ import annotations

import argparse
import pathlib

from tuner.cli.commands import options
from tuner.cli.commands.study import make_result
from tuner.cli.result import CommandResult
from tuner.settings.store import StoreSettings
from tuner.store import run_folder
from tuner.study import study
from tuner.study.progress import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("study_name", metavar="STUDY", help="name of the study, or its folder")
    options.add_group(parser, "store", only=["runs_dir", "storage"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    where = options.group_of(arguments, StoreSettings)
    folder = run_folder.find(pathlib.Path(where.runs_dir), arguments.study_name)
    return make_result(study.resume(folder, storage=where.storage, terminal=terminal))
