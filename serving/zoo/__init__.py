"""Lookup of model specs: bundled models by name, a user's own by path.

Loads nothing and imports no runtime; the replica checks the file. Paths are absolute. A bundled
model is a folder here with a `model.yaml`:

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

A user's folder of that form is named by its path. Samples of a file `net.onnx` are
`net.samples.npz`.
"""

from __future__ import annotations

import datetime as dt
import importlib
import json
import pathlib
import re
import shutil
from collections.abc import Mapping
from typing import Any

from serving.error_text import nearest
from serving.errors import InvalidSettings, ModelLoadFailed, UnknownModel
from serving.model_spec import ModelSpec, Program, Variant
from serving.models import KINDS, ONLY_TRUSTED
from serving.system import private_folder
from serving.zoo import inputs, mlflow_folder, plain_yaml, recognition

FOLDER = pathlib.Path(__file__).resolve().parent
"""Folder of the bundled models."""
SPEC_FILE = "model.yaml"
MAX_SPEC_BYTES = 65_536
"""Of a `model.yaml`; bundled ones have about 200."""
SAMPLES_FILE = "samples.npz"
"""Real inputs in a model's folder; of a file `net.samples.npz`."""

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
"""Identify a folder of the kind tensorflow."""

_SAFE_NAME = re.compile(r"[A-Za-z0-9_-]+")
_MODULE_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_PYTHON_FILE_REFERENCE = re.compile(r"(?P<file>.+\.py):(?P<attribute>[A-Za-z_]\w*)")

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


