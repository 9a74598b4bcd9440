"""Export of another engine's configuration: its knobs, and its engine file filled in.

Placeholders of each start, such as `{port}`, stay.
"""

from __future__ import annotations

import pathlib
import shlex
from typing import Any

from tuner.advice import Advice
from tuner.engines import engine_lookup, template
from tuner.engines.description import CommandEngine
from tuner.export import provenance, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs
from tuner.values.configuration import Configuration
from tuner.values.study_record import StudyRecord

FOR_HOOK = "give the knobs to the server as the hook did"


def files(subject: ExportInput) -> Files:
    """Return the settings file of an export."""
    return {f"{subject.place.name}.yaml": _text(subject)}


def text(record: StudyRecord, advice: Advice) -> str:
    """Text of the study folder's `best.yaml`."""
    place = pathlib.PurePath(record.folder) / "best"
    return _text(ExportInput(record=record, advice=advice, place=place))


def _text(subject: ExportInput) -> str:
    record, configuration = subject.record, subject.advice.configuration
    content: dict[str, Any] = {"engine": record.engine, "knobs": dict(configuration)}
    use = FOR_HOOK
    if record.engine_file is not None:
        given = str(record.settings["target"]["engine"])
        engine = engine_lookup.engine_of(given, kept=record.engine_file)
        content |= _fill_templates(engine, configuration)
        use = shlex.join(content["command"])
    told = provenance.lines(
        subject,
        "Command to run",
        use=use,
        knobs=Knobs({}),  # all are below
        reasons={},
        otherwise="",
    )
    return f"{provenance.comments(told)}\n{yaml_text.dump(content)}"


def _fill_templates(engine: CommandEngine, configuration: Configuration) -> dict[str, Any]:
    values = {
        **engine.defaults,
        **template.of_knobs(configuration),
        "folder": str(engine.file.parent),
    }

    def put(text: str) -> str:
        return template.fill(text, values)

    found: dict[str, Any] = {"command": [put(word) for word in engine.command]}
    if engine.environment:
        found["environment"] = {name: put(value) for name, value in engine.environment.items()}
    if engine.files:
        found["files"] = {name: put(content) for name, content in engine.files.items()}
    return found
