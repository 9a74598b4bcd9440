"""Folders in a model repository: what a scan finds, and what must be loaded or retired.

DIR/resnet/1/model.onnx
DIR/resnet/2/model.onnx        the highest number is current
DIR/resnet/2/samples.npz       real inputs for the warm-up
DIR/reviews/7/model.yaml       a folder with a model spec (`zoo.spec_file`)
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from serving import zoo
from serving.errors import InvalidSettings, ModelLoadFailed
from serving.model_spec import ModelSpec
from serving.values import ModelId
from serving.zoo import bundled, mlflow_folder, recognition, spec_file

NUMBER = re.compile(r"[0-9]{1,18}")

Stamp = tuple[tuple[str, int, int], ...]
"""A version's files, each as path, size in bytes and modification time in ns."""


class VersionFolder(NamedTuple):
    """A version's folder and files."""

    path: pathlib.Path
    stamp: Stamp


class ReconcileActions(NamedTuple):
    """Versions to load after a scan, and then versions to retire."""

    load: tuple[ModelId, ...]
    gone: tuple[ModelId, ...]


def scan(root: pathlib.Path) -> dict[ModelId, VersionFolder]:
    """Return the versions in a model repository.

    Raises:
        InvalidSettings: the folder is unreadable.
    """
    found: dict[ModelId, VersionFolder] = {}
    try:
        names = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    except OSError as error:
        raise InvalidSettings(
            f"model repository {root}: {error.strerror or error}; give a folder with one "
            "folder per model"
        ) from error
    for name in names:
        try:
            versions = [entry.name for entry in os.scandir(root / name) if entry.is_dir()]
        except OSError:  # it disappeared meanwhile
            continue
        for version in versions:
            if NUMBER.fullmatch(version):
                path = root / name / version
                found[ModelId(name, version)] = VersionFolder(path, _stamp(path))
    return found


def newest(versions: Sequence[str], count: int) -> list[str]:
    """Return the `count` highest version numbers, the highest last."""
    return sorted(versions, key=int)[-count:]


def plan_actions(
    found: Mapping[ModelId, VersionFolder],
    before: Mapping[ModelId, VersionFolder],
    tried: Mapping[ModelId, Stamp],
) -> ReconcileActions:
    """Decide what to do after a scan; `tried` maps versions to their files when last tried."""
    load = [
        id_
        for id_, what in found.items()
        if what.stamp
        and tried.get(id_) != what.stamp
        and id_ in before
        and before[id_].stamp == what.stamp
    ]
    load.sort(key=lambda id_: (id_.name, int(id_.version)))
    return ReconcileActions(tuple(load), tuple(id_ for id_ in tried if id_ not in found))


def find_spec(path: pathlib.Path, id_: ModelId) -> ModelSpec:
    """Return the model spec of a version's folder.

    Raises:
        ServingError: the folder is unreadable, or does not hold exactly one model.
    """
    try:
        return _read_spec(path, id_)
    except (OSError, ValueError, RecursionError) as error:  # gone, or an impossible name
        raise ModelLoadFailed(str(path), f"the version's folder cannot be read: {error}") from error


def _read_spec(path: pathlib.Path, id_: ModelId) -> ModelSpec:
    if (path / bundled.SPEC_FILE).is_file() or mlflow_folder.is_one(path):
        spec = zoo.find(str(path), name=id_.name)
    else:
        files = [
            file
            for file in sorted(path.iterdir())
            if recognition.file_kind(file) is not None and not spec_file.is_samples(file)
        ]
        if len(files) != 1:
            listed = ", ".join(file.name for file in files) or "none"
            raise ModelLoadFailed(
                str(path),
                f"expected one model file or a {bundled.SPEC_FILE} in the version's folder, found {listed}",
            )
        text = str(files[0])
        spec = zoo.find(f"{text}:Model" if files[0].suffix == ".py" else text, name=id_.name)
    samples = path / spec_file.SAMPLES_FILE
    if spec.sample is None and samples.is_file():
        spec = dataclasses.replace(spec, sample=samples.absolute())
    return dataclasses.replace(spec, version=id_.version)


def _stamp(folder: pathlib.Path) -> Stamp:
    files: list[tuple[str, int, int]] = []
    try:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                status = path.stat()
                files.append((str(path.relative_to(folder)), status.st_size, status.st_mtime_ns))
    except OSError:
        return ()
    return tuple(files)
