"""Export as settings of Luthier's own server, for `python -m serving --settings`.

A scenario gets `deploy.sh` as well.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from serving.settings import SETTINGS
from tuner.advice import Advice
from tuner.export import deploy_script, provenance, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.settings.recommended_commands import serve_command
from tuner.values.configuration import Value
from tuner.values.study_record import StudyRecord

FILE_NAME = "best.yaml"


def files(subject: ExportInput) -> Files:
    """Settings, and a scenario's deploy script."""
    file = subject.place.with_name(f"{subject.place.name}.yaml")
    made: Files = {file.name: _text(subject, file)}
    record = subject.record
    if record.shared is not None:
        made[deploy_script.SCRIPT] = deploy_script.text(
            record.shared,
            subject.place.with_name(deploy_script.SCRIPT),
            study=record.name,
            server=serve_command(record.served_model, file, is_trusted=record.is_trusted),
        )
    return made


def of_study(record: StudyRecord, advice: Advice) -> Files:
    """The study folder's files; `serving.settings.sources.resolve` reads `best.yaml`."""
    place = pathlib.PurePath(record.folder) / FILE_NAME
    return files(ExportInput(record=record, advice=advice, place=place.with_suffix("")))


def group_settings(settings: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Nest settings by group, as in a settings file."""
    tree: dict[str, dict[str, Value]] = {}
    for name, value in settings.items():
        group, field = name.split(".", 1)
        tree.setdefault(group, {})[field] = value
    return tree


def _text(subject: ExportInput, file: pathlib.PurePath) -> str:
    record = subject.record
    knobs = Knobs(subject.advice.configuration)
    settings = knobs.take_settings()
    if record.shared is not None:
        settings = {**record.shared.settings, **settings}
    settings = {**settings, **record.told}
    if record.spawner != SETTINGS["replica.spawner"].default:
        settings = {**settings, "replica.spawner": record.spawner}
    body = yaml_text.dump(group_settings(settings))
    script = provenance.shell_quote(subject.place.with_name(deploy_script.SCRIPT))
    remarks = [] if record.shared is None else [f"Its models, once it runs: sh {script}"]
    told = provenance.lines(
        subject,
        "Settings",
        use=serve_command(record.served_model, file, is_trusted=record.is_trusted),
        knobs=knobs,
        reasons={},
        otherwise="not a setting of the server",
        remarks=remarks,
    )
    return f"{provenance.comments(told)}\n{body}"
