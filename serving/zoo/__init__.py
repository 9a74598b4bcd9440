"""Finds models: the bundled ones by name, a user's own by path.

In: a name or a path as the user wrote it. Out: a `ModelCard` with absolute paths. Nothing is loaded
and no runtime is imported; whether a file is what its suffix says is for the replica to find out.

A bundled model is a folder beside this file with a `model.yaml`:

    name: resnet              # letters, digits, _ and -: the name is part of URLs and of knobs
    version: "1"
    kind: onnx                # a key of serving.models.KINDS
    file: model.onnx          # optional, relative to the folder; of a SavedModel its folder
    command: [./container]    # for the kind command: a program in this folder or on the PATH, and arguments
    sample: ../samples.npz    # optional: real inputs, one array per input name, and `labels`;
                              # without it a file samples.npz of the folder
    description: one line     # optional
    quality: {...}            # optional: what was measured, for example dataset, metric, value, n
    variants:                 # optional: other weights for the same inputs and outputs, from which the setting
      small: {file: small.onnx, quality: {...}}   # model.variant chooses; one of them has the card's `file`
    built: true               # of a bundled model only: its weights are not here, `build.py` of the folder makes
                              # them on first use, in the user's cache

A user's own folder of that form can be named by its path, too. The samples of a single file `net.onnx` are
`net.samples.npz` beside it.
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

from serving import private_folder
from serving.errors import InvalidSettings, ModelLoadFailed, UnknownModel, nearest
from serving.models import KINDS, ONLY_TRUSTED
from serving.values import ModelCard, Program, Variant
from serving.zoo import inputs, mlflow_folder, plain_yaml, recognition

FOLDER = pathlib.Path(__file__).resolve().parent
"""Where the bundled models are."""
CARD_FILE = "model.yaml"
MAX_CARD_BYTES = 65_536
"""Of a `model.yaml`; those of the bundled models have some 200."""
SAMPLES_FILE = "samples.npz"
"""Real inputs of the model of a folder; beside a single file its name comes first: `net.samples.npz`."""

SAVED_MODEL_FILES = ("saved_model.pb", "saved_model.pbtxt")
"""A folder that holds one of these is a model of the kind tensorflow."""

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
    """Names of the bundled models, sorted."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{CARD_FILE}")))


def bundled() -> tuple[ModelCard, ...]:
    """The cards of the bundled models, by name; nothing is built for them.

    One whose weights are built where it is served has no path here; `find` gives it with one.
    """
    return tuple(_read_card(FOLDER / name, name=None, builds=False) for name in names())


def check_cache() -> None:
    """Check that the cache of a user without a home is his own: anybody can make a folder of that name.

    Raises:
        OSError: it is another user's, or others may write in it.
    """
    temporary = private_folder.temporary_cache()
    if private_folder.cache_folder().parent == temporary:
        private_folder.made(temporary, advice="set XDG_CACHE_HOME")


def built_folder(name: str) -> pathlib.Path:
    """Where the weights of a bundled model are that is built where it is served."""
    return private_folder.cache_folder() / "zoo" / name


def built(name: str) -> pathlib.Path:
    """The weights that a bundled model's own script makes where they are not there yet.

    Raises:
        ModelLoadFailed: they cannot be made.
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
) -> ModelCard:
    """The card of a model.

    Args:
        name_or_path: a bundled model's name; a folder with a `model.yaml`; a model file
            (`recognition.SUFFIXES`), the folder of a SavedModel or one of MLflow; for the kind python
            `path/to/file.py:Name` or `package.module:Name`; for the kind command a program.
            A bundled name wins over a file of that name.
        name: the name to serve it under, instead of its own or the file's stem.
        kind: the kind, where the path does not tell it.
        is_trusted: whether it may be of a kind of `ONLY_TRUSTED`. For whoever starts the server to say, never for
            a client of it.

    Raises:
        UnknownModel: it does not look like a path, and no bundled model has this name.
        ModelLoadFailed: the path does not exist, or its kind cannot be told, or its `model.yaml`
            is wrong, or it is not trusted.
        InvalidSettings: `name` has characters that URLs and knob names cannot have, or `kind` is
            not one or not that of the model.
    """
    if kind is not None and kind not in KINDS:
        raise InvalidSettings(
            f"kind {kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}"
        )
    try:
        card = _find(name_or_path, name, kind)
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, say, or nobody's home
        raise ModelLoadFailed(name_or_path, f"it cannot be read: {error}") from error
    if kind not in (None, card.kind):
        raise InvalidSettings(
            f"model {name_or_path} is of kind {card.kind}, not {kind}; leave the kind out"
        )
    check_trusted(card, is_trusted=is_trusted)
    return card


def check_trusted(card: ModelCard, *, is_trusted: bool = False) -> None:
    """Refuse a model that runs code from its files where nobody has said that they are trusted.

    Raises:
        ModelLoadFailed: it is such a model.
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


