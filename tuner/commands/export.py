"""`tune export`: the configuration to run, in the form of another system."""

from __future__ import annotations

import argparse
import pathlib

from tuner import study_files
from tuner.commands import options
from tuner.commands.said import Said
from tuner.errors import WrongUse
from tuner.export import TARGETS, export
from tuner.interruption import resume_command
from tuner.progress import Terminal
from tuner.settings import StoreSettings
from tuner.store import run_folder
from tuner.store.run_folder import storage_errors


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The study, the form, and where to."""
    parser.add_argument("study_name", metavar="STUDY", help="name of the study, or its folder")
    parser.add_argument(
        "--to",
        default="serving",
        metavar="NAME",
        help=f"form of the export: {', '.join(TARGETS)}; default serving",
    )
    parser.add_argument(
        "--trial",
        type=options.parsing(int),
        metavar="N",
        help="export the configuration of this trial; default: what the study recommends",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=pathlib.Path,
        help="folder for the files, best.yaml or trial-N.yaml; default: they are printed",
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite files of the same names; default: refuse"
    )
    options.add_group(parser, "store", only=["runs_dir", "storage"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> Said:
    """Write or print the files of one target."""
    del terminal  # an export has no progress
    where = options.group_of(arguments, StoreSettings)
    folder = run_folder.find(pathlib.Path(where.runs_dir), arguments.study_name)
    settings = study_files.settings_of(folder)
    store = study_files.store_of(folder, settings, url=where.storage)
    if arguments.trial is None and not study_files.is_finished(folder):
        raise WrongUse(
            f"study {folder.name} is not finished, so it recommends nothing yet: go on with "
            f"`{resume_command(folder)}`, or export one of its trials with --trial N"
        )
    record = study_files.read(folder, store, settings)
    out = None if arguments.out is None else arguments.out.absolute()
    files = export(record, arguments.to, trial=arguments.trial, out=out)
    if arguments.out is None:
        return Said(
            text="\n".join(files.values()).rstrip("\n"), data={"study": folder.name, "files": files}
        )
    written = _written(files, arguments.out, is_forced=arguments.force)
    return Said(
        text="\n".join(map(str, written)),
        data={"study": folder.name, "written": [str(path) for path in written]},
    )


def _written(files: dict[str, str], out: pathlib.Path, *, is_forced: bool) -> list[pathlib.Path]:
    paths = {out / name: text for name, text in files.items()}
    for path in paths:
        if path.exists() and not is_forced:
            raise WrongUse(f"{path} exists: choose another --out, or overwrite it with --force")
    with storage_errors(str(out), option="--out"):
        out.mkdir(parents=True, exist_ok=True)
        for path, text in paths.items():
            partial = path.with_name(path.name + ".partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
    return list(paths)
