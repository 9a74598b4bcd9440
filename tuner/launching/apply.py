"""Configuration -> settings of the serving core: the only place where knobs meet settings.

They are the same names, by design; what is decided here is which fields of the settings a configuration
leaves at their defaults. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from serving.settings import KNOBS
from tuner.errors import WrongUse
from tuner.values import Value

Setting = int | float | str | bool | None


def to_settings(configuration: Mapping[str, Value]) -> dict[str, Setting]:
    """Settings by dotted name that make a running engine equal to the configuration.

    Knobs that stand for "no limit" in the engine (null) are never part of a space, so a value is
    always set.

    Raises:
        WrongUse: a knob is not a setting of the engine; spaces are checked when read, so this is a
            broken promise.
    """
    settings: dict[str, Setting] = {}
    for name, value in configuration.items():
        if name not in KNOBS:
            raise WrongUse(f"knob {name!r} is not a setting of the serving core")
        settings[name] = KNOBS[name].checked(value, "configuration")
    return settings


def complete_settings(
    configuration: Mapping[str, Value], always: Mapping[str, Setting] = MappingProxyType({})
) -> dict[str, Setting]:
    """Every live setting of the engine: the configuration's where it has one, else that of `always`, else the default.

    A configuration given this way leaves nothing of the one before it, nor of the environment, in a
    running engine, so that a live launch and a fresh start of it are the same.
    """
    defaults = {name: knob.default for name, knob in KNOBS.items() if knob.limits.live}
    return {**defaults, **always, **to_settings(configuration)}
