"""The sub-commands of `tune`, one module each, with `add_arguments` and `run`.

User errors are raised as `TunerError`. The registry is in `tuner.cli.main`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import rich.console
import rich.table

from tuner.errors import TunerError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """Result of one command; standard output gets either `text` or, with `--json`, `data`."""

    text: rich.console.RenderableType
    data: Mapping[str, Any]
    exit_code: int = 0
    problem: TunerError | None = None
    """Error to print to standard error as well; its code becomes the exit code."""


def table(*titles: str) -> rich.table.Table:
    """Return an empty table with numbers in all columns but the first."""
    made = rich.table.Table(box=None, pad_edge=False)
    for place, title in enumerate(titles):
        made.add_column(title, justify="right" if place else "left", overflow="fold")
    return made
