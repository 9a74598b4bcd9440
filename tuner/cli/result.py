"""Result of a command: text, one JSON object, and the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import rich.console

from tuner.errors import TunerError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of one command; standard output gets either form, never both."""

    text: rich.console.RenderableType
    data: Mapping[str, Any]
    exit_code: int = 0
    problem: TunerError | None = None
    """Error to print on standard error as well; its code becomes the exit code."""
