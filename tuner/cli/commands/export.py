"""`tune export`: a study's configuration in the form of another system."""

from __future__ import annotations

import argparse
import pathlib
import shutil

from serving.model_spec import ModelSpec
from tuner import export
from tuner.cli.commands import options
from tuner.cli.result import CommandResult
from tuner.errors import UsageError
from tuner.export.export_input import Files
from tuner.report import console_text
from tuner.settings.store import StoreSettings
from tuner.store import run_folder
from tuner.store.run_folder import storage_errors
from tuner.study import problem, study_files
from tuner.study.interruption import resume_command
from tuner.study.progress import Terminal
from tuner.values.study_record import StudyRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("study_name", metavar="STUDY", help="name of the study, or its folder")
    parser.add_argument(
        "--to",
        default="serving",
        metavar="NAME",
        help=f"format of the export: {', '.join(export.FORMATS)}; default serving",
    )
    parser.add_argument(
        "--trial",
        type=options.parsing(int),
        metavar="N",
        help="export the configuration of this trial; default: the recommendation",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=pathlib.Path,
        help="folder for the files; required for formats of several files, as compose; "
        "default: print the single file",
    )
    parser.add_argument(
        "--force", action="store_true", help="overwrite existing files; default: refuse"
    )
    options.add_group(parser, "store", only=["runs_dir", "storage"])
    options.add_json(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    export.check(arguments.to)
    where = options.group_of(arguments, StoreSettings)
    folder = run_folder.find(pathlib.Path(where.runs_dir), arguments.study_name)
    settings = study_files.settings_of(folder)
    store = study_files.store_of(folder, settings, url=where.storage)
    if arguments.trial is None and not study_files.is_finished(folder):
        raise UsageError(
            f"study {folder.name} is not finished and has no recommendation yet: resume "
            f"it with `{resume_command(folder)}`, or export one of its trials with "
            "--trial N"
        )
    record = study_files.read(folder, store, settings)
    export.check_engine(record, arguments.to)
    out = None if arguments.out is None else arguments.out.absolute()
    card = None if arguments.to in export.WITHOUT_MODEL else _find_spec(record, arguments.to)
    files = export.export(record, arguments.to, trial=arguments.trial, out=out, card=card)
    if arguments.out is None:
        said = _files_result(folder.name, arguments.to, files)
    else:
        written = _write_files(files, arguments.out, is_forced=arguments.force)
        said = CommandResult(
            text="\n".join(map(str, written)),
            data={"study": folder.name, "written": [str(path) for path in written]},
        )
    caution = export.caution(record, arguments.to, trial=arguments.trial)
    if caution is not None:
        console_text.write_line(terminal.console, f"warning: {caution}", style="yellow")
    return said


def _find_spec(record: StudyRecord, target: str) -> ModelSpec:
    try:
        return problem.find_spec(record.target, is_trusted=record.is_trusted)
    except UsageError as error:
        why = str(error).removeprefix("--model: ")
        raise UsageError(f"--to {target} needs the model of the study: {why}") from error


def _files_result(study: str, target: str, files: Files) -> CommandResult:
    if len(files) > 1:
        raise UsageError(
            f"--to {target} writes {len(files)} files ({', '.join(files)}); give a folder "
            "with --out DIR"
        )
    return CommandResult(
        text="".join(map(str, files.values())).rstrip("\n"), data={"study": study, "files": files}
    )


def _write_files(files: Files, out: pathlib.Path, *, is_forced: bool) -> list[pathlib.Path]:
    """Write all files or none; a failure leaves no new file."""
    paths = {out / name: content for name, content in files.items()}
    for path in paths:
        if path.exists() and not is_forced:
            raise UsageError(f"{path} exists: choose another --out, or overwrite it with --force")
    partials: dict[pathlib.Path, pathlib.Path] = {}
    with storage_errors(str(out), option="--out"):
        try:
            for path, content in paths.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                partial = path.with_name(path.name + ".partial")
                if isinstance(content, str):
                    partial.write_text(content, encoding="utf-8")
                    if path.suffix == ".sh":
                        partial.chmod(0o755)
                else:
                    shutil.copyfile(content, partial)
                partials[path] = partial
            for path, partial in partials.items():
                partial.replace(path)
        finally:
            for partial in partials.values():
                partial.unlink(missing_ok=True)
    return list(paths)
