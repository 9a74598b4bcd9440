"""Values on a control connection as JSON: errors, usage, and what a spawner needs of a model."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

from serving.errors import LimitsUnavailable, NotReady, ReplicaStartFailed, ServingError
from serving.model_spec import ModelSpec, Program, Variant
from serving.spawners.node.artefacts import ArtefactError
from serving.spawners.node.link import Refused
from serving.system.cgroups.cgroup import Usage
from serving.wire.staged_path import staged_path

_ERRORS: Mapping[str, type[ServingError]] = {
    kind.__name__: kind
    for kind in (ReplicaStartFailed, LimitsUnavailable, NotReady, ArtefactError, Refused)
}


def error_as_json(error: ServingError) -> dict[str, object]:
    """Return an error with its facts."""
    kind = type(error).__name__
    if kind in _ERRORS:
        return {"kind": kind, "facts": list(error.args)}
    return {"kind": Refused.__name__, "facts": [str(error)]}


def error_from_json(data: Mapping[str, Any]) -> ServingError:
    """Return the error that an agent has told."""
    kind = _ERRORS.get(str(data.get("kind")), Refused)
    try:
        return kind(*map(str, data["facts"]))
    except (KeyError, TypeError):
        return Refused(f"an agent told a malformed error: {data!r:.200}")


def usage_as_json(usage: Usage) -> list[float | None]:
    """Return a usage."""
    return [usage.peak_memory_mb, usage.cpu_s, usage.throttled_s]


def usage_from_json(data: object) -> Usage | None:
    """Return the usage of a frame, or None if there is none."""
    if not isinstance(data, list) or len(data) != 3:
        return None
    peak_memory_mb, cpu_s, throttled_s = data
    return Usage(peak_memory_mb=peak_memory_mb, cpu_s=cpu_s, throttled_s=throttled_s)


def relocated(spec: ModelSpec, root: pathlib.Path) -> dict[str, Any]:
    """Return what a spawner needs of a model whose files lie below a root."""

    def place(path: pathlib.Path | None) -> str | None:
        return None if path is None else str(staged_path(path, root))

    program = None
    if spec.program is not None:
        folder = spec.program.folder
        program = {
            "folder": place(folder),
            "words": [
                str(staged_path(word, root)) if word.startswith(f"{folder}/") else word
                for word in spec.program.words
            ],
        }
    return {
        "name": spec.name,
        "version": spec.version,
        "kind": spec.kind,
        "path": place(spec.path),
        "sample": place(spec.sample),
        "variants": {name: place(one.path) for name, one in spec.variants.items()},
        "program": program,
    }


def spec_from_json(data: Mapping[str, Any] | None) -> ModelSpec | None:
    """Return the model of a frame, with what a spawner needs."""
    if data is None:
        return None
    program = data["program"]
    return ModelSpec(
        name=str(data["name"]),
        version=str(data["version"]),
        kind=str(data["kind"]),
        path=_path(data["path"]),
        sample=_path(data["sample"]),
        variants={
            str(name): Variant(pathlib.Path(path), {}) for name, path in data["variants"].items()
        },
        program=None
        if program is None
        else Program(tuple(map(str, program["words"])), pathlib.Path(program["folder"])),
    )


def _path(text: str | None) -> pathlib.Path | None:
    return None if text is None else pathlib.Path(text)
