"""`tune convert`: convert a study in format 1 to the current names."""

from __future__ import annotations

import argparse

from tuner.cli.commands import CommandResult, options
from tuner.store import conversion
from tuner.study.progress import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_study(parser, "runs_dir")


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:  # noqa: ARG001 - of all commands
    """Run the command."""
    folder = options.find_study(arguments)
    with folder.hold_lock():
        conversion.convert(folder)
    return CommandResult(
        text=f"{folder.path}: converted; `tune report` writes its page anew",
        data={"study": folder.name, "folder": str(folder.path)},
    )
