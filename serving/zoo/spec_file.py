"""Model specs in files: reads and checks a `model.yaml`.

name: resnet              # letters, digits, _ and -: part of URLs and knobs
version: "1"
kind: onnx                # a key of serving.models.KINDS
file: model.onnx          # optional, relative to the folder; of a SavedModel its folder
command: [./container]    # for the kind command: a program in this folder or on the PATH
sample: ../samples.npz    # optional: real inputs by name, and `labels`; default: samples.npz
description: one line     # optional
quality: {...}            # optional: measured dataset, metric, value, n
variants:                 # optional: other weights, selected by the setting model.variant;
  small: {file: small.onnx, quality: {...}}   # one has the spec's `file`
built: true               # bundled only: `build.py` creates the weights in the user's cache
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
from serving.errors import ModelLoadFailed
from serving.model_spec import ModelSpec, Program, Variant
from serving.models import KINDS
from serving.zoo import inputs, mlflow_folder, plain_yaml
from serving.zoo.bundled import FOLDER, SPEC_FILE, build_weights

MAX_SPEC_BYTES = 65_536
SAMPLES_FILE = "samples.npz"
"""Real inputs in a model's folder; of a file `net.samples.npz`."""

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
    """Whether the name is that of a sample file."""
    return file.name == SAMPLES_FILE or file.name.endswith(f".{SAMPLES_FILE}")


def file_or_none(file: pathlib.Path) -> pathlib.Path | None:
    """The file if it exists."""
    return file if file.is_file() else None


def is_saved_model(folder: pathlib.Path) -> bool:
    """Whether the folder is of the kind tensorflow."""
    return any((folder / file).is_file() for file in SAVED_MODEL_FILES)


def find_program(words: list[str], folder: pathlib.Path, where: pathlib.Path) -> Program:
    """Find a program in the folder, or on the PATH if its name has no slash.

    Raises:
        ModelLoadFailed: missing or not executable.
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
    """Read a folder's `model.yaml`; without `builds`, build no weights."""
    file = folder / SPEC_FILE
    if not file.is_file():
        raise ModelLoadFailed(
            str(folder),
            f"the folder has no {SPEC_FILE}, no {mlflow_folder.FILE} and no {SAVED_MODEL_FILES[0]}; name the "
            "model file instead",
        )
    spec = _check_spec(plain_yaml.read(file, max_bytes=MAX_SPEC_BYTES, what="a card"), file)
    path = None
    if not spec.get("built"):
        path = _beside(file, "file", spec.get("file"))
    elif builds:
        path = _check_built(file)
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
        shapes=inputs.shapes_of(spec.get("shapes", {}), file),
        values=inputs.values_of(spec.get("values", {}), file),
        item_axis=inputs.axes_of(spec.get("item_axis", {}), file),
        shared=inputs.names_of(spec.get("shared", []), file),
        pad=inputs.pads_of(spec.get("pad", {}), file),
        variants=_variants(spec.get("variants", {}), path, file),
    )


def _check_built(file: pathlib.Path) -> pathlib.Path:
    """Weights of a spec with `build_weights`.

    Raises:
        ModelLoadFailed: the build fails, or is a user's, whose code is not run.
    """
    if file.parent.parent != FOLDER:
        raise ModelLoadFailed(
            str(file), "built: for bundled models only; build it, and give `file`"
        )
    return build_weights(file.parent.name)


def _variants(
    given: Mapping[Any, Any], path: pathlib.Path | None, file: pathlib.Path
) -> dict[str, Variant]:
    """Variants of a spec.

    Raises:
        ModelLoadFailed: one is invalid, or none the default.
    """
    variants = {}
    for name, fields in given.items():
        where = f"variants.{name}"
        if not isinstance(name, str) or not SAFE_NAME.fullmatch(name):
            raise ModelLoadFailed(
                str(file), f"{where}: expected a name of letters, digits, _ and -; quote numbers"
            )
        if not isinstance(fields, dict) or not {"file"} <= fields.keys() <= {"file", "quality"}:
            raise ModelLoadFailed(
                str(file),
                f"{where}: expected {{file: FILE, quality: {{...}}}}, given {fields!r:.100}",
            )
        text, quality = fields["file"], fields.get("quality") or {}
        if not isinstance(text, str) or not isinstance(quality, dict):
            raise ModelLoadFailed(
                str(file), f"{where}: expected a text as file and a mapping as quality"
            )
        weights = _beside(file, f"{where}.file", text)
        assert weights is not None
        variants[name] = Variant(weights, _plain(quality, file))
    if variants and all(variant.path != path for variant in variants.values()):
        raise ModelLoadFailed(
            str(file), "variants: none of them has the spec's `file`, which is the default one"
        )
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
    if not isinstance(data, dict):
        raise ModelLoadFailed(str(file), f"expected a mapping with the keys {', '.join(_KEYS)}")
    for key, value in data.items():
        if key not in _KEYS:
            hint = nearest(str(key), _KEYS)
            raise ModelLoadFailed(
                str(file), f"unknown key {key!r}{hint} (known: {', '.join(_KEYS)})"
            )
        if not isinstance(value, _KEYS[key]) or (isinstance(value, bool) and key != "built"):
            expected = " or ".join(kind.__name__ for kind in _KEYS[key] if kind is not type(None))
            raise ModelLoadFailed(str(file), f"{key}: expected {expected}, given {value!r}")
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise ModelLoadFailed(str(file), f"missing key {', '.join(missing)}")
    if not SAFE_NAME.fullmatch(data["name"]):
        raise ModelLoadFailed(
            str(file), f"name: expected letters, digits, _ and - only, given {data['name']!r}"
        )
    if data["kind"] not in KINDS:
        hint = nearest(data["kind"], KINDS)
        raise ModelLoadFailed(
            str(file), f"kind: {data['kind']!r} is not one of {', '.join(KINDS)}{hint}"
        )
    if (data["kind"] == "command") is not ("command" in data):
        raise ModelLoadFailed(
            str(file),
            "command: the kind command needs the program and its arguments, other kinds have none",
        )
    words = data.get("command", ["-"])
    if not words or not all(isinstance(word, str) for word in words):
        raise ModelLoadFailed(str(file), f"command: expected a list of texts, given {words!r}")
    return data


def _beside(card_file: pathlib.Path, key: str, text: str | None) -> pathlib.Path | None:
    """Resolve a path in a spec; for the kind python it may end in `:Name`."""
    if text is None:
        return None
    path = (card_file.parent.absolute() / text).resolve()
    python_file = PYTHON_FILE_REFERENCE.fullmatch(str(path))
    file = pathlib.Path(python_file["file"]) if python_file else path
    if not file.is_file() and not is_saved_model(file):
        raise ModelLoadFailed(str(card_file), f"{key}: no file {path}")
    return path
