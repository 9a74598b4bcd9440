"""A study's configuration in the words of other systems: one file per target, all pure.

In: `StudyRecord`, and which of its configurations. Out: file names and their texts; the caller
decides where they are written. Adding a target is one file and one line in `TARGETS`.
"""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Mapping

from serving.errors import nearest
from tuner import advice
from tuner.advice import Advice
from tuner.errors import WrongUse
from tuner.export import other_engine, serving
from tuner.values import StudyRecord

Exporter = Callable[[StudyRecord, Advice, pathlib.PurePath], dict[str, str]]
"""Given the place of the files without a suffix: file name -> text."""

OF_OTHER_ENGINE = "engine"
"""The one target of a study of another engine."""
TARGETS: Mapping[str, Exporter] = types.MappingProxyType(
    {"serving": serving.files, OF_OTHER_ENGINE: other_engine.files}
)
"""`tune export STUDY --to NAME`."""


def best_text(record: StudyRecord, found: Advice) -> str:
    """Text of `best.yaml` in the study's folder: settings of a server, or what another engine needs."""
    if record.is_of_other_engine:
        return other_engine.text(record, found)
    return serving.settings_text(record, found)


def export(
    record: StudyRecord,
    target: str,
    *,
    trial: int | None = None,
    out: pathlib.PurePath | None = None,
) -> dict[str, str]:
    """The files of one target, file name -> text.

    Args:
        record: of the study.
        target: a key of `TARGETS`.
        trial: number of the trial whose configuration is exported; None: what the study advises.
        out: folder that the files are for; the commands in them name them by it.

    Raises:
        WrongUse: no such target, no such trial, or no trial of the study was ok.
    """
    if target not in TARGETS:
        raise WrongUse(
            f"export target {target!r} is not known{nearest(target, TARGETS)} "
            f"(targets: {', '.join(TARGETS)})"
        )
    if record.is_of_other_engine != (target == OF_OTHER_ENGINE):
        raise WrongUse(
            f"study {record.name} tuned another engine ({record.engine}), whose configuration is none "
            f"of {target}: export it with --to {OF_OTHER_ENGINE}"
            if record.is_of_other_engine
            else f"--to {OF_OTHER_ENGINE}: study {record.name} tuned no other engine than the serving core"
        )
    found = advice.advised(record) if trial is None else advice.of_trial(record, trial)
    if found is None:
        raise WrongUse(
            f"study {record.name!r} has no configuration that works, so there is nothing to "
            f"export: `tune report {record.name}` shows why its trials failed"
        )
    place = (out or pathlib.PurePath()) / ("best" if trial is None else f"trial-{trial}")
    return TARGETS[target](record, found, place)
