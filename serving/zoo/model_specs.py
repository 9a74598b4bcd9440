"""JSON form of model specs, to find the files after a restart.

Bundled files are relative to the zoo, or named by the model if built on first use. Other paths are
absolute.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from serving.errors import ModelLoadFailed
from serving.model_spec import ModelSpec, Program, Variant
from serving.zoo import check_trusted
from serving.zoo.bundled import FOLDER, build_weights, built_folder

_BUNDLED = "zoo:"
_BUILT = "built:"


def as_json(spec: ModelSpec) -> dict[str, Any]:
    """JSON form."""
    variants = {
        name: {"path": _path_text(variant.path), "quality": dict(variant.quality)}
        for name, variant in spec.variants.items()
    }
    program = spec.program and {
        "words": list(spec.program.words),
        "folder": _path_text(spec.program.folder),
    }
    declared = {
        "variants": variants,
        "shapes": list(spec.shapes),
        "values": list(spec.values),
        "item_axis": dict(spec.item_axis),
        "shared": list(spec.shared),
        "pad": dict(spec.pad),
    }
    return {
        "name": spec.name,
        "version": spec.version,
        "kind": spec.kind,
        "path": _path_text(spec.path),
        "program": program,
        "description": spec.description,
        "sample": _path_text(spec.sample),
        "quality": dict(spec.quality),
        # Omitted if empty: starts compare with older records.
        **{name: value for name, value in declared.items() if value},
    }


def from_json(data: Mapping[str, Any]) -> ModelSpec:
    """Inverse of `as_json`.

    Raises:
        ModelLoadFailed: invalid, or allowed only on the command line.
    """
    try:
        program = data["program"]
        spec = ModelSpec(
            name=data["name"],
            version=data["version"],
            kind=data["kind"],
            path=None if data["path"] is None else _place(data["path"]),
            program=None
            if program is None
            else Program(tuple(program["words"]), _place(program["folder"])),
            description=data["description"],
            sample=None if data["sample"] is None else _place(data["sample"]),
            quality=data["quality"],
            shapes=tuple(data.get("shapes", ())),
            values=tuple(data.get("values", ())),
            item_axis=dict(data.get("item_axis", {})),
            shared=tuple(data.get("shared", ())),
            pad=dict(data.get("pad", {})),
            variants={
                name: Variant(_place(variant["path"]), variant["quality"])
                for name, variant in data.get("variants", {}).items()
            },
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelLoadFailed(str(data)[:200], f"its card cannot be read: {error!r}") from error
    check_trusted(spec)  # trust is not saved
    return spec


def _path_text(path: pathlib.Path | None) -> str | None:
    if path is not None and path.is_relative_to(FOLDER):
        return _BUNDLED + path.relative_to(FOLDER).as_posix()
    if path is not None and path.is_relative_to(built_folder("")):
        return _BUILT + path.parent.name
    return None if path is None else str(path)


def _place(text: str) -> pathlib.Path:
    if text.startswith(_BUNDLED):
        return FOLDER / text.removeprefix(_BUNDLED)
    if text.startswith(_BUILT):
        return build_weights(text.removeprefix(_BUILT))
    return pathlib.Path(text)
