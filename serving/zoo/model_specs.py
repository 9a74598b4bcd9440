"""JSON form of model specs, to find the files after a restart.

Bundled files are relative to the zoo, or named by the model if built on first use. Other paths are
absolute.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from serving.errors import ModelLoadFailed
from serving.model_spec import ModelSpec, Program, Variant
from serving.zoo import check_trusted
from serving.zoo.bundled import FOLDER, build_weights, built_folder

_BUNDLED = "zoo:"
_BUILT = "built:"
_ALWAYS = ("name", "version", "kind", "path", "program", "description", "sample", "quality")


def as_json(spec: ModelSpec) -> dict[str, Any]:
    """Return a spec as JSON, without empty fields so that it equals older records."""
    data = {field.name: _plain(getattr(spec, field.name)) for field in dataclasses.fields(spec)}
    return {name: value for name, value in data.items() if value or name in _ALWAYS}


def from_json(data: Mapping[str, Any], *, is_trusted: bool = False) -> ModelSpec:
    """Return the spec that `as_json` wrote; `is_trusted` as in `zoo.find`.

    Raises:
        ModelLoadFailed: the data is invalid, or the model is allowed only on the command line.
    """
    try:
        program = data["program"]
        if program is not None:
            program = Program(tuple(program["words"]), _place(program["folder"]))
        more: dict[str, Any] = {"program": program}
        for name in ("path", "sample"):
            more[name] = None if data[name] is None else _place(data[name])
        for name in ("shapes", "values", "shared"):
            more[name] = tuple(data.get(name, ()))
        for name in ("item_axis", "pad"):
            more[name] = dict(data.get(name, {}))
        more["variants"] = {
            name: Variant(_place(variant["path"]), variant["quality"])
            for name, variant in data.get("variants", {}).items()
        }
        known = {field.name for field in dataclasses.fields(ModelSpec)}
        spec = ModelSpec(**{name: data[name] for name in data.keys() & known} | more)
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelLoadFailed(str(data)[:200], f"its card cannot be read: {error!r}") from error
    check_trusted(spec, is_trusted=is_trusted)  # trust is not saved
    return spec


def _plain(value: Any) -> Any:
    if isinstance(value, pathlib.Path):
        return _path_text(value)
    if isinstance(value, Program | Variant):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _path_text(path: pathlib.Path) -> str:
    if path.is_relative_to(FOLDER):
        return _BUNDLED + path.relative_to(FOLDER).as_posix()
    if path.is_relative_to(built_folder("")):
        return _BUILT + path.parent.name
    return str(path)


def _place(text: str) -> pathlib.Path:
    if text.startswith(_BUNDLED):
        return FOLDER / text.removeprefix(_BUNDLED)
    if text.startswith(_BUILT):
        return build_weights(text.removeprefix(_BUILT))
    return pathlib.Path(text)
