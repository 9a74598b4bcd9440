"""A configuration of a study as settings of the serving core, for `python -m serving --settings`.

In: the subject. Out: YAML text with a comment head that says where it comes from and what was
measured. Knobs of the study that are not settings of the server stand in the head only.
"""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Iterator, Mapping

from serving.settings import KNOBS, ServerSettings
from tuner.advice import Advice
from tuner.export import head, yaml_text
from tuner.export.subject import Files, Knobs, Subject
from tuner.settings import serve_command
from tuner.values import Shared, StudyRecord, Value

FILE_NAME = "best.yaml"
ADMIN_PORT = ServerSettings().admin_port


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


def deployments(shared: Shared) -> Iterator[str]:
    """Commands that give a running server the models of a scenario, one for each group."""
    yield "Its models, once it runs:"
    for name, (model, copies) in shared.groups.items():
        body, end = json.dumps({"model": model, "name": f"{name}-"})[:-2], '"}'
        sent = f"{shlex.quote(body)}$i{shlex.quote(end)}"
        yield f"for i in $(seq 0 {copies - 1}); do curl -s -d {sent} http://127.0.0.1:{ADMIN_PORT}/admin/models; done"


def _text(subject: Subject, file: pathlib.PurePath) -> str:
    record = subject.record
    knobs = Knobs(subject.advice.configuration)
    settings = knobs.take_settings()
    if record.shared is not None:
        settings = {**record.shared.settings, **settings}
    if record.home != KNOBS["replica.home"].default:
        settings = {**settings, "replica.home": record.home}
    body = yaml_text.dump(nested(settings))
    told = head.lines(
        subject,
        "Settings",
        use=serve_command(record.served, file),
        knobs=knobs,
        reasons={},
        otherwise="not a setting of the server",
        remarks=[] if record.shared is None else deployments(record.shared),
    )
    return f"{head.comments(told)}\n{body}"
