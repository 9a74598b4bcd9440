"""Conversion of configurations to settings of Luthier's engine; both use the same names."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from serving.settings import SETTINGS
from tuner.errors import UsageError
from tuner.values.configuration import Value

Setting = int | float | str | bool | None


def to_settings(configuration: Mapping[str, Value]) -> dict[str, Setting]:
    """Return the settings of a configuration by dotted name.

    Spaces have no value for "no limit" (null), so every knob sets a value.

    Raises:
        UsageError: a knob is not a setting, which checking the space should have caught.
    """
    settings: dict[str, Setting] = {}
    for name, value in configuration.items():
        if name not in SETTINGS:
            raise UsageError(f"knob {name!r} is not a setting of the serving core")
        settings[name] = SETTINGS[name].validate(value, "configuration")
    return settings


def complete_settings(
    configuration: Mapping[str, Value], always: Mapping[str, Setting] = MappingProxyType({})
) -> dict[str, Setting]:
    """Return every live setting: from the configuration, from `always`, or its default.

    Earlier configurations and the environment have no influence, so a live change has the effect
    of a new start.
    """
    defaults = {name: knob.default for name, knob in SETTINGS.items() if knob.live}
    return {**defaults, **always, **to_settings(configuration)}
