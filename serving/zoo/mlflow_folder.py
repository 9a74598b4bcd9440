"""Reader of MLflow model folders: the file to serve and its kind, without MLflow.

Takes the first flavor with a kind of its own, or else the kind mlflow with a description of the
code that loading runs.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from serving.errors import ModelLoadFailed
from serving.zoo import plain_yaml, recognition

FILE = "MLmodel"
MAX_BYTES = 1024 * 1024
KIND = "mlflow"

_FLAVORS: Mapping[str, tuple[str, str, tuple[str, ...]]] = {
    "onnx": ("onnx", "data", ("", "model.onnx")),
    "xgboost": ("xgboost", "data", ("",)),
    "lightgbm": ("lightgbm", "data", ("",)),
    "catboost": ("catboost", "data", ("",)),
    "sklearn": ("sklearn", "pickled_model", ("",)),
    "pytorch": ("torch", "model_data", ("model.pt2", "model.pth", "")),
    "tensorflow": ("tensorflow", "saved_model_dir", ("",)),
    "keras": ("tensorflow", "data", ("model", "")),
}
"""Kind, key of the path, and possible places below it, by flavor."""
_SUFFIXES = {".onnx": "onnx", ".skops": "sklearn", ".pt2": "torch"}
_SAVED_MODEL = "saved_model.pb"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MlflowModel:
    """The part of an MLflow folder to serve."""

    kind: str
    path: pathlib.Path
    code: str = ""
    """Description of the code that loading runs, if any."""


def is_one(folder: pathlib.Path) -> bool:
    """Whether a folder is an MLflow model folder."""
    return (folder / FILE).is_file()


def read(folder: pathlib.Path) -> MlflowModel:
    """Return the part to serve of an MLflow model folder, or raise ModelLoadFailed."""
    given = flavors(folder)
    for path, kind in _files(folder, given):
        if _kind_of(path) == kind:
            return MlflowModel(kind=kind, path=path)
    return MlflowModel(kind=KIND, path=folder, code=_code(given))


def flavors(folder: pathlib.Path) -> Mapping[str, Mapping[str, Any]]:
    """Return a folder's flavors by name, or raise ModelLoadFailed."""
    data = content(folder).get("flavors")
    if not isinstance(data, dict) or not all(isinstance(one, dict) for one in data.values()):
        raise ModelLoadFailed(str(folder / FILE), "expected `flavors`, a mapping of mappings")
    return data


def content(folder: pathlib.Path) -> Mapping[str, Any]:
    """Return the content of a folder's `MLmodel`, or raise ModelLoadFailed."""
    data = plain_yaml.read(folder / FILE, max_bytes=MAX_BYTES, what="MLflow's")
    if not isinstance(data, dict):
        raise ModelLoadFailed(str(folder / FILE), "expected a mapping, as MLflow writes it")
    return data


def _files(
    folder: pathlib.Path, given: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[pathlib.Path, str]]:
    for flavor, (kind, key, places) in _FLAVORS.items():
        text = given.get(flavor, {}).get(key)
        if flavor == "tensorflow" and text is None:
            text = given.get(flavor, {}).get("data")
        if not isinstance(text, str):
            continue
        for place in (*places, "model") if flavor == "tensorflow" else places:
            path = (folder / text / place).resolve()
            if path.is_relative_to(folder.resolve()):
                yield path, kind


def _kind_of(path: pathlib.Path) -> str | None:
    if (path / _SAVED_MODEL).is_file():
        return "tensorflow"
    if not path.is_file() or recognition.is_pickled(path):
        return None
    return recognition.kind_of(path) or _SUFFIXES.get(path.suffix)


def _code(given: Mapping[str, Mapping[str, Any]]) -> str:
    for flavor, options in given.items():
        if flavor != "python_function":
            form = options.get("serialization_format", "a pickle or code")
            return f"its flavor {flavor}: {form}"
    module = given.get("python_function", {}).get("loader_module", "Python")
    return f"its flavor python_function: {module}"
