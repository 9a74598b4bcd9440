"""Reads MLflow's model folders: which of their files is served, and by which kind. MLflow itself is not needed.

In: a folder with a file `MLmodel`. Out: the kind and the file of the first flavor whose file a kind of its own can
load; where there is none, the kind mlflow and the folder, and what in it is code.
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
"""Of an `MLmodel`, which lists a signature's columns."""
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
"""Flavor -> kind, key of its file or folder, and where below that the model may be."""
_SUFFIXES = {".onnx": "onnx", ".skops": "sklearn", ".pt2": "torch"}
"""Suffix -> kind of a file whose content does not tell it."""
_SAVED_MODEL = "saved_model.pb"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What is served of a folder."""

    kind: str
    path: pathlib.Path
    code: str = ""
    """What runs code when it is loaded, for a message; empty where nothing does."""


def is_one(folder: pathlib.Path) -> bool:
    """Whether a folder is MLflow's."""
    return (folder / FILE).is_file()


def read(folder: pathlib.Path) -> Found:
    """What is served of a folder.

    Raises:
        ModelLoadFailed: its `MLmodel` is none.
    """
    given = flavors(folder)
    for path, kind in _files(folder, given):
        if _kind_of(path) == kind:
            return Found(kind=kind, path=path)
    return Found(kind=KIND, path=folder, code=_code(given))


def flavors(folder: pathlib.Path) -> Mapping[str, Mapping[str, Any]]:
    """The flavors of a folder by name.

    Raises:
        ModelLoadFailed: they cannot be read.
    """
    data = content(folder).get("flavors")
    if not isinstance(data, dict) or not all(isinstance(one, dict) for one in data.values()):
        raise ModelLoadFailed(str(folder / FILE), "expected `flavors`, a mapping of mappings")
    return data


def content(folder: pathlib.Path) -> Mapping[str, Any]:
    """All that is written in a folder's `MLmodel`.

    Raises:
        ModelLoadFailed: it is no mapping in YAML, or too large.
    """
    data = plain_yaml.read(folder / FILE, max_bytes=MAX_BYTES, what="MLflow's")
    if not isinstance(data, dict):
        raise ModelLoadFailed(str(folder / FILE), "expected a mapping, as MLflow writes it")
    return data


def _files(
    folder: pathlib.Path, given: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[pathlib.Path, str]]:
    """Files and folders that may be models, each with the kind that its flavor says."""
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
    """The kind of a file or folder that runs no code when it is loaded."""
    if (path / _SAVED_MODEL).is_file():
        return "tensorflow"
    if not path.is_file() or recognition.is_pickled(path):
        return None
    return recognition.kind_of(path) or _SUFFIXES.get(path.suffix)


def _code(given: Mapping[str, Mapping[str, Any]]) -> str:
    """What a model without a file of its own kind is made of."""
    for flavor, options in given.items():
        if flavor != "python_function":
            form = options.get("serialization_format", "a pickle or code")
            return f"its flavor {flavor}: {form}"
    module = given.get("python_function", {}).get("loader_module", "Python")
    return f"its flavor python_function: {module}"
