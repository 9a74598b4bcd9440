"""Settings field that is also an option of `tune`."""

from __future__ import annotations

import dataclasses
import math
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
    """Command-line option for a field."""

    metavar: str
    help: str
    flag: str = ""
    """Flag; by default the field's name with dashes and without the unit `_s`."""
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] | None = None
    is_repeated: bool = False
    """Whether the option can be repeated to fill a tuple."""
    is_flag: bool = False
    """Whether the option takes no value and sets the field to True."""
    instead: str | None = None
    """Alternative to this field; a command that offers both requires neither."""
    more: str = ""
    """Help text added if a command offers both."""


def option_field(default: Any, metavar: str, help_text: str, **more: Any) -> Any:
    """Return a field with its `Option`; a `dataclasses.MISSING` default makes it required."""
    option = Option(metavar=metavar, help=help_text, **more)
    return dataclasses.field(default=default, metadata={"option": option})


def options(group: type) -> Iterator[tuple[dataclasses.Field[Any], Option]]:
    """Yield a group's fields, each with its option."""
    for field in dataclasses.fields(group):
        option = field.metadata["option"]
        flag = option.flag or f"--{field.name.removesuffix('_s').replace('_', '-')}"
        yield field, dataclasses.replace(option, flag=flag)


def require(is_met: bool, flag: str, given: object, expected: str) -> None:
    """Raise UsageError unless the condition is met."""
    if not is_met:
        raise UsageError(f"{flag} {given}: expected {expected}")


def check_range(
    flag: str,
    given: float | None,
    expected: str,
    *,
    low: float = -math.inf,
    high: float = math.inf,
    above: float = -math.inf,
) -> None:
    """Raise UsageError unless the number is None or in its range."""
    is_met = given is None or (low <= given <= high and given > above)
    require(is_met, flag, given, expected)
