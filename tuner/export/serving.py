"""A configuration of a study as settings of the serving core, for `python -m serving --settings`.

In: the subject. Out: YAML text with a comment head that says where it comes from and what was
measured. Knobs of the study that are not settings of the server stand in the head only.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from serving.settings import KNOBS
from tuner.advice import Advice
from tuner.export import head, yaml_text
from tuner.export.subject import Files, Knobs, Subject
from tuner.settings import serve_command
from tuner.values import StudyRecord, Value

FILE_NAME = "best.yaml"


def files(subject: Subject) -> Files:
    """The one file of this target."""
    file = subject.place.with_name(f"{subject.place.name}.yaml")
    return {file.name: _text(subject, file)}


def settings_text(record: StudyRecord, advice: Advice) -> str:
    """Text of `best.yaml` in the study's folder; `serving.settings.resolve(file=...)` reads it as it is."""
    place = pathlib.PurePath(record.folder) / FILE_NAME
    subject = Subject(record=record, advice=advice, place=place.with_suffix(""))
    return _text(subject, place)


def nested(settings: Mapping[str, Value]) -> dict[str, dict[str, Value]]:
    """Settings by dotted name as one mapping per group, the form of a settings file."""
    tree: dict[str, dict[str, Value]] = {}
    for name, value in settings.items():
        group, field = name.split(".", 1)
        tree.setdefault(group, {})[field] = value
    return tree


def _text(subject: Subject, file: pathlib.PurePath) -> str:
    knobs = Knobs(subject.advice.configuration)
    settings = knobs.take_settings()
    if subject.record.home != KNOBS["replica.home"].default:
        settings = {**settings, "replica.home": subject.record.home}
    body = yaml_text.dump(nested(settings))
    told = head.lines(
        subject,
        "Settings",
        use=serve_command(subject.record.target, file),
        knobs=knobs,
        reasons={},
        otherwise="not a setting of the server",
    )
    return f"{head.comments(told)}\n{body}"
