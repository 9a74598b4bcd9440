"""`tune export`: write a study's configuration in another system's format."""

from __future__ import annotations

import argparse
import pathlib
import shutil

from serving.model_spec import ModelSpec
from tuner import export
from tuner.cli.commands import CommandResult, options
from tuner.errors import UsageError
from tuner.export.export_input import Files
from tuner.store.run_folder import storage_errors
from tuner.study import problem, study_files
from tuner.study.interruption import resume_command
from tuner.study.progress import Terminal
from tuner.values.study_record import StudyRecord


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options."""
    told = f"format of the export: {', '.join(export.FORMATS)}; default serving"
    options.add_value(parser, "--to", "NAME", told, default="serving")
    told = "export the configuration of this trial; default: the recommendation"
    options.add_value(parser, "--trial", "N", told, parse=int)
    options.add_value(
        parser,
        "--out",
        "DIR",
        "folder for the files; required for formats of several files, as compose; "
        "default: print the single file",
        parse=pathlib.Path,
    )
    options.add_flag(parser, "--force", "overwrite existing files; default: refuse")
    options.add_study(parser, "runs_dir", "storage")


def run(arguments: argparse.Namespace, terminal: Terminal) -> CommandResult:
    """Run the command."""
    export.check(arguments.to)
    folder = options.find_study(arguments)
    settings = study_files.settings_of(folder)
    store = study_files.store_of(folder, settings, url=getattr(arguments, "storage", None))
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
        terminal.say(f"warning: {caution}", style="yellow")
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
