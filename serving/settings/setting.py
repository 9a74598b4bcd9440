"""One setting: type, default, unit and range, for checks, error texts and documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from serving.error_text import rename_hint
from serving.errors import InvalidSettings

Value = int | float | str | bool | None


@dataclasses.dataclass(frozen=True, slots=True)
class SettingRange:
    """Unit, inclusive range, and whether a setting can change live."""

    unit: str = ""
    low: float | None = None
    high: float | None = None
    live: bool = True
    check: Callable[[str], object] | None = None


def setting(
    default: Any,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    live: bool = True,
    check: Callable[[str], object] | None = None,
) -> Any:
    """Field of a group, with its range as metadata."""
    limits = SettingRange(unit, low, high, live, check)
    return dataclasses.field(default=default, metadata={"limits": limits})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpec:
    """One setting: name, type, default, unit and range."""

    name: str
    kinds: tuple[type, ...]
    choices: tuple[str, ...]
    optional: bool
    default: Value
    limits: SettingRange

    def validate(self, value: object, source: str) -> Value:
        """Value in the setting's type.

        Raises:
            InvalidSettings: the value is not allowed.
        """
        if value is None:
            if self.optional:
                return None
            raise self._wrong(value, source)
        if value in self.choices:
            return str(value)
        if not self.kinds:
            raise self._wrong(value, source)
        if str in self.kinds:
            if not isinstance(value, str) or not value:
                raise self._wrong(value, source)
            if self.limits.check is not None:
                self.limits.check(value)
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(value, source)
        low, high = self.limits.low, self.limits.high
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            raise self._wrong(value, source)
        if int not in self.kinds:
            return float(value)
        if value != int(value):
            raise self._wrong(value, source)
        return int(value)

    def describe_allowed(self) -> str:
        """Describe the allowed values."""
        choices = ", ".join(self.choices)
        if not self.kinds:
            return f"one of {choices}"
        noun = (
            "text" if str in self.kinds else "a whole number" if int in self.kinds else "a number"
        )
        if self.limits.low is not None:
            noun += f" from {self.limits.low:g} to {self.limits.high:g}"
        if self.limits.unit:
            noun += f" ({self.limits.unit})"
        noun += f", {choices}" if choices else ""
        return noun + (" or null" if self.optional else "")

    def _wrong(self, value: object, source: str) -> InvalidSettings:
        hint = rename_hint(str(value), self.choices)
        return InvalidSettings(
            f"{source}: {self.name} = {value!r:.200}{hint}, expected {self.describe_allowed()}"
        )
