"""A study's configuration in the words of other systems: one file per target, all pure.

In: `StudyRecord`, which of its configurations, and the card of its model. Out: file names and their
texts; the caller decides where they are written. Adding a target is one file and one line in
`TARGETS`.
"""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Mapping

from serving.errors import nearest
from serving.values import ModelCard
from tuner import advice
from tuner.advice import Advice
from tuner.errors import WrongUse
from tuner.export import (
    compose,
    container,
    kserve,
    kubernetes,
    other_engine,
    ray_serve,
    serving,
    tfserving,
    triton,
)
from tuner.export.subject import Files, Subject
from tuner.values import StudyRecord

Exporter = Callable[[Subject], Files]

OF_OTHER_ENGINE = "engine"
"""The one target of a study of another engine."""
OF_SCENARIO = "serving"
"""The one target of a study of a scenario."""
TARGETS: Mapping[str, Exporter] = types.MappingProxyType(
    {
        "serving": serving.files,
        "compose": compose.files,
        "kubernetes": kubernetes.files,
        "kserve": kserve.files,
        "triton": triton.files,
        "tfserving": tfserving.files,
        "ray": ray_serve.files,
        OF_OTHER_ENGINE: other_engine.files,
    }
)
"""`tune export STUDY --to NAME`."""
ONE_CONTAINER = frozenset({"compose", "kubernetes", "kserve"})
"""Targets that put the gateway and all replicas into one container."""
WITHOUT_MODEL = frozenset({"serving", OF_OTHER_ENGINE})
"""Targets that do not look at the model: they name it as the study did."""


def check(target: str) -> None:
    """Whether there is such a target.

    Raises:
        WrongUse: there is none.
    """
    if target not in TARGETS:
        raise WrongUse(
            f"export target {target!r} is not known{nearest(target, TARGETS)} "
            f"(targets: {', '.join(TARGETS)})"
        )


def check_engine(record: StudyRecord, target: str) -> None:
    """Whether a target can have what the study's engine is configured by.

    Raises:
        WrongUse: it is another engine than the serving core, or the serving core itself, or has many models.
    """
    if record.is_of_other_engine and target != OF_OTHER_ENGINE:
        raise WrongUse(
            f"study {record.name} tuned another engine ({record.engine}), whose configuration is "
            f"nothing for {target}: export it with --to {OF_OTHER_ENGINE}"
        )
    if record.scenario is not None and target != OF_SCENARIO:
        raise WrongUse(
            f"--to {target}: study {record.name} tuned many models that share replicas, which is luthier's alone: "
            f"export it with --to {OF_SCENARIO}"
        )
    if not record.is_of_other_engine and target == OF_OTHER_ENGINE:
        raise WrongUse(
            f"--to {OF_OTHER_ENGINE}: study {record.name} tuned the serving core; the targets are "
            f"{', '.join(name for name in TARGETS if name != OF_OTHER_ENGINE)}"
        )


def best_files(record: StudyRecord, found: Advice) -> Files:
    """What the study's folder gets: `best.yaml`, settings of a server or what another engine needs; and the script
    that deploys many models.
    """
    if record.is_of_other_engine:
        return {serving.FILE_NAME: other_engine.text(record, found)}
    return serving.of_study(record, found)


def export(
    record: StudyRecord,
    target: str,
    *,
    trial: int | None = None,
    out: pathlib.PurePath | None = None,
    card: ModelCard | None = None,
) -> Files:
    """The files of one target.

    Args:
        record: of the study.
        target: a key of `TARGETS`.
        trial: number of the trial whose configuration is exported; None: what the study advises.
        out: folder that the files are for; the commands in them name them by it.
        card: of the study's model, for all targets but those `WITHOUT_MODEL`.

    Raises:
        WrongUse: no such target, no such trial, no trial of the study was ok, or the target cannot
            express this model.
    """
    check(target)
    check_engine(record, target)
    place = (out or pathlib.PurePath()) / ("best" if trial is None else f"trial-{trial}")
    return TARGETS[target](
        Subject(record=record, advice=_advised(record, trial), place=place, card=card)
    )


def caution(record: StudyRecord, target: str, *, trial: int | None = None) -> str | None:
    """What makes that which a target runs another thing than what was measured; None where nothing does.

    Raises:
        WrongUse: as for `export`.
    """
    if target not in ONE_CONTAINER:
        return None
    subject = Subject(record=record, advice=_advised(record, trial), place=pathlib.PurePath())
    return container.caution(subject)


def _advised(record: StudyRecord, trial: int | None) -> Advice:
    found = advice.advised(record) if trial is None else advice.of_trial(record, trial)
    if found is None:
        raise WrongUse(
            f"study {record.name!r} has no configuration that works, so there is nothing to "
            f"export: `tune report {record.name}` shows why its trials failed"
        )
    return found
