"""One setting: type, default, unit and range, for checks, error messages and documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from serving.error_text import rename_hint
from serving.errors import InvalidSettings

Value = int | float | str | bool | None


def setting(
    default: Any,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    *,
    live: bool = True,
    check: Callable[[str], object] | None = None,
) -> Any:
    """Return a field of a group, with the rest of its `SettingSpec` as metadata."""
    spec = {"unit": unit, "low": low, "high": high, "live": live, "check": check}
    return dataclasses.field(default=default, metadata=spec)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SettingSpec:
    """One setting: name, type, default, unit, inclusive range, and whether it can change live."""

    name: str
    kinds: tuple[type, ...]
    choices: tuple[str, ...]
    optional: bool
    default: Value
    unit: str
    low: float | None
    high: float | None
    live: bool
    check: Callable[[str], object] | None

    def validate(self, value: object, source: str) -> Value:
        """Return a value in the setting's type.

        Raises:
            InvalidSettings: the value is not allowed.
        """
        if value is None and self.optional:
            return None
        if value in self.choices:
            return str(value)
        if str in self.kinds:
            if not isinstance(value, str) or not value:
                raise self._wrong(value, source)
            if self.check is not None:
                self.check(value)
            return value
        if not self.kinds or isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(value, source)
        low, high = self.low, self.high
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            raise self._wrong(value, source)
        if int not in self.kinds:
            return float(value)
        if value != int(value):
            raise self._wrong(value, source)
        return int(value)

    def describe_allowed(self) -> str:
        """Return the allowed values in words."""
        choices = ", ".join(self.choices)
        if not self.kinds:
            return f"one of {choices}"
        noun = (
            "text" if str in self.kinds else "a whole number" if int in self.kinds else "a number"
        )
        if self.low is not None:
            noun += f" from {self.low:g} to {self.high:g}"
        if self.unit:
            noun += f" ({self.unit})"
        noun += f", {choices}" if choices else ""
        return noun + (" or null" if self.optional else "")

    def _wrong(self, value: object, source: str) -> InvalidSettings:
        hint = rename_hint(str(value), self.choices)
        return InvalidSettings(
            f"{source}: {self.name} = {value!r:.200}{hint}, expected {self.describe_allowed()}"
        )