def _find(name_or_path: str, name: str | None, wanted: str | None) -> ModelCard:
    if name is not None and not _SAFE_NAME.fullmatch(name):
        raise InvalidSettings(
            f"model name {name!r}: expected letters, digits, _ and - only; try {_safe(name)!r}"
        )
    if name_or_path in names():
        return _read_card(FOLDER / name_or_path, name=name)
    python_file = _PYTHON_FILE_REFERENCE.fullmatch(name_or_path)
    if python_file:
        file = _existing(python_file["file"])
        reference = file.with_name(f"{file.name}:{python_file['attribute']}")
        return _card_of_path(reference, kind="python", name=name or _safe(file.stem))
    if _MODULE_REFERENCE.fullmatch(name_or_path):
        module = name_or_path.partition(":")[0]
        own_name = _safe(module.rpartition(".")[2])
        return _card_of_path(pathlib.Path(name_or_path), kind="python", name=name or own_name)
    if _looks_like_a_name(name_or_path) and wanted != "command":
        raise UnknownModel(name_or_path, names())
    path = _existing(name_or_path)
    if path.is_dir():
        if not (path / CARD_FILE).is_file() and mlflow_folder.is_one(path):
            found = mlflow_folder.read(path)
            return _folder_card(path, found.kind, found.path, name=name)
        if not (path / CARD_FILE).is_file() and _is_saved_model(path):
            return _folder_card(path, "tensorflow", path, name=name)
        return _read_card(path, name=name)
    if wanted == "command":
        program = _program([str(path)], path.parent, path)
        own_name = name or _safe(path.stem)
        return ModelCard(name=own_name, version="1", kind=wanted, path=None, program=program)
    kind = wanted or recognition.file_kind(path)
    if kind is None and recognition.is_pickle(path):
        kind = "sklearn"  # which says how to convert it
    if kind is None:
        raise ModelLoadFailed(name_or_path, recognition.missed(path, CARD_FILE))
    if kind == "python":
        raise ModelLoadFailed(
            name_or_path, f"say which class or function of the file: {name_or_path}:Model"
        )
    return _card_of_path(path, kind=kind, name=name or _safe(path.stem))


def _card_of_path(path: pathlib.Path, *, kind: str, name: str) -> ModelCard:
    """Card of a user's own file, which tells nothing beside its kind."""
    file = path.with_name(path.name.partition(":")[0]) if kind == "python" else path
    sample = _if_there(file.with_name(f"{file.stem}.{SAMPLES_FILE}")) if file.is_file() else None
    return ModelCard(name=name, version="1", kind=kind, path=path, sample=sample)


def is_samples(file: pathlib.Path) -> bool:
    """Whether a file holds a model's samples, by its name."""
    return file.name == SAMPLES_FILE or file.name.endswith(f".{SAMPLES_FILE}")


def _if_there(file: pathlib.Path) -> pathlib.Path | None:
    return file if file.is_file() else None


def _is_saved_model(folder: pathlib.Path) -> bool:
    return any((folder / file).is_file() for file in SAVED_MODEL_FILES)


def _folder_card(
    folder: pathlib.Path, kind: str, path: pathlib.Path, *, name: str | None
) -> ModelCard:
    """Card of a folder that a framework wrote, such as a SavedModel.

    Below a model's folder there is one folder per version, named by its number.
    """
    is_version = folder.name.isdecimal()
    own_name = folder.parent.name if is_version else folder.name
    return ModelCard(
        name=name or _safe(own_name),
        version=folder.name if is_version else "1",
        kind=kind,
        path=path,
        sample=_if_there(folder / SAMPLES_FILE),
    )


def _program(words: list[str], folder: pathlib.Path, where: pathlib.Path) -> Program:
    """A program of a folder, or one that is found on the PATH where its name has no slash.

    Raises:
        ModelLoadFailed: there is none, or it may not be executed.
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
    """Whether a user who wrote this meant a bundled model rather than a file."""
    return bool(_SAFE_NAME.fullmatch(text)) and not pathlib.Path(text).exists()


def _existing(text: str) -> pathlib.Path:
    """The absolute path, or an error that says where it was looked for."""
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
    """A name made of a file's stem: runs of other characters become one dash."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "model"


def _read_card(folder: pathlib.Path, *, name: str | None, builds: bool = True) -> ModelCard:
    """The card in a folder's `model.yaml`; without `builds` one without the weights that would be built."""
    file = folder / CARD_FILE
    if not file.is_file():
        raise ModelLoadFailed(
            str(folder),
            f"the folder has no {CARD_FILE}, no {mlflow_folder.FILE} and no {SAVED_MODEL_FILES[0]}; name the "
            "model file instead",
        )
    card = _checked(plain_yaml.read(file, max_bytes=MAX_CARD_BYTES, what="a card"), file)
    if not card.get("built"):
        path = _beside(file, "file", card.get("file"))
    else:
        path = _checked_built(file) if builds else None
    return ModelCard(
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


def _checked_built(file: pathlib.Path) -> pathlib.Path:
    """The weights of a card that says `built`.

    Raises:
        ModelLoadFailed: the folder is a user's, whose code is not run here, or they cannot be made.
    """
    if file.parent.parent != FOLDER:
        raise ModelLoadFailed(
            str(file), "built: for bundled models only; build it, and give `file`"
        )
    return built(file.parent.name)


def _variants(
    given: Mapping[Any, Any], path: pathlib.Path | None, file: pathlib.Path
) -> dict[str, Variant]:
    """The variants of a card, with their files found.

    Raises:
        ModelLoadFailed: one is not a mapping of `file` and `quality`, or none is the default one.
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
    """What was measured as it comes back from the record, which is JSON: dates are texts, and so are keys."""
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


def _checked(data: object, file: pathlib.Path) -> Mapping[str, Any]:
    """The mapping of a `model.yaml`, its keys and their types checked."""
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
    """A path written in a card, relative to it; for the kind python it may end in `:Name`."""
    if text is None:
        return None
    path = (card_file.parent.absolute() / text).resolve()
    python_file = _PYTHON_FILE_REFERENCE.fullmatch(str(path))
    file = pathlib.Path(python_file["file"]) if python_file else path
    if not file.is_file() and not _is_saved_model(file):
        raise ModelLoadFailed(str(card_file), f"{key}: there is no file {path}")
    return path
