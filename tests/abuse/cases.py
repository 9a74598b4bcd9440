"""Failing cases as bytes: kept in `tests/abuse/cases/STAGE/NAME.json`, tried again by the ordinary suite.

A case is one JSON file: the stage, the name, what the stage needs to try it again, and the bytes in base 64,
compressed where that is shorter. Equal bytes under an equal name are one case.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import pathlib
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

FOLDER = pathlib.Path(__file__).resolve().parent / "cases"
MOST_BYTES = 256 * 1024
"""Longer ones, compressed, are not kept: the seed makes them again."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One that failed once."""

    stage: str
    name: str
    data: bytes
    replay: Mapping[str, Any]


def keep(
    stage: str,
    name: str,
    data: bytes,
    replay: Mapping[str, object],
    folder: pathlib.Path = FOLDER,
) -> str:
    """Write a case; returns its file below the folder, or why there is none."""
    packed = zlib.compress(data, 9)
    if min(len(packed), len(data)) > MOST_BYTES:
        return f"{stage}/{name}: {len(data)} bytes, too many to keep"
    is_packed = len(packed) < len(data)
    digest = hashlib.sha256(data).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]
    path = folder / stage / f"{slug}-{digest}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "stage": stage,
        "name": name,
        "replay": replay,
        "packed" if is_packed else "plain": base64.b64encode(
            packed if is_packed else data
        ).decode(),
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return f"{stage}/{path.name}"


def read(path: pathlib.Path) -> Case:
    """A case from its file."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if "packed" in content:
        data = zlib.decompress(base64.b64decode(content["packed"]))
    else:
        data = base64.b64decode(content["plain"])
    return Case(stage=content["stage"], name=content["name"], data=data, replay=content["replay"])


def stored(folder: pathlib.Path = FOLDER) -> Iterator[pathlib.Path]:
    """The files of all cases, in their order."""
    yield from sorted(folder.glob("*/*.json"))
