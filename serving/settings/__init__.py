"""Settings of the serving core: one field per setting, one module per stage.

A setting's dotted name (`batching.max_size`) is the same everywhere.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, Literal, cast

from serving.error_text import nearest
from serving.errors import InvalidSettings
from serving.settings.cluster import ClusterSettings
from serving.settings.replica import AcceleratorSettings, ModelSettings, ReplicaSettings
from serving.settings.scheduling import (
    BatchingSettings,
    CacheSettings,
    ClockworkSettings,
    RoutingSettings,
    SchedulingSettings,
)
from serving.settings.server import ServerSettings
from serving.settings.setting import SettingSpec, Value

_SERVER_WIDE = ("server.", "cluster.", "accelerator.clock_mhz")
_MODELS = "models"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServingSettings:
    """All settings of one server."""

    replica: ReplicaSettings = dataclasses.field(default_factory=ReplicaSettings)
    model: ModelSettings = dataclasses.field(default_factory=ModelSettings)
    batching: BatchingSettings = dataclasses.field(default_factory=BatchingSettings)
    accelerator: AcceleratorSettings = dataclasses.field(default_factory=AcceleratorSettings)
    cache: CacheSettings = dataclasses.field(default_factory=CacheSettings)
    routing: RoutingSettings = dataclasses.field(default_factory=RoutingSettings)
    scheduling: SchedulingSettings = dataclasses.field(default_factory=SchedulingSettings)
    clockwork: ClockworkSettings = dataclasses.field(default_factory=ClockworkSettings)
    server: ServerSettings = dataclasses.field(default_factory=ServerSettings)
    cluster: ClusterSettings = dataclasses.field(default_factory=ClusterSettings)
    models: Mapping[str, Mapping[str, Value]] = dataclasses.field(default_factory=dict)
    """Overrides for single models: model -> setting -> value."""

    def of(self, model: str) -> ServingSettings:
        """Return the settings of one model, with its overrides applied."""
        own = self.models.get(model, {})
        return dataclasses.replace(self.with_changes(own) if own else self, models={})

    def notes(self, served: Collection[str]) -> list[str]:
        """Return a warning for each overridden model that is not served, perhaps misspelt."""
        known = ", ".join(sorted(served)) or "none"
        return [
            f"models.{model}: no such model is served{nearest(model, served)} (served: "
            f"{known}); its settings take effect once there is one"
            for model in self.models
            if model not in served
        ]

    def flat(self) -> dict[str, Value]:
        """Return all settings by dotted name; overrides begin with `models.NAME.`."""
        flat: dict[str, Value] = {}
        for name in SETTINGS:
            group, field = name.split(".")
            flat[name] = getattr(getattr(self, group), field)
        for model, own in self.models.items():
            flat |= {f"{_MODELS}.{model}.{name}": value for name, value in own.items()}
        return flat

    def as_nested(self) -> dict[str, Any]:
        """Return the form of a settings file: a mapping per group."""
        tree: dict[str, Any] = {}
        for name, value in self.flat().items():
            *groups, field = name.split(".")
            place = tree
            for group in groups:
                place = place.setdefault(group, {})
            place[field] = value
        return tree

    def with_overrides_of(
        self, model: str, given: ServingSettings, knobs: Collection[str] = ()
    ) -> ServingSettings:
        """Return a copy with the model's overrides from `given`, for all settings or `knobs`."""
        now, then = self.models.get(model, {}), given.models.get(model, {})
        own = {knob: value for knob, value in now.items() if knobs and knob not in knobs}
        own |= {knob: value for knob, value in then.items() if not knobs or knob in knobs}
        others = {name: values for name, values in self.models.items() if name != model}
        return dataclasses.replace(self, models={**others, model: own} if own else others)

    def with_changes(
        self, values: Mapping[str, Any], *, source: str = "settings"
    ) -> ServingSettings:
        """Return a copy with changes by dotted name or nested group; `source` is named in errors.

        Raises:
            InvalidSettings: a name is unknown, or a value has the wrong type or range.
        """
        groups: dict[str, dict[str, Value]] = {}
        models = {model: dict(own) for model, own in self.models.items()}
        for name, value in flatten(values, source).items():
            model, knob = _of_model(name)
            if knob not in SETTINGS or (model and knob.startswith(_SERVER_WIDE)):
                raise InvalidSettings(
                    f"{source}: unknown setting {name!r}{nearest(knob, SETTINGS)}; "
                    "docs/settings.md lists the settings"
                )
            checked = SETTINGS[knob].validate(value, source)
            if model:
                models.setdefault(model, {})[knob] = checked
            else:
                group, field = knob.split(".", 1)
                groups.setdefault(group, {})[field] = checked
        return dataclasses.replace(
            self,
            models=models,
            **{
                group: dataclasses.replace(getattr(self, group), **fields)
                for group, fields in groups.items()
            },
        )


def flatten(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return nested settings as a mapping by dotted name."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if key == _MODELS and isinstance(value, Mapping):
            for model, own in value.items():
                if not isinstance(own, Mapping):
                    raise InvalidSettings(
                        f"{source}: models.{model} = {own!r:.200}, expected a mapping of settings"
                    )
                inner_flat = flatten(own, source)
                flat |= {f"{_MODELS}.{model}.{name}": inner for name, inner in inner_flat.items()}
        elif isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": inner_value for inner, inner_value in value.items()}
        elif "." in str(key):
            flat[str(key)] = value
        elif key in _GROUPS:
            if value is not None:  # an empty group, such as one with only comments
                raise InvalidSettings(
                    f"{source}: {key} = {value!r:.200}, expected a mapping of its settings, "
                    f"as {{batching: {{max_size: 8}}}}"
                )
        else:
            raise InvalidSettings(
                f"{source}: {key!r} is not a group of settings{nearest(str(key), _GROUPS)} "
                f"(groups: {', '.join(_GROUPS)})"
            )
    return flat


def _of_model(name: str) -> tuple[str, str]:
    if not name.startswith(f"{_MODELS}."):
        return "", name
    _, model, knob = ([*name.split(".", 2), "", ""])[:3]
    return model, knob


def _table() -> dict[str, SettingSpec]:
    table: dict[str, SettingSpec] = {}
    for group in dataclasses.fields(ServingSettings):
        if group.name == _MODELS:
            continue
        part: Any = group.default_factory
        hints = typing.get_type_hints(part)
        for field in dataclasses.fields(part):
            hint = hints[field.name]
            is_union = typing.get_origin(hint) in {typing.Union, types.UnionType}
            members = typing.get_args(hint) if is_union else (hint,)
            choices = tuple(
                c for m in members if typing.get_origin(m) is Literal for c in typing.get_args(m)
            )
            name = f"{group.name}.{field.name}"
            table[name] = SettingSpec(
                name=name,
                kinds=tuple(m for m in members if isinstance(m, type) and m is not types.NoneType),
                choices=choices,
                optional=types.NoneType in members,
                default=cast("Value", field.default),
                **field.metadata,
            )
    return table


_GROUPS = tuple(field.name for field in dataclasses.fields(ServingSettings))
SETTINGS: Mapping[str, SettingSpec] = types.MappingProxyType(_table())
"""All settings by dotted name."""
