"""Parser of one knob's entry in a search-space file.

Conditions remain strings, as other knobs are unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from serving.errors import InvalidSettings
from serving.settings.setting import SettingSpec as Setting
from tuner.document import Document, Path
from tuner.space import roles
from tuner.space.knob_schema import RESERVED, SERVING, KnobSchema
from tuner.space.knobs import (
    ChoiceKnob,
    DeviceKnob,
    FloatKnob,
    IntKnob,
    Knob,
    KnobError,
    Role,
    SearchedKnob,
)
from tuner.space.narrowing import CLOCK
from tuner.values.configuration import Value

NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)
FROM_DEVICE = "device"
"""Value of `choices` for a knob whose values come from the machine's GPU."""

KnobType = Literal["int", "float", "choice"]

_NUMBER_KEYS = ("range", "choices", "step", "points", "scale", "zero")
KEYS: dict[KnobType, tuple[str, ...]] = {
    "int": ("type", *_NUMBER_KEYS, "default", "condition", "unit", "role"),
    "float": ("type", *_NUMBER_KEYS, "default", "condition", "unit", "role"),
    "choice": ("type", "choices", "default", "condition", "unit"),
}
_DEVICE_KEYS = ("type", "choices", "points", "unit")


def read(content: Document, name: str, given: object, vocabulary: KnobSchema = SERVING) -> Knob:
    """Parse a knob's entry, or raise InvalidSpace; `content` is the file."""
    path: Path = ("knobs", name)
    _check_name(content, name, path, vocabulary)
    if name in vocabulary.settings and name.startswith("server."):
        raise content.error(
            path, "it cannot change while the server runs, so it cannot be searched"
        )
    fields = content.mapping(given, path)
    setting = vocabulary.settings.get(name)
    kind = _type(content, name, fields, setting)
    unit = _unit(content, name, fields, setting)
    try:
        if fields.get("choices") == FROM_DEVICE:
            return _device_knob(content, name, fields, unit)
        knob = _searched_knob(content, name, kind, fields, unit)
    except KnobError as error:
        key = "choices" if error.field == "range" and "choices" in fields else error.field
        raise content.error((*path, key), error.text) from None
    if setting is not None:
        _check_setting(content, knob, setting, "range" if "range" in fields else "choices")
    return knob


def _check_name(content: Document, name: str, path: Path, vocabulary: KnobSchema) -> None:
    if name in RESERVED and name not in vocabulary.settings:
        raise content.error(path, f"not a knob of this engine{vocabulary.about_limits}")
    if vocabulary.others is not None:
        content.reject_unknown(name, vocabulary.names(), path, "knob")
    elif not NAME.fullmatch(name):
        raise content.error(path, "expected a name such as batching.max_size")


def _type(
    content: Document, name: str, fields: Mapping[str, Any], setting: Setting | None
) -> KnobType:
    path = ("knobs", name, "type")
    if "type" not in fields:
        raise content.error(path[:2], f"`type` is missing, expected {', '.join(KEYS)}")
    given = content.text(fields["type"], path)
    content.reject_unknown(given, KEYS, path, "type")
    kind: KnobType = next(known for known in KEYS if known == given)
    if setting is None:
        return kind
    kinds = setting.kinds
    expected: KnobType = "int" if int in kinds else "float" if float in kinds else "choice"
    if kind != expected:
        raise content.error(path, f"{given!r}, but {name} is of type {expected}")
    return kind


def _unit(content: Document, name: str, fields: Mapping[str, Any], setting: Setting | None) -> str:
    if setting is None:
        return content.text(fields["unit"], ("knobs", name, "unit")) if "unit" in fields else ""
    expected = setting.unit
    if fields.get("unit", expected) != expected:
        text = f"{fields['unit']!r}, but {name} is in {expected or 'no unit'}"
        raise content.error(("knobs", name, "unit"), text)
    return expected


def _device_knob(content: Document, name: str, fields: Mapping[str, Any], unit: str) -> DeviceKnob:
    path = ("knobs", name)
    if name != CLOCK:
        raise content.error((*path, "choices"), f"only {CLOCK} takes its choices from the device")
    for key in fields:
        content.reject_unknown(
            key, _DEVICE_KEYS, (*path, key), "key of a knob with `choices: device`"
        )
    if "points" not in fields:
        return DeviceKnob(name=name, unit=unit)
    points = content.whole_number(fields["points"], (*path, "points"))
    return DeviceKnob(name=name, unit=unit, points=points)


