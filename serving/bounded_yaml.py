"""Reads YAML that may be large or malicious: what it may hold is bounded before any of it is built.

In: a file, or a text. Out: plain data. Errors say what is too much, or where the text is wrong.
"""

from __future__ import annotations

import pathlib
from typing import Any

import yaml

from serving import user_files

MAX_DEPTH = 32
"""Of lists and mappings in one another: the time that reading takes grows with its square."""
MAX_BYTES = 1024 * 1024
"""Of a text: it is read in some seconds at most."""


class Loader(yaml.SafeLoader):
    """Plain data without what stands for more than is written."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """One value, of which a list or a mapping holds more."""
        if self.check_event(yaml.AliasEvent):
            # A few lines of them stand for gigabytes, once they are written out in an error or a record.
            raise ValueError("anchors are not used here, nor aliases (*name); write the value out")
        holds_more = self.check_event(yaml.CollectionStartEvent)
        self._depth += holds_more
        if self._depth > MAX_DEPTH:
            raise ValueError(f"nested deeper than {MAX_DEPTH}")
        node = super().compose_node(parent, index)
        self._depth -= holds_more
        return node


def parsed(text: str | bytes, *, max_bytes: int = MAX_BYTES) -> Any:
    """What is written in a text.

    Args:
        text: of one document.
        max_bytes: the most that it may have.

    Raises:
        yaml.YAMLError: it is no YAML.
        ValueError: it is too much, or holds a value that cannot be, as a 32nd of May.
    """
    if len(text) > max_bytes:
        raise ValueError(f"larger than {max_bytes} bytes")
    loader = Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read(file: pathlib.Path, *, max_bytes: int = MAX_BYTES) -> Any:
    """What is written in a file.

    Args:
        file: its path.
        max_bytes: the most that it may have.

    Raises:
        OSError: it cannot be read, is no regular file, or is too large.
        yaml.YAMLError: it is no YAML.
        ValueError: it holds too much, as of `parsed`.
    """
    return parsed(user_files.read(file, max_bytes=max_bytes), max_bytes=max_bytes)
