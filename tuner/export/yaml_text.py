"""Plain data as YAML, with keys in the given order and multi-line strings as blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Dumper that writes multi-line strings in block style."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def dump(data: Any) -> str:
    """Return data as one YAML document."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def dump_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML, nested by group."""
    tree: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, field = name.split(".", 1)
        tree.setdefault(group, {})[field] = value
    return dump(tree)


def literal(text: str) -> str:
    """Escape a string in which Compose or Kubernetes would expand `$NAME` or `$(NAME)`."""
    return text.replace("$", "$$")
