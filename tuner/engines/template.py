"""Templates with placeholders in braces, such as `--batch={batching.max_size}`.

Only a dotted name in braces is a placeholder, so other braces (JSON, shell, protobuf text) remain.
`{{name}}` stands for a literal `{name}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from tuner.values.configuration import Configuration, Value

_NAME = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_PLACE = re.compile(rf"\{{\{{(?P<literal>{_NAME})\}}\}}|\{{(?P<name>{_NAME})\}}", re.ASCII)
_PORT = re.compile(r"port(\.[A-Za-z_]\w*)?", re.ASCII)

BUILT_IN: Mapping[str, str] = {
    "port": "free port on 127.0.0.1 for inference requests; `port.NAME` is another one",
    "model": "path of the model's file, or the value of --model if it has none",
    "folder": "folder of the engine file",
    "work": "work folder of this evaluation: holds copies of the engine file's files, removed "
    "afterwards",
    "python": "interpreter that runs `tune`, or that of `--engine NAME:PYTHON`",
}
"""Descriptions of the placeholders that are not knobs."""


def names(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names of all placeholders, in order of appearance."""
    return tuple(dict.fromkeys(name for text in texts for name in _names(text)))


def is_port(name: str) -> bool:
    """Whether a placeholder stands for a port."""
    return _PORT.fullmatch(name) is not None


def is_built_in(name: str) -> bool:
    """Whether a placeholder is built in, as opposed to a knob."""
    return name in BUILT_IN or is_port(name)


def fill(text: str, values: Mapping[str, str]) -> str:
    """Fill in a template; a placeholder without a value remains."""

    def put(match: re.Match[str]) -> str:
        if match["literal"] is not None:
            return f"{{{match['literal']}}}"
        return values.get(match["name"], match[0])

    return _PLACE.sub(put, text)


def format_value(value: Value) -> str:
    """Return a knob's value as template text, with `true` and `false` in lowercase."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def of_knobs(configuration: Configuration) -> dict[str, str]:
    """Return the knobs' values as template text."""
    return {name: format_value(value) for name, value in configuration.items()}


def _names(text: str) -> Iterator[str]:
    for match in _PLACE.finditer(text):
        if match["name"] is not None:
            yield match["name"]
