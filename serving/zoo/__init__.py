"""Lookup of model specs: bundled models by name, a user's own by path.

Models are not loaded; the replica checks the file. Paths are absolute. A user's folder with a
`model.yaml` (`spec_file`) is named by its path. Samples for a file `net.onnx` are in
`net.samples.npz`.
"""

from __future__ import annotations

import pathlib
import re

from serving.error_text import nearest
from serving.errors import InvalidSettings, ModelLoadFailed, UnknownModel
from serving.model_spec import ModelSpec
from serving.models import KINDS, ONLY_TRUSTED
from serving.zoo import mlflow_folder, recognition
from serving.zoo.bundled import FOLDER, SPEC_FILE, names
from serving.zoo.spec_file import (
    PYTHON_FILE_REFERENCE,
    SAFE_NAME,
    SAMPLES_FILE,
    file_or_none,
    find_program,
    is_saved_model,
    read_spec,
)

_MODULE_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def bundled_specs() -> tuple[ModelSpec, ...]:
    """Return the bundled specs; models built on first use get a path only from `find`."""
    return tuple(read_spec(FOLDER / name, name=None, builds=False) for name in names())


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
        name: name to serve it under; default: its own or the file's stem.
        kind: model kind, if the path does not determine it.
        is_trusted: whether kinds in `ONLY_TRUSTED` are allowed; never on behalf of clients.

    Raises:
        UnknownModel: it is neither a path nor a bundled name.
        ModelLoadFailed: the path is missing, the kind unknown, `model.yaml` invalid, or the model
            untrusted.
        InvalidSettings: `name` does not fit URLs and knobs, or `kind` contradicts the model.
    """
    if kind is not None and kind not in KINDS:
        raise InvalidSettings(
            f"kind {kind!r} is not one of {', '.join(KINDS)}{nearest(kind, KINDS)}"
        )
    try:
        spec = _find(name_or_path, name, kind)
    except (OSError, ValueError, RuntimeError) as error:  # too long a name, no home
        raise ModelLoadFailed(name_or_path, f"it cannot be read: {error}") from error
    if kind not in (None, spec.kind):
        raise InvalidSettings(
            f"model {name_or_path} is of kind {spec.kind}, not {kind}; leave --kind out"
        )
    check_trusted(spec, is_trusted=is_trusted)
    return spec


def check_trusted(spec: ModelSpec, *, is_trusted: bool = False) -> None:
    """Raise ModelLoadFailed for an untrusted model that runs code from its files."""
    if spec.kind not in ONLY_TRUSTED or is_trusted:
        return
    what = "a model of this kind"
    if spec.path is not None and mlflow_folder.is_one(spec.path):
        what = mlflow_folder.read(spec.path).code
    raise ModelLoadFailed(
        spec.label,
        f"loading it runs code from its files ({what}); if you trust their author, name "
        "it on the command line of `python -m serving` or `tune`, and add --trust",
    )


def _find(name_or_path: str, name: str | None, wanted: str | None) -> ModelSpec:
    if name is not None and not SAFE_NAME.fullmatch(name):
        raise InvalidSettings(
            f"model name {name!r}: expected letters, digits, _ and - only; try {_safe(name)!r}"
        )
    if name_or_path in names():
        return read_spec(FOLDER / name_or_path, name=name)
    python_file = PYTHON_FILE_REFERENCE.fullmatch(name_or_path)
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
        if not (path / SPEC_FILE).is_file() and is_saved_model(path):
            return _folder_spec(path, "tensorflow", path, name=name)
        return read_spec(path, name=name)
    if wanted == "command":
        program = find_program([str(path)], path.parent, path)
        own_name = name or _safe(path.stem)
        return ModelSpec(name=own_name, version="1", kind=wanted, path=None, program=program)
    kind = wanted or recognition.file_kind(path)
    if kind is None and recognition.is_pickle(path):
        kind = "sklearn"  # which explains the conversion
    if kind is None:
        raise ModelLoadFailed(name_or_path, recognition.unrecognised_message(path, SPEC_FILE))
    if kind == "python":
        raise ModelLoadFailed(
            name_or_path, f"name the class or function of the file: {name_or_path}:Model"
        )
    return _spec_of_path(path, kind=kind, name=name or _safe(path.stem))


def _spec_of_path(path: pathlib.Path, *, kind: str, name: str) -> ModelSpec:
    file = path.with_name(path.name.partition(":")[0]) if kind == "python" else path
    sample = file_or_none(file.with_name(f"{file.stem}.{SAMPLES_FILE}")) if file.is_file() else None
    return ModelSpec(name=name, version="1", kind=kind, path=path, sample=sample)


def _folder_spec(
    folder: pathlib.Path, kind: str, path: pathlib.Path, *, name: str | None
) -> ModelSpec:
    is_version = folder.name.isdecimal()
    own_name = folder.parent.name if is_version else folder.name
    return ModelSpec(
        name=name or _safe(own_name),
        version=folder.name if is_version else "1",
        kind=kind,
        path=path,
        sample=file_or_none(folder / SAMPLES_FILE),
    )


def _looks_like_a_name(text: str) -> bool:
    return bool(SAFE_NAME.fullmatch(text)) and not pathlib.Path(text).exists()


def _existing(text: str) -> pathlib.Path:
    path = pathlib.Path(text).expanduser().absolute()
    if not path.exists():
        raise ModelLoadFailed(
            text,
            f"no file {path}; give the path of a model file ({recognition.OFFERED}) or a "
            f"bundled model's name ({', '.join(names())})",
        )
    if not path.is_file() and not path.is_dir():
        raise ModelLoadFailed(text, f"{path} is neither a file nor a folder")
    return path


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "-", text).strip("-") or "model"
