"""Autotuner for model servers; `tuner.load` reads a study in a notebook."""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    import pathlib

    from tuner.notebook import Study


def load(study: str | pathlib.Path, *, storage: str | None = None) -> Study:
    """Read a study from its folder; see `tuner.notebook.load`, which is imported when called."""
    found: Study = importlib.import_module("tuner.notebook").load(study, storage=storage)
    return found
