"""Paths of files that are staged for a container."""

from __future__ import annotations

import pathlib


def staged_path(path: str | pathlib.Path, root: pathlib.Path | None) -> pathlib.Path:
    """Return an absolute path below a root; other paths, such as module names, are unchanged."""
    found = pathlib.Path(path)
    if root is None or not found.is_absolute():
        return found
    return root / found.relative_to(found.anchor)
