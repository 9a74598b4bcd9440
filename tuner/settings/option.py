"""A settings field that is an option of `tune` as well."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

from tuner.errors import UsageError

_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?")


def duration_s(text: str) -> float:
    """Parse `90`, `90s`, `10m` or `1h30m` into seconds, or raise ValueError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not a duration, expected for example 90s, 10m or 1h30m")
    hours, minutes, seconds = (float(part) if part else 0.0 for part in match.groups())
    return 3600 * hours + 60 * minutes + seconds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Command-line option of a field."""

    flag: str
    parse: Callable[[str], Any]
    metavar: str
    help: str
    choices: tuple[str, ...] | None = None
    is_repeated: bool = False
    """Fills a tuple."""
    is_flag: bool = False
    """Takes no value and sets true."""
    instead: str | None = None
    """Alternative field; a command with both requires neither alone."""
    more: str = ""
    """Help text added by a command with both."""


def option_field(
    default: Any,
    flag: str,
    metavar: str,
    help_text: str,
    *,
    parse: Callable[[str], Any] = str,
    choices: tuple[str, ...] | None = None,
    is_repeated: bool = False,
    is_flag: bool = False,
    instead: str | None = None,
    more: str = "",
) -> Any:
    """Return a field with its option; a `dataclasses.MISSING` default makes it required."""
    option = Option(
        flag=flag,
        parse=parse,
        metavar=metavar,
        help=help_text,
        choices=choices,
        is_repeated=is_repeated,
        is_flag=is_flag,
        instead=instead,
        more=more,
    )
    if default is dataclasses.MISSING:
        return dataclasses.field(metadata={"option": option})
    return dataclasses.field(default=default, metadata={"option": option})


def options(group: type) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Yield a group's fields with options."""
    for field in dataclasses.fields(group):
        yield field, field.metadata["option"]


def require(is_met: bool, flag: str, given: object, expected: str) -> None:
    """Raise `UsageError` unless a condition is met."""
    if not is_met:
        raise UsageError(f"{flag} {given}: expected {expected}")