def names() -> tuple[str, ...]:
    """Return the bundled models' names, sorted."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{SPEC_FILE}")))


def bundled_specs() -> tuple[ModelSpec, ...]:
    """Return the bundled specs without building weights.

    Models built on first use have no path here, but in `find`.
    """
    return tuple(_read_spec(FOLDER / name, name=None, builds=False) for name in names())


def check_cache() -> None:
    """Check a cache in the temporary directory, where anybody can create it.

    Raises:
        OSError: another user owns it or can write.
    """
    temporary = private_folder.temporary_cache()
    if private_folder.cache_folder().parent == temporary:
        private_folder.ensure(temporary, advice="set XDG_CACHE_HOME")


def built_folder(name: str) -> pathlib.Path:
    """Return the folder of a model built on first use."""
    return private_folder.cache_folder() / "zoo" / name


def build_weights(name: str) -> pathlib.Path:
    """Return a bundled model's weights, built if missing.

    Raises:
        ModelLoadFailed: they cannot be built.
    """
    build = importlib.import_module(f"{__name__}.{name}.build")
    try:
        check_cache()
        path: pathlib.Path = build.weights()
    except OSError as error:
        raise ModelLoadFailed(
            name,
            f"its weights cannot be kept in {built_folder(name)}: {error}; "
            "XDG_CACHE_HOME names another folder",
        ) from error
    return path


def find(
    name_or_path: str,
    *,
    name: str | None = None,
    kind: str | None = None,
    is_trusted: bool = False,
) -> ModelSpec:
    """Return the spec of a model.

    Args:
        name_or_path: a bundled model's name, which wins; a folder with a `model.yaml`; a model file
            (`recognition.SUFFIXES`); a SavedModel or MLflow folder; `path/to/file.py:Name` or
            `package.module:Name` (kind python); a program (kind command).
        name: to serve it under; default: its own or the file's stem.
        kind: if the path does not determine it.
        is_trusted: allows `ONLY_TRUSTED`; for the operator, never clients.

    Raises:
        UnknownModel: neither a path nor a bundled name.
        ModelLoadFailed: missing path, unknown kind, invalid `model.yaml`, or untrusted.
        InvalidSettings: `name` does not fit URLs and knobs, or `kind` is wrong.
    """
    if kind is not None and kind not in KINDS:
        raise InvalidSettings(
            f"kind {kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}"
        )
    try:
        card = _find(name_or_path, name, kind)
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, no home
        raise ModelLoadFailed(name_or_path, f"it cannot be read: {error}") from error
    if kind not in (None, card.kind):
        raise InvalidSettings(
            f"model {name_or_path} is of kind {card.kind}, not {kind}; leave the kind out"
        )
    check_trusted(card, is_trusted=is_trusted)
    return card


def check_trusted(card: ModelSpec, *, is_trusted: bool = False) -> None:
    """Reject an untrusted model that runs code from its files.

    Raises:
        ModelLoadFailed: it is one.
    """
    if card.kind not in ONLY_TRUSTED or is_trusted:
        return
    what = "a model of this kind"
    if card.path is not None and mlflow_folder.is_one(card.path):
        what = mlflow_folder.read(card.path).code
    raise ModelLoadFailed(
        card.label,
        f"to load it runs code from its files ({what}); where you trust whoever made them, name it on the "
        "command line of `python -m serving` or `tune`, and add --trust",
    )


def _find(name_or_path: str, name: str | None, wanted: str | None) -> ModelSpec:
    if name is not None and not _SAFE_NAME.fullmatch(name):
        raise InvalidSettings(
            f"model name {name!r}: expected letters, digits, _ and - only; try {_safe(name)!r}"
        )
    if name_or_path in names():
        return _read_spec(FOLDER / name_or_path, name=name)
    python_file = _PYTHON_FILE_REFERENCE.fullmatch(name_or_path)
    if python_file:
        file = _existing(python_file["file"])
        reference = file.with_name(f"{file.name}:{python_file['attribute']}")
        return _spec_of_path(reference, kind="python", name=name or _safe(file.stem))
    if _MODULE_REFERENCE.fullmatch(name_or_path):
        module = name_or_path.partition(":")[0]
        own_name = _safe(module.rpartition(".")[2])
        return _spec_of_path(pathlib.Path(name_or_path), kind="python", name=name or own_name)
    if _looks_like_a_name(name_or_path) and wanted != "command":
        raise UnknownModel(name_or_path, names())
    path = _existing(name_or_path)
    if path.is_dir():
        if not (path / SPEC_FILE).is_file() and mlflow_folder.is_one(path):
            found = mlflow_folder.read(path)
            return _folder_spec(path, found.kind, found.path, name=name)
        if not (path / SPEC_FILE).is_file() and _is_saved_model(path):
            return _folder_spec(path, "tensorflow", path, name=name)
        return _read_spec(path, name=name)
    if wanted == "command":
        program = _program([str(path)], path.parent, path)
        own_name = name or _safe(path.stem)
        return ModelSpec(name=own_name, version="1", kind=wanted, path=None, program=program)
    kind = wanted or recognition.file_kind(path)
    if kind is None and recognition.is_pickle(path):
        kind = "sklearn"  # which explains the conversion
    if kind is None:
        raise ModelLoadFailed(name_or_path, recognition.unrecognised_message(path, SPEC_FILE))
    if kind == "python":
        raise ModelLoadFailed(
            name_or_path, f"say which class or function of the file: {name_or_path}:Model"
        )
    return _spec_of_path(path, kind=kind, name=name or _safe(path.stem))


def _spec_of_path(path: pathlib.Path, *, kind: str, name: str) -> ModelSpec:
    """Return the spec of a user's file, with only its kind known."""
    file = path.with_name(path.name.partition(":")[0]) if kind == "python" else path
    sample = _if_there(file.with_name(f"{file.stem}.{SAMPLES_FILE}")) if file.is_file() else None
    return ModelSpec(name=name, version="1", kind=kind, path=path, sample=sample)


def is_samples(file: pathlib.Path) -> bool:
    """Whether the name is that of a sample file."""
    return file.name == SAMPLES_FILE or file.name.endswith(f".{SAMPLES_FILE}")


def _if_there(file: pathlib.Path) -> pathlib.Path | None:
    return file if file.is_file() else None


def _is_saved_model(folder: pathlib.Path) -> bool:
    return any((folder / file).is_file() for file in SAVED_MODEL_FILES)


def _folder_spec(
    folder: pathlib.Path, kind: str, path: pathlib.Path, *, name: str | None
) -> ModelSpec:
    """Return the spec of a framework's folder, such as a SavedModel.

    Version folders are named by number, below the model's.
    """
    is_version = folder.name.isdecimal()
    own_name = folder.parent.name if is_version else folder.name
    return ModelSpec(
        name=name or _safe(own_name),
        version=folder.name if is_version else "1",
        kind=kind,
        path=path,
        sample=_if_there(folder / SAMPLES_FILE),
    )


