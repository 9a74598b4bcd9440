"""What a command says at its end: text for a person, one JSON object for a program, and the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import rich.console

from tuner.errors import TunerError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The answer of one command; either form goes to standard output, never both."""

    text: rich.console.RenderableType
    data: Mapping[str, Any]
    exit_code: int = 0
    problem: TunerError | None = None
    """What has to be said beside the answer, on standard error; its code is that of the command."""
