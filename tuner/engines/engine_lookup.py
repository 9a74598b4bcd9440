"""Lookup of the engine file that `--engine` names.

command:FILE    the user's file
NAME            tuner/engines/files/NAME/engine.yaml, run by the interpreter of `tune`
NAME:PYTHON     the same file, run by another interpreter, which has the engine installed
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys

from serving.error_text import nearest
from tuner.engines import file as engine_file
from tuner.engines.description import CommandEngine
from tuner.errors import UsageError
from tuner.values.study_record import OUR_ENGINE

FOLDER = pathlib.Path(__file__).parent / "files"
FILE = "engine.yaml"


def names() -> tuple[str, ...]:
    """Return the names of the engines that come with the tuner."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob(f"*/{FILE}")))


def engine_of(given: str, *, kept: str | None = None) -> CommandEngine:
    """Return the engine that `--engine` names.

    Args:
        kept: content of the engine file when the study began; None to read the file.

    Raises:
        InvalidEngine: the file is invalid.
        UsageError: there is no such engine or interpreter.
    """
    name, _, rest = given.partition(":")
    if name == "command":
        path = pathlib.Path(rest).absolute()
        return engine_file.parse(kept or engine_file.read_text(path), path)
    if name not in names():
        known = (OUR_ENGINE, *names())
        raise UsageError(
            f"--engine {given}: {name!r} is not an engine{nearest(name, known)} (expected {', '.join(known)}, "
            "command:FILE with an engine file of your own, or url:URL)"
        )
    path = FOLDER / name / FILE
    found = engine_file.parse(kept or engine_file.read_text(path), path)
    return dataclasses.replace(
        found, python=_interpreter(given, rest, is_kept=kept is not None), label=given
    )


def _interpreter(given: str, path: str, *, is_kept: bool) -> str:
    if not path:
        return sys.executable
    found = pathlib.Path(path).absolute()  # unresolved: an environment is a link to it
    if not is_kept and not found.is_file():  # exports need no interpreter
        raise UsageError(
            f"--engine {given}: no file {path}; expected after the colon the Python "
            "interpreter of the environment that has the engine, such as .venv/bin/python"
        )
    return str(found)
