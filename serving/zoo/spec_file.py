"""Model specs in files: reads and checks a `model.yaml`.

name: resnet              # letters, digits, _ and -: part of URLs and knobs
version: "1"
kind: onnx                # a key of serving.models.KINDS
file: model.onnx          # optional, relative to the folder; for a SavedModel its folder
command: [./container]    # for the `command` kind: a program in this folder or on the PATH
sample: ../samples.npz    # optional: real inputs by name, and `labels`; default: samples.npz
description: one line     # optional
quality: {...}            # optional: measured dataset, metric, value, n
variants:                 # optional: other weights, selected by the setting model.variant;
  small: {file: small.onnx, quality: {...}}   # one variant has the spec's `file`
built: true               # bundled models only: `build.py` creates the weights in the user's cache
"""

from __future__ import annotations

import datetime as dt
import json
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

from serving.error_text import nearest
from serving.errors import InvalidSettings, ModelLoadFailed
from serving.model_spec import ModelSpec, Program, Variant
from serving.models import KINDS
from serving.tensors.sizes import sizes_of
from serving.zoo import mlflow_folder, plain_yaml
from serving.zoo.bundled import FOLDER, SPEC_FILE, build_weights

MAX_SPEC_BYTES = 65_536
SAMPLES_FILE = "samples.npz"
"""File of real inputs in a model's folder; next to `net.onnx`, it is `net.samples.npz`."""

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")

SAFE_NAME = re.compile(r"[A-Za-z0-9_-]+")
PYTHON_FILE_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<attribute>[A-Za-z_]\w*)")

_KEYS: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "version": (str, int),
    "kind": (str,),
    "file": (str, type(None)),
    "command": (list,),
    "sample": (str, type(None)),
    "description": (str,),
    "quality": (dict, type(None)),
    "variants": (dict,),
    "built": (bool,),
    "shapes": (dict,),
    "values": (dict,),
    "item_axis": (dict,),
    "shared": (list,),
    "pad": (dict,),
}
_REQUIRED = ("name", "version", "kind")


def is_samples(file: pathlib.Path) -> bool:
    """Whether a file's name is that of a samples file."""
    return file.name == SAMPLES_FILE or file.name.endswith(f".{SAMPLES_FILE}")


def file_or_none(file: pathlib.Path) -> pathlib.Path | None:
    """Return the file if it exists."""
    return file if file.is_file() else None


def is_saved_model(folder: pathlib.Path) -> bool:
    """Whether a folder holds a TensorFlow SavedModel."""
    return any((folder / file).is_file() for file in SAVED_MODEL_FILES)


def find_program(words: list[str], folder: pathlib.Path, where: pathlib.Path) -> Program:
    """Find a program in the folder, or on the PATH if its name has no slash.

    Raises:
        ModelLoadFailed: it is missing or not executable.
    """
    first = words[0]
    found = shutil.which(folder / first if "/" in first else first)
    if found is None:
        is_there = (folder / first).is_file()
        text = (
            f"{folder / first} is not executable; chmod +x makes it so"
            if is_there
            else f"no program {first}; build it first, or correct its name"
        )
        raise ModelLoadFailed(str(where), text)
    return Program((str(pathlib.Path(found).absolute()), *words[1:]), folder.absolute())


def read_spec(folder: pathlib.Path, *, name: str | None, builds: bool = True) -> ModelSpec:
    """Read a folder's `model.yaml`, building missing weights only if `builds`."""
    file = folder / SPEC_FILE
    names = f"{SPEC_FILE}, no {mlflow_folder.FILE} and no {SAVED_MODEL_FILES[0]}"
    text = f"the folder has no {names}; name the model file instead"
    _require(file.is_file(), folder, text)
    spec = _check_spec(plain_yaml.read(file, max_bytes=MAX_SPEC_BYTES, what="a card"), file)
    path = None
    if not spec.get("built"):
        path = _beside(file, "file", spec.get("file"))
    elif builds:
        is_bundled = file.parent.parent == FOLDER  # a user's code is not run
        _require(is_bundled, file, "built: for bundled models only; build it, and give `file`")
        path = build_weights(file.parent.name)
    return ModelSpec(
        name=name or spec["name"],
        version=str(spec["version"]),
        kind=spec["kind"],
        path=path,
        program=find_program(spec["command"], folder, file) if "command" in spec else None,
        description=spec.get("description", ""),
        sample=_beside(file, "sample", spec.get("sample"))
        or file_or_none(file.parent.absolute() / SAMPLES_FILE),
        quality=_plain(spec.get("quality") or {}, file),
        **_declared_inputs(spec, file),
        variants=_variants(spec.get("variants", {}), path, file),
    )


def _require(holds: bool, file: pathlib.Path, text: str) -> None:
    if not holds:
        raise ModelLoadFailed(str(file), text)


