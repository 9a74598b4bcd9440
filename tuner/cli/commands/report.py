"""`tune report`: rewrite the reports of studies, finished or not, and print summaries."""

from __future__ import annotations

import argparse
import pathlib

import rich.console

from tuner.cli.commands import CommandResult, options
from tuner.cli.commands.study import as_json
from tuner.report import files as report_files
from tuner.report import terminal as end_of_study
from tuner.settings.store import StoreSettings
from tuner.store import run_folder
from tuner.study import study_files
from tuner.study.progress import Terminal


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("studies", metavar="STUDY", nargs="+", help="names or folders of studies")
    options.add_group(parser, "store", only=["runs_dir", "storage"])


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    del terminal  # a report has no progress
    where = options.group_of(arguments, StoreSettings)
    texts, data = [], []
    for name in arguments.studies:
        folder = run_folder.find(pathlib.Path(where.runs_dir), name)
        settings = study_files.settings_of(folder)
        store = study_files.store_of(folder, settings, url=where.storage)
        record = study_files.read(folder, store, settings)
        files = {"report": report_files.write_study(record, folder.path / "report.html")}
        texts.append(end_of_study.summary(record, files))
        data.append(as_json(record, files, stopped=study_files.stopped_of(folder)))
    return CommandResult(text=rich.console.Group(*texts), data={"studies": data})
