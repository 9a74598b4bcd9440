"""An autotuner around a model server: launch, load, measure, search, report, export.

The command is `tune`; the hub is `tuner.study`. `tuner.load` reads a study into a notebook.
"""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    import pathlib

    from tuner.notebook import Study


def load(study: str | pathlib.Path, *, storage: str | None = None) -> Study:
    """Read a study from its folder: `tuner.notebook.load`.

    pandas is imported now and not before, so that commands start quickly.
    """
    found: Study = importlib.import_module("tuner.notebook").load(study, storage=storage)
    return found
