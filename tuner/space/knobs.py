"""Knobs: searched settings, with their values and positions in [0, 1].

A knob has a range of valid values and a grid of searched ones, as a few dozen noisy trials cannot
distinguish values a few per cent apart. A log scale lacks 0 (off, or at once), so `zero` adds it
one grid step below `low`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, Generic, Literal, Self, TypeVar, cast

from tuner.values.configuration import Value
from tuner.values.study_record import KnobInfo

DEFAULT_POINTS = 8
"""Default number of values, except for linear ranges of whole numbers."""
MAX_VALUES = 1000
Scale = Literal["linear", "log"]
Role = Literal["replicas", "threads", "batch", "wait", "quota", "total_quota"]
Number = TypeVar("Number", int, float)


class KnobError(ValueError):
    """Inconsistent knob; `field` is the offending key."""

    def __init__(self, field: str, text: str) -> None:
        super().__init__(field, text)
        self.field = field
        self.text = text

    def __str__(self) -> str:
        return f"{self.field}: {self.text}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _NumberKnob(Generic[Number]):
    name: str
    default: Number
    low: Number
    high: Number
    unit: str = ""
    scale: Scale = "linear"
    step: Number | None = None
    """Distance between grid values; linear scale only."""
    points: int | None = None
    """Number of grid values, evenly spaced on the scale, ends included."""
    grid: tuple[Number, ...] = ()
    """Explicit ascending grid instead of `step` or `points`, without the 0 of `zero`."""
    zero: bool = False
    """Whether 0 is allowed in addition to a log range."""
    condition: str = ""
    """Expression over other knobs; while false, this knob is inactive, at its default."""
    role: Role | None = None
    """Declared role (`tuner.space.roles`)."""

    def __post_init__(self) -> None:
        _check_range(self)
        _check_grid(self)
        if not self._is_right_type(self.default) or not self._is_in_range(self.default):
            raise KnobError("default", f"{self.default!r}, expected {self._describe_allowed()}")
        try:
            self.values()
        except ValueError as error:
            raise KnobError("range", str(error)) from None
        choices: tuple[Value, ...] = (0, *self.grid) if self.zero else self.grid
        if self.grid and self.default not in choices:
            raise KnobError(
                "default", f"{self.default!r} is not one of the choices {_list_values(choices)}"
            )

    def values(self) -> tuple[Number, ...]:
        """Return the searched grid in ascending order, including the default."""
        return cast("tuple[Number, ...]", _grid(self))

    def check(self, value: object) -> None:
        """Raise ValueError for a value of the wrong type or out of range."""
        if not self._is_right_type(value) or not self._is_in_range(value):
            raise ValueError(f"{self.name} = {value!r}, expected {self._describe_allowed()}")

    def to_unit(self, value: Value) -> float:
        """Return a value's position on the scale, in [0, 1]."""
        self.check(value)
        assert not isinstance(value, str)
        if self.zero and value == 0:
            return 0.0
        gap = 1 / (len(self.values()) - 1) if self.zero else 0.0
        if self.low == self.high:
            return gap
        if self.scale == "log":
            place = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            place = (value - self.low) / (self.high - self.low)
        return gap + (1.0 - gap) * min(max(place, 0.0), 1.0)

    def only(self, is_kept: Callable[[Number], bool]) -> Self | None:
        """Return the knob with only the kept values, or None if at most the 0 of `zero` is left.

        A dropped default is replaced by the nearest value.
        """
        kept = [value for value in self.values() if is_kept(value)]
        grid = tuple(value for value in kept if not (self.zero and value == 0))
        if not grid:
            return None
        default = min(kept, key=lambda value: abs(value - self.default))
        cut: dict[str, Any] = {"low": grid[0], "high": grid[-1], "grid": grid, "default": default}
        zero = self.zero and 0 in kept
        return dataclasses.replace(self, step=None, points=None, zero=zero, **cut)

    def _is_right_type(self, value: object) -> bool:
        kinds = int if isinstance(self, IntKnob) else int | float
        return isinstance(value, kinds) and not isinstance(value, bool)

    def _is_in_range(self, value: object) -> bool:
        assert isinstance(value, int | float)
        return bool(self.low <= value <= self.high or (self.zero and value == 0))

    def _describe_allowed(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        return f"{_noun(self)} from {self.low!r} to {self.high!r}{unit}" + (
            ", or 0" if self.zero else ""
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class IntKnob(_NumberKnob[int]):
    """Knob with whole numbers; a linear range includes all of them by default."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FloatKnob(_NumberKnob[float]):
    """Knob with real numbers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceKnob:
    """Knob with an unordered choice of strings or booleans."""

    name: str
    default: str | bool
    choices: tuple[str | bool, ...]
    unit: str = ""
    condition: str = ""

    def __post_init__(self) -> None:
        if not self.choices or len(set(self.choices)) != len(self.choices):
            raise KnobError(
                "choices", f"{_list_values(self.choices)}: expected one or more different choices"
            )
        if self.default not in self.choices:
            raise KnobError(
                "default",
                f"{self.default!r} is not one of the choices {_list_values(self.choices)}",
            )

    def values(self) -> tuple[str | bool, ...]:
        """Return the choices, in the given order."""
        return self.choices

    def check(self, value: object) -> None:
        """Raise ValueError for a value that is not a choice."""
        if not isinstance(value, str | bool) or value not in self.choices:
            raise ValueError(
                f"{self.name} = {value!r}, expected one of {_list_values(self.choices)}"
            )

    def to_unit(self, value: Value) -> float:
        """Return a choice's position, evenly spread; the order of positions has no meaning."""
        self.check(value)
        return self.values().index(value) / max(1, len(self.choices) - 1)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKnob:
    """Knob whose whole numbers come from the device; `on` turns it into an `IntKnob`."""

    name: str
    unit: str = ""
    points: int = DEFAULT_POINTS
    """Maximum number of offered values to use, ends included."""

    def __post_init__(self) -> None:
        if self.points < 2:
            raise KnobError(
                "points", f"{self.points}, expected at least 2: both ends of what the device offers"
            )

    def on(self, offered: tuple[int, ...]) -> IntKnob | None:
        """Return a knob over the offered values, default the highest; None for fewer than two."""
        known = sorted(set(offered))
        if len(known) < 2:
            return None
        count = min(self.points, len(known))
        kept = tuple(known[round(i * (len(known) - 1) / (count - 1))] for i in range(count))
        return IntKnob(
            name=self.name, unit=self.unit, low=kept[0], high=kept[-1], grid=kept, default=kept[-1]
        )


NumberKnob = IntKnob | FloatKnob
SearchedKnob = IntKnob | FloatKnob | ChoiceKnob
Knob = IntKnob | FloatKnob | ChoiceKnob | DeviceKnob


def knob_info(knob: SearchedKnob) -> KnobInfo:
    """Return the knob's properties for reports."""
    scale: Scale = "linear" if isinstance(knob, ChoiceKnob) else knob.scale
    return KnobInfo(
        name=knob.name, unit=knob.unit, scale=scale, values=knob.values(), default=knob.default
    )


def _check_range(knob: _NumberKnob[Number]) -> None:
    ends: tuple[Any, ...] = (knob.low, knob.high, *knob.grid)
    for end in ends:
        if not knob._is_right_type(end) or not math.isfinite(end):  # noqa: SLF001 - the same file
            raise KnobError("range", f"{end!r} is not {_noun(knob)}")
    if knob.low > knob.high:
        raise KnobError("range", f"[{knob.low!r}, {knob.high!r}], expected the lower end first")
    if knob.scale not in {"linear", "log"}:
        raise KnobError("scale", f"{knob.scale!r}, expected linear or log")
    if knob.scale == "log" and knob.low <= 0:
        raise KnobError(
            "range",
            f"a log scale starts above 0, not at {knob.low!r}; `zero: true` adds 0",
        )
    if knob.zero and knob.scale != "log":
        raise KnobError("zero", "0 is added only to a log range; a linear range can begin at 0")


def _check_grid(knob: _NumberKnob[Number]) -> None:
    if sum((bool(knob.grid), knob.step is not None, knob.points is not None)) > 1:
        raise KnobError(
            "points" if knob.points is not None else "step", "only one of choices, step and points"
        )
    if knob.step is not None:
        if knob.scale == "log":
            raise KnobError(
                "step", "a log scale has no step; give the number of values with `points`"
            )
        if not knob.step > 0:
            raise KnobError("step", f"{knob.step!r}, expected a number above 0")
    if knob.points is not None and not 2 <= knob.points <= MAX_VALUES:
        raise KnobError("points", f"{knob.points!r}, expected from 2 to {MAX_VALUES}")
    if knob.grid:
        if any(low >= high for low, high in itertools.pairwise(knob.grid)):
            raise KnobError(
                "choices", f"{_list_values(knob.grid)}, expected ascending and different numbers"
            )
        if (knob.grid[0], knob.grid[-1]) != (knob.low, knob.high):
            raise KnobError(
                "choices", f"{_list_values(knob.grid)} do not span {knob.low!r} to {knob.high!r}"
            )


@functools.lru_cache(maxsize=1024)
def _grid(knob: _NumberKnob[Number]) -> tuple[int | float, ...]:
    is_whole = isinstance(knob, IntKnob)
    found: set[int | float] = {*knob.grid, knob.default}
    if not knob.grid:
        is_log = knob.scale == "log"
        low, high, step = float(knob.low), float(knob.high), knob.step
        found |= set(
            spread(low, high, is_log=is_log, is_whole=is_whole, step=step, points=knob.points)
        )
    if knob.zero:
        found.add(0)
    return tuple(int(value) if is_whole else float(value) for value in sorted(found))


def spread(
    low: float, high: float, *, is_log: bool, is_whole: bool, step: float | None, points: int | None
) -> list[float]:
    """Return ascending values from `low` to `high`; raise ValueError for more than `MAX_VALUES`.

    Rounding may make neighbours identical. `is_log` means constant ratios, from `points` only.
    Whole numbers default to step 1 on a linear scale.
    """
    if step is None and points is None and is_whole and not is_log:
        step = 1
    if step is not None:
        count = math.floor((high - low) / step + 1e-9) + 1
        if count > MAX_VALUES:
            raise ValueError(f"{count:,} values, more than {MAX_VALUES}: use `points` instead")
        raw = [low + i * step for i in range(count)]
    else:
        count = points or DEFAULT_POINTS
        shares = [i / (count - 1) for i in range(count)]
        if is_log:
            raw = [low * (high / low) ** share for share in shares]
        else:
            raw = [low + (high - low) * share for share in shares]
    if is_whole:
        return [round(value) for value in raw]
    return [min(max(float(f"{value:.10g}"), low), high) for value in raw]


def _noun(knob: _NumberKnob[Number]) -> str:
    return "a whole number" if isinstance(knob, IntKnob) else "a number"


def _list_values(values: tuple[Value, ...]) -> str:
    return ", ".join(repr(value) for value in values)
