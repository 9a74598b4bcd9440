"""Programs that accompany an export; equal for every study, so no name becomes code."""

from __future__ import annotations

import importlib.resources


def text(name: str) -> str:
    """Text of a file in `files/`."""
    folder = importlib.resources.files("tuner.export") / "files"
    return (folder / name).read_text(encoding="utf-8")
