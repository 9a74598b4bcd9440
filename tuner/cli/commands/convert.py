"""`tune convert`: bring a study of format 1 to the current names."""

from __future__ import annotations

import argparse
import pathlib

from tuner.cli.commands import options
from tuner.cli.result import CommandResult
from tuner.settings.store import StoreSettings
from tuner.store import conversion, run_folder
from tuner.study.progress import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("study_name", metavar="STUDY", help="name of the study, or its folder")
    options.add_group(parser, "store", only=["runs_dir"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:  # noqa: ARG001 - of all commands
    """Run the command."""
    where = options.group_of(arguments, StoreSettings)
    folder = run_folder.find(pathlib.Path(where.runs_dir), arguments.study_name)
    with folder.hold_lock():
        conversion.convert(folder)
    return CommandResult(
        text=f"{folder.path}: converted; `tune report` writes its page anew",
        data={"study": folder.name, "folder": str(folder.path)},
    )