def _searched_knob(
    content: Document, name: str, kind: KnobType, fields: Mapping[str, Any], unit: str
) -> SearchedKnob:
    path = ("knobs", name)
    if kind == "choice" and "role" in fields:
        raise content.error((*path, "role"), "only a knob of type int or float has a role")
    for key in fields:
        content.reject_unknown(key, KEYS[kind], (*path, key), "key")
    if "default" not in fields:
        raise content.error(path, "`default` is missing: give the value of an untuned server")
    common = {"name": name, "unit": unit}
    if "condition" in fields:
        common["condition"] = content.text(fields["condition"], (*path, "condition"))
    if kind != "choice":
        return _number_knob(content, kind, fields, path, common)
    choices = content.items(fields.get("choices"), (*path, "choices"))
    for i, choice in enumerate(choices):
        if not isinstance(choice, str | bool):
            text = f"{choice!r}, expected a text, true or false"
            raise content.error((*path, "choices", i), text)
    return ChoiceKnob(default=fields["default"], choices=tuple(choices), **common)


def _number_knob(
    content: Document,
    kind: KnobType,
    fields: Mapping[str, Any],
    path: Path,
    common: Mapping[str, str],
) -> IntKnob | FloatKnob:
    number = content.whole_number if kind == "int" else content.number
    if ("range" in fields) == ("choices" in fields):
        raise content.error(path, "expected either `range` or `choices`")
    key = "range" if "range" in fields else "choices"
    items = content.items(fields[key], (*path, key))
    numbers = [number(item, (*path, key, i)) for i, item in enumerate(items)]
    arguments: dict[str, Any] = dict(common)
    if "scale" in fields:
        arguments["scale"] = content.text(fields["scale"], (*path, "scale"))
    if "zero" in fields:
        arguments["zero"] = content.truth(fields["zero"], (*path, "zero"))
    if "role" in fields:
        arguments["role"] = _role(content, fields, path, common["unit"])
    if key == "range" and len(numbers) != 2:
        raise content.error((*path, key), f"{len(numbers)} numbers, expected two: [low, high]")
    if key == "choices":
        if arguments.get("scale") == "log" and numbers[0] == 0 and len(numbers) > 1:
            arguments["zero"] = True
            del numbers[0]
        arguments["grid"] = tuple(numbers)
    for name, read_as in (("default", number), ("step", number), ("points", content.whole_number)):
        if name in fields:
            arguments[name] = read_as(fields[name], (*path, name))
    arguments |= {"low": numbers[0], "high": numbers[-1]}
    return IntKnob(**arguments) if kind == "int" else FloatKnob(**arguments)


def _role(content: Document, fields: Mapping[str, Any], path: Path, unit: str) -> Role:
    given = content.text(fields["role"], (*path, "role"))
    content.reject_unknown(given, roles.CANONICAL, (*path, "role"), "role")
    role = next(known for known in roles.CANONICAL if known == given)
    if role == "wait" and unit and unit not in roles.MICROSECONDS:
        expected = ", ".join(roles.MICROSECONDS)
        raise content.error((*path, "unit"), f"{unit!r}, but a wait is in one of {expected}")
    return role


def _check_setting(content: Document, knob: SearchedKnob, setting: Setting, key: str) -> None:
    values: tuple[Value, ...] = knob.values()
    # For a range, the ends as in the file.
    for value in (values[0], values[-1]) if key == "range" else values:
        try:
            setting.validate(value, content.file)
        except InvalidSettings:
            text = f"the engine does not accept {value!r}, expected {_allowed_text(setting)}"
            raise content.error(("knobs", knob.name, key), text) from None


def _allowed_text(setting: Setting) -> str:
    low, high = setting.low, setting.high
    if low is None or high is None:
        return setting.describe_allowed()
    return setting.describe_allowed().replace(f"{low:g} to {high:g}", f"{low:.12g} to {high:.12g}")
