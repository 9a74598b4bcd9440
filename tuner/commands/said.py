"""What a command says at its end: text for a person, one JSON object for a program, and the exit code."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import rich.console


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The answer of one command; either form goes to standard output, never both."""

    text: rich.console.RenderableType
    data: Mapping[str, Any]
    exit_code: int = 0
