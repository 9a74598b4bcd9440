"""Read YAML from untrusted sources, with bounds on size, depth and aliases."""

from __future__ import annotations

import pathlib
from typing import Any

import yaml
from yaml.reader import ReaderError

from serving.system import user_files

MAX_DEPTH = 32
"""Maximum nesting; parse time grows with its square."""
MAX_BYTES = 1024 * 1024
"""Maximum size of a text; parsing it takes a few seconds."""


class Loader(yaml.SafeLoader):
    """YAML loader that rejects aliases and deep nesting."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a node; reject aliases and deep nesting."""
        if self.check_event(yaml.AliasEvent):
            # A few lines of aliases can expand to gigabytes in an error or a record.
            raise ValueError("anchors and aliases (*name) are not supported; write the value out")
        holds_more = self.check_event(yaml.CollectionStartEvent)
        self._depth += holds_more
        if self._depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self._depth -= holds_more
        return node


def parse(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the data of a text with a single document.

    Raises yaml.YAMLError, or ValueError if a limit is exceeded or a value is impossible, such as
    May 32.
    """
    if len(text) > max_bytes:
        raise ValueError(f"larger than {max_bytes} bytes")
    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read(file: pathlib.Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """Return the data of a file; raises as `user_files.read` and `parse` do."""
    return parse(user_files.read(file, max_bytes=max_bytes), max_bytes=max_bytes)


def yaml_problem(error: Exception) -> str:
    """Return a YAML error as one line, with its line and column counted from 1.

    PyYAML's own messages repeat the position and quote the line.
    """
    if isinstance(error, ReaderError):
        code = error.character if isinstance(error.character, int) else ord(error.character)
        return f"character #x{code:02x} at position {error.position}: {error.reason}"
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return " ".join(str(error).split())
    mark = error.problem_mark
    parts = " ".join(", ".join(filter(None, (error.context, error.problem))).split())
    return f"{parts} (line {mark.line + 1}, column {mark.column + 1})"