def _declared_inputs(spec: Mapping[str, Any], file: pathlib.Path) -> dict[str, Any]:
    shapes = []
    for name, sizes in spec.get("shapes", {}).items():
        each = sizes if isinstance(sizes, list) else [sizes]
        shapes.append(f"{name}={'x'.join(map(str, each))}")
    try:
        sizes_of(shapes, source="shapes:")
    except InvalidSettings as error:
        raise ModelLoadFailed(str(file), str(error)) from error
    values, axes, pads = (spec.get(key, {}) for key in ("values", "item_axis", "pad"))
    for name, value in values.items():
        is_value = isinstance(value, int | float | str) and not str(value).startswith("@")
        expected = "expected a number, a text or LOW..HIGH"
        _require(is_value, file, f"values: {name}: {expected}, given {value!r:.100}")
    for name, axis in axes.items():
        expected = f"expected the number of an axis from 0, given {axis!r}"
        _require(type(axis) is int and axis >= 0, file, f"item_axis: {name}: {expected}")
    for name, pad in pads.items():
        is_number = type(pad) in {int, float}
        _require(is_number, file, f"pad: {name}: expected a number, given {pad!r}")
    shared = spec.get("shared", [])
    is_names = all(isinstance(name, str) for name in shared)
    _require(is_names, file, f"shared: expected names of inputs, given {shared!r:.100}")
    return {
        "shapes": tuple(shapes),
        "values": tuple(f"{name}={value}" for name, value in values.items()),
        "item_axis": {str(name): axis for name, axis in axes.items()},
        "shared": tuple(shared),
        "pad": {str(name): float(pad) for name, pad in pads.items()},
    }


def _variants(
    given: Mapping[Any, Any], path: pathlib.Path | None, file: pathlib.Path
) -> dict[str, Variant]:
    variants = {}
    for name, fields in given.items():
        where = f"variants.{name}"
        is_name = isinstance(name, str) and SAFE_NAME.fullmatch(name) is not None
        expected = "expected a name of letters, digits, _ and -; quote numbers"
        _require(is_name, file, f"{where}: {expected}")
        has_keys = isinstance(fields, dict) and {"file"} <= fields.keys() <= {"file", "quality"}
        expected = "expected {file: FILE, quality: {...}}"
        _require(has_keys, file, f"{where}: {expected}, given {fields!r:.100}")
        text, quality = fields["file"], fields.get("quality") or {}
        are_types = isinstance(text, str) and isinstance(quality, dict)
        _require(are_types, file, f"{where}: expected a text as file and a mapping as quality")
        weights = _beside(file, f"{where}.file", text)
        assert weights is not None
        variants[name] = Variant(weights, _plain(quality, file))
    has_default = not variants or any(variant.path == path for variant in variants.values())
    expected = "none of them has the spec's `file`, which is the default one"
    _require(has_default, file, f"variants: {expected}")
    return variants


def _plain(quality: Mapping[str, Any], file: pathlib.Path) -> dict[str, Any]:
    try:
        plain: dict[str, Any] = json.loads(json.dumps(quality, default=_date, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ModelLoadFailed(
            str(file), f"quality: expected numbers, texts, lists and mappings ({error})"
        ) from error
    return plain


def _date(value: object) -> str:
    if isinstance(value, dt.date):
        return value.isoformat()
    raise TypeError(f"{value!r:.100} is not one of them")


def _check_spec(data: object, file: pathlib.Path) -> Mapping[str, Any]:
    known = ", ".join(_KEYS)
    if not isinstance(data, dict):
        raise ModelLoadFailed(str(file), f"expected a mapping with the keys {known}")
    for key, value in data.items():
        hint = nearest(str(key), _KEYS)
        _require(key in _KEYS, file, f"unknown key {key!r}{hint} (known: {known})")
        expected = " or ".join(kind.__name__ for kind in _KEYS[key] if kind is not type(None))
        is_kind = isinstance(value, _KEYS[key]) and (key == "built" or not isinstance(value, bool))
        _require(is_kind, file, f"{key}: expected {expected}, given {value!r}")
    missing = [key for key in _REQUIRED if key not in data]
    _require(not missing, file, f"missing key {', '.join(missing)}")
    name, kind = data["name"], data["kind"]
    expected = "expected letters, digits, _ and - only"
    _require(SAFE_NAME.fullmatch(name) is not None, file, f"name: {expected}, given {name!r}")
    expected = f"is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}"
    _require(kind in KINDS, file, f"kind: {kind!r} {expected}")
    is_command = (kind == "command") is ("command" in data)
    expected = "the kind command needs the program and its arguments, other kinds have none"
    _require(is_command, file, f"command: {expected}")
    words = data.get("command", ["-"])
    are_texts = bool(words) and all(isinstance(word, str) for word in words)
    _require(are_texts, file, f"command: expected a list of texts, given {words!r}")
    return data


def _beside(card_file: pathlib.Path, key: str, text: str | None) -> pathlib.Path | None:
    """Resolve a path in a spec; for the `python` kind it may end in `:Name`."""
    if text is None:
        return None
    path = (card_file.parent.absolute() / text).resolve()
    python_file = PYTHON_FILE_REFERENCE.fullmatch(str(path))
    file = pathlib.Path(python_file["file"]) if python_file else path
    if not file.is_file() and not is_saved_model(file):
        raise ModelLoadFailed(str(card_file), f"{key}: no file {path}")
    return path
