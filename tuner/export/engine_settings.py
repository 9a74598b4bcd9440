"""Export for an engine other than Luthier: its knobs, and its engine file with these filled in."""

from __future__ import annotations

import shlex
from typing import Any

from tuner.engines import engine_lookup, template
from tuner.export import provenance, yaml_text
from tuner.export.export_input import ExportInput, Files, Knobs


def files(subject: ExportInput) -> Files:
    """Return the settings file of an export."""
    record, configuration = subject.record, subject.advice.configuration
    content: dict[str, Any] = {"engine": record.engine, "knobs": dict(configuration)}
    use = "give the knobs to the server as the hook did"
    if record.engine_file is not None:
        given = str(record.settings["target"]["engine"])
        engine = engine_lookup.engine_of(given, kept=record.engine_file)
        values = {**engine.defaults, **template.of_knobs(configuration)}
        values["folder"] = str(engine.file.parent)
        content["command"] = [template.fill(word, values) for word in engine.command]
        use = shlex.join(content["command"])
        for name, texts in (("environment", engine.environment), ("files", engine.files)):
            if texts:
                content[name] = {key: template.fill(text, values) for key, text in texts.items()}
    # No knob is left out: all are in the content.
    head = provenance.head(subject, "Command to run", use=use, knobs=Knobs({}))
    return {f"{subject.place.name}.yaml": head + yaml_text.dump(content)}