def _program(words: list[str], folder: pathlib.Path, where: pathlib.Path) -> Program:
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
            else f"there is no program {first}; build it first, or mend its name"
        )
        raise ModelLoadFailed(str(where), text)
    return Program((str(pathlib.Path(found).absolute()), *words[1:]), folder.absolute())


def _looks_like_a_name(text: str) -> bool:
    """Whether the user meant a bundled model, not a file."""
    return bool(_SAFE_NAME.fullmatch(text)) and not pathlib.Path(text).exists()


def _existing(text: str) -> pathlib.Path:
    """Return the absolute path of an existing file or folder."""
    path = pathlib.Path(text).expanduser().absolute()
    if not path.exists():
        raise ModelLoadFailed(
            text,
            f"there is no file {path}; give the path of a model file ({recognition.OFFERED}) "
            f"or a bundled model's name ({', '.join(names())})",
        )
    if not path.is_file() and not path.is_dir():
        raise ModelLoadFailed(text, f"{path} is neither a file nor a folder")
    return path


def _safe(text: str) -> str:
    """Return a name with dashes for other characters."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "model"


def _read_spec(folder: pathlib.Path, *, name: str | None, builds: bool = True) -> ModelSpec:
    """Read a folder's `model.yaml`; without `builds`, build no weights."""
    file = folder / SPEC_FILE
    if not file.is_file():
        raise ModelLoadFailed(
            str(folder),
            f"the folder has no {SPEC_FILE}, no {mlflow_folder.FILE} and no {SAVED_MODEL_FILES[0]}; name the "
            "model file instead",
        )
    card = _check_spec(plain_yaml.read(file, max_bytes=MAX_SPEC_BYTES, what="a card"), file)
    path = None
    if not card.get("built"):
        path = _beside(file, "file", card.get("file"))
    elif builds:
        path = _check_built(file)
    return ModelSpec(
        name=name or card["name"],
        version=str(card["version"]),
        kind=card["kind"],
        path=path,
        program=_program(card["command"], folder, file) if "command" in card else None,
        description=card.get("description", ""),
        sample=_beside(file, "sample", card.get("sample"))
        or _if_there(file.parent.absolute() / SAMPLES_FILE),
        quality=_plain(card.get("quality") or {}, file),
        shapes=inputs.shapes_of(card.get("shapes", {}), file),
        values=inputs.values_of(card.get("values", {}), file),
        item_axis=inputs.axes_of(card.get("item_axis", {}), file),
        shared=inputs.names_of(card.get("shared", []), file),
        pad=inputs.pads_of(card.get("pad", {}), file),
        variants=_variants(card.get("variants", {}), path, file),
    )


def _check_built(file: pathlib.Path) -> pathlib.Path:
    """Return the weights of a spec with `build_weights`.

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
    """Return a spec's variants.

    Raises:
        ModelLoadFailed: one is invalid, or none the default.
    """
    variants = {}
    for name, fields in given.items():
        where = f"variants.{name}"
        if not isinstance(name, str) or not _SAFE_NAME.fullmatch(name):
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
            str(file), "variants: none of them has the card's `file`, which is the default one"
        )
    return variants


def _plain(quality: Mapping[str, Any], file: pathlib.Path) -> dict[str, Any]:
    """Convert as a JSON record does: dates and keys become strings."""
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
    raise TypeError(f"{value!r:.100} is none of them")


def _check_spec(data: object, file: pathlib.Path) -> Mapping[str, Any]:
    """Validate the keys and types of a `model.yaml`."""
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
    if not _SAFE_NAME.fullmatch(data["name"]):
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
            str(file), "command: the kind command needs the program and its arguments, others none"
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
    python_file = _PYTHON_FILE_REFERENCE.fullmatch(str(path))
    file = pathlib.Path(python_file["file"]) if python_file else path
    if not file.is_file() and not _is_saved_model(file):
        raise ModelLoadFailed(str(card_file), f"{key}: there is no file {path}")
    return path
