"""Conversion of values to plain data for JSON, and back by the types of their fields."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, Self

from tuner.values.configuration import Configuration

_NONE: Mapping[str, str] = types.MappingProxyType({})


class Plain:
    """Base class of dataclasses that are stored as JSON."""

    __slots__ = ()

    def as_json(self) -> dict[str, Any]:
        """Return all fields as plain data."""
        data: dict[str, Any] = to_plain(self)
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any], *, renamed: Mapping[str, str] = _NONE) -> Self:
        """Return the value from which `as_json` made the data; missing fields get defaults.

        Args:
            renamed: current names of fields by their earlier ones.

        Raises:
            KeyError, TypeError: the data do not fit the fields.
        """
        found: Self = parse(cls, data, renamed)
        return found


def to_plain(value: Any) -> Any:
    """Return dictionaries and lists in place of dataclasses, mappings and tuples."""
    if dataclasses.is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(one) for name, one in value.items()}
    return [to_plain(one) for one in value] if isinstance(value, list | tuple) else value


def parse(kind: Any, data: Any, renamed: Mapping[str, str] = _NONE) -> Any:
    """Convert plain data to a value of the type `kind`; `renamed` as for `from_json`.

    Raises:
        KeyError, TypeError: the data do not fit the type.
    """
    if data is None or kind is Any:
        return data
    if kind is Configuration:
        return Configuration(data)
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        kinds = _kinds(kind)
        named = {name if name in kinds else renamed[name]: data[name] for name in data}
        return kind(**{name: parse(kinds[name], value, renamed) for name, value in named.items()})
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in {types.UnionType, typing.Union}:
        return parse(parts[0], data, renamed)  # as X | None; numbers and texts stay what they are
    if origin is tuple:
        return tuple(parse(parts[0], one, renamed) for one in data)
    if origin is Mapping:
        return {name: parse(parts[1], one, renamed) for name, one in data.items()}
    return data


@functools.cache
def _kinds(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
