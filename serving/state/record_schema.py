"""Schema of the record's rows, which people or other versions of Luthier may have changed.

Only the shape of a row's JSON is checked, not whether its models exist.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from serving.errors import InvalidSettings
from serving.state.records import RecordKey
from serving.values import Signature

_MAX_ITEMS = 10_000_000
_MAX_DIGITS = 8

Shape = Any
"""Expected shape of a JSON value: a type, None, a list with the shape of all items, a dict with the
shapes of required members, a tuple of alternatives, or a predicate; `object` means any value."""

# Kinds of rows; each row's string is JSON.
SETTING = "setting"  # by dotted name: value, and instead_of: the value at the start, if any
VERSION = "version"  # of a served model: its spec, or that it came from the folder
RETIRED = "retired"  # not served, though given at start: its spec, or its files in the folder
MODEL = "model"  # `ModelEntry.as_json`
APPLICATION = "application"  # the fields of `Application`
REGISTERED = "registered"  # Clipper's record of a model version
CURRENT = "registered current"  # Clipper's current version of a model
PROFILE = "profile"  # `ModelProfile.as_json`, in its own file


def read(key: RecordKey, text: str) -> Any:
    """Return a row's parsed JSON.

    Raises:
        InvalidSettings: the row does not have the shape expected for its kind.
    """
    if key.kind not in _SHAPES:
        raise InvalidSettings(f"unknown kind of row, expected one of {', '.join(_SHAPES)}")
    if not all(isinstance(part, str) for part in (*key, text)):
        raise InvalidSettings("not strings")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"not JSON: {error}") from error
    if not _fits(data, _SHAPES[key.kind]) or not _is_of(key, data):
        raise InvalidSettings(f"not valid for a row of this kind: {text:.100}")
    return data


def _fits(data: Any, shape: Shape) -> bool:
    if isinstance(shape, dict):
        return isinstance(data, dict) and all(
            name in data and _fits(data[name], inner) for name, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(data, list) and all(_fits(one, shape[0]) for one in data)
    if isinstance(shape, tuple):
        return any(_fits(data, one) for one in shape)
    if shape is None or shape is object:
        return shape is object or data is None
    return type(data) is shape if isinstance(shape, type) else bool(shape(data))


def _is_of(key: RecordKey, data: Any) -> bool:
    """Return whether the model or application that a row names, if any, is that of its key."""
    if not isinstance(data, dict):
        return True
    named = data["card"] if isinstance(data.get("card"), dict) else data
    return (named.get("name", key.name), named.get("version", key.version)) == key[1:]


def _map_of(shape: Shape) -> Callable[[Any], bool]:
    return lambda data: isinstance(data, dict) and _fits(list(data.values()), [shape])


def _is_file(data: Any) -> bool:
    return isinstance(data, list) and [type(part) for part in data] == [str, int, int]


def _are_shares(data: Any) -> bool:
    return _map_of(_is_size)(data) and sum(data.values()) <= 1.0 + 1e-9


def _is_setting(data: Any) -> bool:
    return _fits(data, {"value": object}) and data.keys() <= {"value", "instead_of"}


def _is_registered(data: Any) -> bool:
    return _fits(data, _REGISTERED) and data.keys() == _REGISTERED.keys()


def _is_signature(data: Any) -> bool:
    try:
        return bool(Signature.from_json(data).inputs)
    except (KeyError, TypeError, ValueError):
        return False


def _is_size(data: Any) -> bool:
    return type(data) in {int, float} and math.isfinite(data) and data >= 0.0


def _are_stages(data: Any) -> bool:
    return _fits(data, [_is_size]) and len(data) == 3


def _by_items(shape: Shape) -> Callable[[Any], bool]:
    return lambda data: (
        _map_of(shape)(data)
        and all(
            size.isdecimal()
            and len(size) <= _MAX_DIGITS  # Python limits the digits of an integer
            and 0 < int(size) <= _MAX_ITEMS
            for size in data
        )
    )


_SPEC = {
    "name": str,
    "version": str,
    "kind": str,
    "path": (str, None),
    "program": ({"folder": str, "words": [str]}, None),
    "description": str,
    "sample": (str, None),
    "quality": dict,
}
_REGISTERED = {
    "name": str,
    "version": str,
    "input_type": str,
    "labels": [str],
    "container_name": str,
    "model_data_path": str,
    "batch_size": int,
    "is_valid": bool,
}
_SHAPES: Mapping[str, Shape] = {
    SETTING: _is_setting,
    VERSION: ({"folder": bool}, {"card": _SPEC}),
    RETIRED: ({"files": [_is_file]}, {"card": _SPEC}),
    MODEL: {
        "current": str,
        "previous": (str, None),
        "labels": _map_of(str),
        "shares": _are_shares,
        "shadow": (str, None),
        "versions": [str],
    },
    APPLICATION: {"name": str},
    REGISTERED: _is_registered,
    CURRENT: str,
    PROFILE: {
        "signature": _is_signature,
        "reads_json": bool,
        "load_s": _is_size,
        "batch_s": lambda data: bool(data) and _by_items(_is_size)(data),
        "stages_s": _by_items(_are_stages),
        "memory_bytes": lambda data: type(data) is int and data >= 0,
        "told": {
            "load_s": (_is_size, None),
            "device": (str, None),
            "warmup": dict,
            "optimised": (str, None),  # older rows lack it
        },
    },
}
