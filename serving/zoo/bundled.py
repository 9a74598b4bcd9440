"""Bundled models: their folder, names, and weights that are built on first use."""

from __future__ import annotations

import importlib
import pathlib

from serving.errors import ModelLoadFailed
from serving.system import private_folder

FOLDER = pathlib.Path(__file__).resolve().parent
SPEC_FILE = "model.yaml"


def names() -> tuple[str, ...]:
    """Return the bundled models' names, sorted."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{SPEC_FILE}")))


def check_cache() -> None:
    """Raise OSError if another user owns or can write to a cache in the temporary directory."""
    temporary = private_folder.temporary_cache()
    if private_folder.cache_folder().parent == temporary:
        private_folder.ensure(temporary, advice="set XDG_CACHE_HOME")


def built_folder(name: str) -> pathlib.Path:
    """Return the cache folder of a bundled model, whose weights are built on first use."""
    return private_folder.cache_folder() / "zoo" / name


def build_weights(name: str) -> pathlib.Path:
    """Return a bundled model's weights, built if missing, or raise ModelLoadFailed."""
    build = importlib.import_module(f"{__package__}.{name}.build")
    try:
        check_cache()
        path: pathlib.Path = build.weights()
    except OSError as error:
        raise ModelLoadFailed(
            name,
            f"its weights cannot be saved in {built_folder(name)}: {error}; "
            "XDG_CACHE_HOME names another folder",
        ) from error
    return path
