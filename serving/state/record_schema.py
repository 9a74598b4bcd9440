"""Schema of the record's rows, which people or other versions may have changed.

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

# Kinds of rows; the text is JSON.
SETTING = "setting"  # by dotted name: value, and instead_of, the start's value if any
VERSION = "version"  # of a served model: its spec, or that it came from the folder
RETIRED = "retired"  # not served, though given at start: its spec, or its files in the folder
MODEL = "model"  # `catalogue.Entry.as_json`
APPLICATION = "application"  # `Application.as_json`
REGISTERED = "registered"  # Clipper's record of a model version
CURRENT = "registered current"  # Clipper's current version of a model
PROFILE = "profile"  # `ModelProfile.as_json`, in its own file


def read(key: RecordKey, text: str) -> Any:
    """Return a row's JSON.

    Raises:
        InvalidSettings: it does not match its kind.
    """
    check = _CHECKS.get(key.kind)
    if check is None:
        raise InvalidSettings(f"unknown kind of row, expected one of {', '.join(_CHECKS)}")
    if not all(isinstance(part, str) for part in (*key, text)):
        raise InvalidSettings("not texts")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSettings(f"not JSON: {error}") from error
    if not check(key, data):
        raise InvalidSettings(f"not valid for a row of this kind: {text:.100}")
    return data


def _is_setting(_key: RecordKey, data: Any) -> bool:
    return isinstance(data, dict) and "value" in data and data.keys() <= {"value", "instead_of"}


def _is_version(key: RecordKey, data: Any) -> bool:
    return data == {"folder": True} or _is_spec(key, data)


def _is_retired(key: RecordKey, data: Any) -> bool:
    if isinstance(data, dict) and data.keys() == {"files"}:
        files = data["files"]
        return isinstance(files, list) and all(map(_is_file, files))
    return _is_spec(key, data)


def _is_file(data: Any) -> bool:
    return isinstance(data, list) and [type(part) for part in data] == [str, int, int]


def _is_spec(key: RecordKey, data: Any) -> bool:
    if not isinstance(data, dict) or data.keys() != {"card"}:
        return False
    spec = data["card"]
    return (
        isinstance(spec, dict)
        and all(isinstance(spec.get(name), str) for name in ("name", "version", "kind"))
        and (spec["name"], spec["version"]) == (key.name, key.version)
        and all(isinstance(spec.get(name), str | None) for name in ("path", "sample"))
        and isinstance(spec.get("description"), str)
        and isinstance(spec.get("quality"), dict)
        and (spec.get("program") is None or _is_program(spec["program"]))
    )


def _is_program(data: Any) -> bool:
    return (
        isinstance(data, dict)
        and isinstance(data.get("folder"), str)
        and _are_texts(data.get("words"))
    )


def _is_model(_key: RecordKey, data: Any) -> bool:
    return (
        isinstance(data, dict)
        and isinstance(data.get("current"), str)
        and all(isinstance(data.get(name, 0), str | None) for name in ("previous", "shadow"))
        and _are_texts(data.get("versions"))
        and isinstance(data.get("labels"), dict)
        and all(isinstance(version, str) for version in data["labels"].values())
        and isinstance(data.get("shares"), dict)
        and all(map(_is_share, data["shares"].values()))
        and sum(data["shares"].values()) <= 1.0 + 1e-9
    )


def _is_share(data: Any) -> bool:
    return type(data) in {int, float} and math.isfinite(data) and 0.0 <= data <= 1.0


def _is_application(key: RecordKey, data: Any) -> bool:
    return isinstance(data, dict) and data.get("name") == key.name


def _is_registered(key: RecordKey, data: Any) -> bool:
    texts = ("name", "version", "input_type", "container_name", "model_data_path")
    return (
        isinstance(data, dict)
        and data.keys() == {*texts, "labels", "batch_size", "is_valid"}
        and all(isinstance(data[name], str) for name in texts)
        and (data["name"], data["version"]) == (key.name, key.version)
        and _are_texts(data["labels"])
        and type(data["batch_size"]) is int
        and type(data["is_valid"]) is bool
    )


def _is_profile(_key: RecordKey, data: Any) -> bool:
    told = data.get("told") if isinstance(data, dict) else None
    return (
        isinstance(told, dict)
        and _is_signature(data.get("signature"))
        and type(data.get("reads_json")) is bool
        and _is_time(data.get("load_s"))
        and _are_by_size(data.get("batch_s"), _is_time)
        and bool(data["batch_s"])
        and _are_by_size(data.get("stages_s"), _are_stages)
        and type(data.get("memory_bytes")) is int
        and data["memory_bytes"] >= 0
        and isinstance(told.get("device"), str | None)
        and isinstance(told.get("optimised", 0), str | None)  # rejects older rows, which lack it
        and isinstance(told.get("warmup"), dict)
        and (told.get("load_s") is None or _is_time(told["load_s"]))
    )


def _is_signature(data: Any) -> bool:
    try:
        return bool(Signature.from_json(data).inputs)
    except (KeyError, TypeError, ValueError):
        return False


def _is_time(data: Any) -> bool:
    return type(data) in {int, float} and math.isfinite(data) and data >= 0.0


def _are_stages(data: Any) -> bool:
    return isinstance(data, list) and len(data) == 3 and all(map(_is_time, data))


def _are_by_size(data: Any, is_one: Callable[[Any], bool]) -> bool:
    return isinstance(data, dict) and all(
        size.isdecimal()
        and len(size) <= _MAX_DIGITS  # Python limits the digits of an integer
        and 0 < int(size) <= _MAX_ITEMS
        and is_one(value)
        for size, value in data.items()
    )


def _is_text(_key: RecordKey, data: Any) -> bool:
    return isinstance(data, str)


def _are_texts(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(one, str) for one in data)


_CHECKS: Mapping[str, Callable[[RecordKey, Any], bool]] = {
    SETTING: _is_setting,
    VERSION: _is_version,
    RETIRED: _is_retired,
    MODEL: _is_model,
    APPLICATION: _is_application,
    REGISTERED: _is_registered,
    CURRENT: _is_text,
    PROFILE: _is_profile,
}
