"""One-line texts for YAML errors; PyYAML's own repeat the position and draw the line."""

from __future__ import annotations

import yaml
from yaml.reader import ReaderError


def yaml_problem(error: Exception) -> str:
    """Return the problem with its line and column, both from 1."""
    if isinstance(error, ReaderError):
        code = error.character if isinstance(error.character, int) else ord(error.character)
        return f"character #x{code:02x} at position {error.position}: {error.reason}"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    parts = " ".join(", ".join(filter(None, (error.context, error.problem))).split())
    return f"{parts} (line {mark.line + 1}, column {mark.column + 1})"
