"""Cards of models as plain data, to find the same files again after a restart.

In: a card; out: its JSON form, and back. Files of bundled models are written relative to the zoo, so that
they are found where Luthier is installed by then; all others with their absolute path.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from serving.errors import ModelLoadFailed
from serving.values import ModelCard, Program
from serving.zoo import FOLDER

_BUNDLED = "zoo:"


def as_json(card: ModelCard) -> dict[str, Any]:
    """The JSON form."""
    return {
        "name": card.name,
        "version": card.version,
        "kind": card.kind,
        "path": _written(card.path),
        "program": None
        if card.program is None
        else {"words": list(card.program.words), "folder": _written(card.program.folder)},
        "description": card.description,
        "sample": _written(card.sample),
        "quality": dict(card.quality),
    }


def from_json(data: Mapping[str, Any]) -> ModelCard:
    """Inverse of `as_json`.

    Raises:
        ModelLoadFailed: it is no card.
    """
    try:
        program = data["program"]
        return ModelCard(
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
        )
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelLoadFailed(str(data)[:200], f"its card cannot be read: {error!r}") from error


def _written(path: pathlib.Path | None) -> str | None:
    if path is not None and path.is_relative_to(FOLDER):
        return _BUNDLED + path.relative_to(FOLDER).as_posix()
    return None if path is None else str(path)


def _place(text: str) -> pathlib.Path:
    if text.startswith(_BUNDLED):
        return FOLDER / text.removeprefix(_BUNDLED)
    return pathlib.Path(text)
