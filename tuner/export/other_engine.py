"""A configuration of a study of another engine: its knobs, and what they make of the engine file.

In: `StudyRecord`, and the `Advice` what to run. Out: YAML text: the knobs, and of an engine that the
tuner starts the command, the variables and the files with the knobs' values in their places. Places
that each launch fills anew, as `{port}`, stay. It feeds no program: it is what a person, or a script
of theirs, takes over.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import yaml

from tuner.advice import Advice, export_of_best, failures
from tuner.engines import file as engine_file
from tuner.engines import template
from tuner.engines.description import CommandEngine
from tuner.values import StudyRecord


def files(record: StudyRecord, advice: Advice, place: pathlib.PurePath) -> dict[str, str]:
    """The one file of this target."""
    return {f"{place.name}.yaml": text(record, advice)}


def text(record: StudyRecord, advice: Advice) -> str:
    """The text of `best.yaml`.

    Args:
        record: of the study.
        advice: what to run.
    """
    head = "\n".join(f"# {_one_line(line)}".rstrip() for line in _head(record, advice))
    content: dict[str, Any] = {"engine": record.engine, "knobs": dict(advice.configuration)}
    if record.engine_file is not None:
        # The space that was searched may have fewer knobs than the file: the others keep its values.
        path = pathlib.Path(str(record.settings["target"]["engine"]).partition(":")[2])
        content |= _filled(engine_file.parse(record.engine_file, path), advice)
    body = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    return f"{head}\n\n{body}"


def _filled(engine: CommandEngine, advice: Advice) -> dict[str, Any]:
    values = {**engine.defaults, **template.of_knobs(advice.configuration)}

    def put(text: str) -> str:
        return template.filled(text, values)

    found: dict[str, Any] = {"command": [put(word) for word in engine.command]}
    if engine.environment:
        found["environment"] = {name: put(value) for name, value in engine.environment.items()}
    if engine.files:
        found["files"] = {name: put(content) for name, content in engine.files.items()}
    return found


def _head(record: StudyRecord, advice: Advice) -> Iterator[str]:
    yield f"What to run for {record.model} at concurrency {record.concurrency}, by `tune`."
    yield f"Engine: {record.engine}"
    yield f"Study {record.name}: {len(record.trials)} trials, sampler {record.sampler}."
    yield ""
    yield advice.reason
    command = export_of_best(record)
    if command is not None and advice.configuration == record.default:
        yield f"The best that was found, to try all the same: {command}"
    if record.verdict is not None:
        yield f"Verdict: {record.verdict.text}"
    notes = (*failures(record), *record.notes)
    if notes:
        yield ""
        yield "Notes:"
        for note in notes:
            yield f"  {note}"


def _one_line(line: str) -> str:
    """Printable, on one line; leading spaces stay."""
    indent = len(line) - len(line.lstrip(" "))
    words = " ".join(line.split())
    return " " * indent + "".join(c if c.isprintable() else "?" for c in words)
