"""Exports of a study's configuration to other systems, one pure module per format.

An exporter returns file names and their contents; the caller writes the files.
"""

from __future__ import annotations

import pathlib
import types
from collections.abc import Callable, Mapping

from serving.error_text import nearest
from serving.model_spec import ModelSpec
from tuner import advice
from tuner.advice import Advice
from tuner.errors import UsageError
from tuner.export import (
    compose,
    container,
    engine_settings,
    kserve,
    kuberay,
    kubernetes,
    ray_serve,
    serving,
    tfserving,
    triton,
)
from tuner.export.export_input import ExportInput, Files
from tuner.values.study_record import StudyRecord

OF_OTHER_ENGINE = "engine"
OF_SCENARIO = "serving"
FORMATS: Mapping[str, Callable[[ExportInput], Files]] = types.MappingProxyType(
    {
        "serving": serving.files,
        "compose": compose.files,
        "kubernetes": kubernetes.files,
        "kserve": kserve.files,
        "kuberay": kuberay.files,
        "triton": triton.files,
        "tfserving": tfserving.files,
        "ray": ray_serve.files,
        OF_OTHER_ENGINE: engine_settings.files,
    }
)
ONE_CONTAINER = frozenset({"compose", "kubernetes", "kserve"})
WITHOUT_MODEL = frozenset({"serving", OF_OTHER_ENGINE})


def check(target: str) -> None:
    """Raise UsageError unless `target` is an export format."""
    if target not in FORMATS:
        raise UsageError(
            f"export target {target!r} is not known{nearest(target, FORMATS)} "
            f"(targets: {', '.join(FORMATS)})"
        )


def check_engine(record: StudyRecord, target: str) -> None:
    """Raise UsageError if the format does not suit the study's engine or scenario."""
    if record.is_of_other_engine and target != OF_OTHER_ENGINE:
        raise UsageError(
            f"study {record.name} tuned another engine ({record.engine}), whose "
            f"configuration cannot be exported for {target}: use --to {OF_OTHER_ENGINE}"
        )
    if record.scenario is not None and target != OF_SCENARIO:
        raise UsageError(
            f"--to {target}: study {record.name} tuned many models on shared replicas, "
            f"which only Luthier serves: use --to {OF_SCENARIO}"
        )
    if not record.is_of_other_engine and target == OF_OTHER_ENGINE:
        raise UsageError(
            f"--to {OF_OTHER_ENGINE}: study {record.name} tuned Luthier itself; choose "
            f"one of {', '.join(name for name in FORMATS if name != OF_OTHER_ENGINE)}"
        )


def best_files(record: StudyRecord, found: Advice) -> Files:
    """Return `best.yaml` of a study folder, and for a scenario `deploy.sh`."""
    place = pathlib.PurePath(record.folder) / "best"
    make = engine_settings.files if record.is_of_other_engine else serving.files
    return make(ExportInput(record=record, advice=found, place=place))


def export(
    record: StudyRecord,
    target: str,
    *,
    trial: int | None = None,
    out: pathlib.PurePath | None = None,
    card: ModelSpec | None = None,
) -> Files:
    """Return the files of one export.

    Args:
        target: a key of `FORMATS`.
        trial: number of the trial; None exports the recommended configuration.
        out: future folder of the files, for the commands in them.
        card: model spec; optional for formats in `WITHOUT_MODEL`.

    Raises:
        UsageError: the format or trial is unknown, no trial succeeded, or the model is unsupported.
    """
    check(target)
    check_engine(record, target)
    place = (out or pathlib.PurePath()) / ("best" if trial is None else f"trial-{trial}")
    found = _require_advice(record, trial)
    return FORMATS[target](ExportInput(record=record, advice=found, place=place, card=card))


def caution(record: StudyRecord, target: str, *, trial: int | None = None) -> str | None:
    """Return a warning if the setup differs from the measured one; raises as `export` does."""
    found = _require_advice(record, trial)
    if target == "kuberay":
        return kuberay.caution()
    if target in ONE_CONTAINER:
        return container.caution(record, found.configuration)
    return None


def _require_advice(record: StudyRecord, trial: int | None) -> Advice:
    found = advice.advise(record) if trial is None else advice.of_trial(record, trial)
    if found is None:
        raise UsageError(
            f"study {record.name!r} has no configuration that works, so there is nothing "
            f"to export; `tune report {record.name}` shows why its trials failed"
        )
    return found
