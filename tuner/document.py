"""YAML text as plain data, with the line number of each value.

Anchors, aliases and duplicate keys (of which parsers silently use the last) are errors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from serving.error_text import nearest
from serving.system import bounded_yaml
from serving.system.bounded_yaml import yaml_problem
from tuner.errors import InvalidDocument, InvalidSpace, list_names

MAX_NUMBER = 1e15
"""Limit on numbers, below which floats hold all integers; no setting is that large."""

_PLAIN_TAGS = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")

Path = tuple[str | int, ...]
"""Keys and indexes that lead from the root to a value."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Content of one file; methods raise InvalidDocument for a wrong value."""

    file: str
    value: Any
    """Dictionaries with string keys, lists, and the scalars of safe YAML."""
    lines: Mapping[Path, int]
    """Line number of each value's key or item, counted from 1."""
    fault: type[InvalidDocument] = InvalidSpace

    def error(self, path: Path, text: str) -> InvalidDocument:
        """Return an error that points to a place in this document."""
        ends = range(len(path), 0, -1)
        line = next((self.lines[path[:end]] for end in ends if path[:end] in self.lines), None)
        where = f" (line {line})" if line else ""
        return self.fault(self.file, dotted_path(path), text + where)

    def reject_unknown(self, given: str, valid: Iterable[str], path: Path, noun: str) -> None:
        """Raise an error with the nearest valid name if a name is unknown."""
        names = tuple(valid)
        if given not in names:
            hint = nearest(given, names)
            text = f"unknown {noun} {given!r}{hint} (expected one of: {list_names(given, names)})"
            raise self.error(path, text)

    def mapping(self, given: object, path: Path) -> dict[str, Any]:
        """Return the value, which must be a mapping."""
        if not isinstance(given, dict):
            raise self.error(path, f"{_describe(given)}, expected a mapping of keys")
        return given

    def items(self, given: object, path: Path) -> list[Any]:
        """Return the value, which must be a non-empty list."""
        if not isinstance(given, list) or not given:
            raise self.error(path, f"{_describe(given)}, expected a list of values")
        return given

    def text(self, given: object, path: Path) -> str:
        """Return the value, which must be a non-empty string."""
        if not isinstance(given, str) or not given.strip():
            raise self.error(path, f"{_describe(given)}, expected a text")
        return given

    def texts(self, given: object, path: Path) -> tuple[str, ...]:
        """Return the value, which must be a list of strings, possibly empty."""
        if not isinstance(given, list):
            raise self.error(path, f"{_describe(given)}, expected a list of texts")
        return tuple(self.text(item, (*path, i)) for i, item in enumerate(given))

    def truth(self, given: object, path: Path) -> bool:
        """Return the value, which must be a boolean."""
        if not isinstance(given, bool):
            raise self.error(path, f"{_describe(given)}, expected true or false")
        return given

    def whole_number(self, given: object, path: Path) -> int:
        """Return the value, which must be an integer (8.0 is not)."""
        if isinstance(given, bool) or not isinstance(given, int):
            raise self.error(path, f"{_describe(given)}, expected a whole number")
        return given

    def number(self, given: object, path: Path) -> float:
        """Return the value, which must be a finite number."""
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise self.error(path, f"{_describe(given)}, expected a number")
        if not abs(given) < MAX_NUMBER:
            raise self.error(path, f"{given!r}, expected a number below {MAX_NUMBER:g}")
        return float(given)


def dotted_path(path: Path) -> str:
    """Return a path in the form `knobs.replica.count.range[0]`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in path]
    return "".join(parts).removeprefix(".")


def read(text: str, file: str, *, fault: type[InvalidDocument] = InvalidSpace) -> Document:
    """Parse YAML text, or raise an InvalidDocument that calls it `file`."""
    try:
        loader = bounded_yaml.Loader(text)
        try:
            node = loader.get_single_node()
            reader = _NodeReader(loader, file, fault)
            value = reader.plain(node, ()) if node is not None else None
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise fault(file, "", f"not YAML: {yaml_problem(error)}") from error
    return Document(file=file, value=value, lines=reader.lines, fault=fault)


def _describe(given: object) -> str:
    if given is None:
        return "nothing"
    if isinstance(given, dict | list) and given:
        return "a mapping" if isinstance(given, dict) else "a list"
    return repr(given)


@dataclasses.dataclass(slots=True)
class _NodeReader:
    loader: yaml.SafeLoader
    file: str
    fault: type[InvalidDocument]
    lines: dict[Path, int] = dataclasses.field(default_factory=dict)

    def plain(self, node: yaml.Node, path: Path) -> Any:
        if isinstance(node, yaml.CollectionNode) and node.tag not in _PLAIN_TAGS:
            raise self.fault(self.file, dotted_path(path), f"the tag {node.tag} is not supported")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            for i, child in enumerate(node.value):
                self.lines[*path, i] = child.start_mark.line + 1
            return [self.plain(child, (*path, i)) for i, child in enumerate(node.value)]
        try:
            return self.loader.construct_object(node)
        except (ValueError, AttributeError) as error:  # 2001-99-99 looks like a date
            text = f"{node.value!r} cannot be read ({error}); quote it if it is a text"
            raise self.fault(self.file, dotted_path(path), text) from error

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, yaml.ScalarNode) else "?"
            line = key_node.start_mark.line + 1
            inner = (*path, key)
            if key in found:
                text = f"given twice, on lines {self.lines[inner]} and {line}"
                raise self.fault(self.file, dotted_path(inner), text)
            self.lines[inner] = line
            found[key] = self.plain(value_node, inner)
        return found
