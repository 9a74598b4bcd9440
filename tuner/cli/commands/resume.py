"""`tune resume`: continue an interrupted study."""

from __future__ import annotations

import argparse

from tuner.cli.commands import CommandResult, options
from tuner.cli.commands.study import make_result
from tuner.study import study
from tuner.study.progress import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    options.add_study(parser, "runs_dir", "storage")


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    folder, storage = options.find_study(arguments), getattr(arguments, "storage", None)
    return make_result(study.resume(folder, storage=storage, terminal=terminal))
