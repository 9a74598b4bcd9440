"""Sources of settings, by rising precedence: file, environment, command line."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping
from typing import Any

import yaml

from serving.errors import InvalidSettings
from serving.settings import ServingSettings, flatten
from serving.system import bounded_yaml
from serving.system.bounded_yaml import yaml_problem

ENVIRONMENT_PREFIX = "LUTHIER_"
"""Prefix: `LUTHIER_BATCHING__MAX_SIZE=8` sets `batching.max_size`."""


_EXAMPLE = "a YAML file with settings in their groups, as {batching: {max_size: 8}}"


def read_file(path: pathlib.Path) -> dict[str, Any]:
    """Return the mapping in a YAML settings file, or raise InvalidSettings."""
    try:
        data = bounded_yaml.read(path)
    except OSError as error:
        raise InvalidSettings(
            f"settings file {path} cannot be read: {error.strerror or error}; expected {_EXAMPLE}"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidSettings(
            f"settings file {path} is not YAML: {yaml_problem(error)}; expected {_EXAMPLE}"
        ) from error
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InvalidSettings(f"settings file {path} holds {data!r:.40}, expected {_EXAMPLE}")
    return data


def resolve(
    *,
    file: pathlib.Path | None = None,
    environment: Mapping[str, str] | None = None,
    command_line: Mapping[str, Any] | None = None,
) -> ServingSettings:
    """Merge all sources by rising precedence: defaults, file, environment, command line.

    A free inference port implies a free admin port unless one is named.

    Raises:
        InvalidSettings: a source is invalid; the message names it.
    """
    sources: list[tuple[str, Mapping[str, Any]]] = []
    if file is not None:
        sources.append((f"settings file {file}", read_file(file)))
    sources += [
        ("environment", _from_environment(os.environ if environment is None else environment)),
        ("command line", command_line or {}),
    ]
    settings = ServingSettings()
    named: set[str] = set()
    for source, values in sources:
        settings = settings.with_changes(values, source=source)
        named |= flatten(values, source).keys()
    if settings.server.port == 0 and "server.admin_port" not in named:
        return settings.with_changes({"server.admin_port": 0})
    return settings


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, text in environment.items():
        if key.startswith(ENVIRONMENT_PREFIX) and "__" in key:
            name = key.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".", 1)
            try:
                values[name] = bounded_yaml.parse(text)
            except (yaml.YAMLError, ValueError) as error:
                raise InvalidSettings(
                    f"environment: {key} = {text!r:.200} is not a YAML value: {yaml_problem(error)}"
                ) from error
    return values
