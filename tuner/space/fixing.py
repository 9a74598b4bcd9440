"""Fixing of knobs to one value in all evaluations. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from serving.error_text import nearest
from tuner.errors import InvalidSpace, UsageError
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob, Knob
from tuner.space.space import SearchSpace
from tuner.values.configuration import Value

TRUTHS = {"true": True, "false": False}


def fix_knobs(space: SearchSpace, given: Sequence[str]) -> SearchSpace:
    """Return the space with each `KNOB=VALUE` fixed; a number may lie off the grid.

    Raises:
        UsageError: a knob is unknown, a value is out of range, or no knob is left to search.
        InvalidSpace: the constraints leave no configuration.
    """
    for one in given:
        name, _, text = one.partition("=")
        knob = next((knob for knob in space.knobs if knob.name == name), None)
        if knob is None:
            names = [known.name for known in space.knobs]
            raise UsageError(
                f"--fix {one}: the search space has no knob {name!r}{nearest(name, names)}; "
                f"it has {', '.join(names)}"
            )
        try:
            space = _with(space, knob, _value(knob, text))
        except ValueError as error:
            raise UsageError(f"--fix {one}: {error}") from None
    if given and all(not isinstance(k, DeviceKnob) and len(k.values()) == 1 for k in space.knobs):
        raise UsageError(f"--fix {' --fix '.join(given)}: no knob is left to search; fix fewer")
    return space


def _with(space: SearchSpace, knob: Knob, value: Value) -> SearchSpace:
    def changed(after: Knob, constraints: tuple[str, ...] = space.constraints) -> SearchSpace:
        knobs = tuple(after if one is knob else one for one in space.knobs)
        return dataclasses.replace(space, knobs=knobs, constraints=constraints)

    try:
        return changed(_alone(knob, value))
    except InvalidSpace:
        if not isinstance(knob, ChoiceKnob) or not isinstance(value, str):
            raise
    # If an expression names another choice, all stay and a constraint decides.
    ruled = (*space.constraints, f"{knob.name} == {value!r}")
    return changed(dataclasses.replace(knob, default=value), ruled)


def _alone(knob: Knob, value: Any) -> Knob:
    if isinstance(knob, ChoiceKnob):
        return dataclasses.replace(knob, choices=(value,), default=value)
    condition, role = ("", None) if isinstance(knob, DeviceKnob) else (knob.condition, knob.role)
    # Only the machine knows whether a device offers it. Linear, as a log scale cannot hold 0.
    kind = FloatKnob if isinstance(knob, FloatKnob) else IntKnob
    return kind(
        name=knob.name,
        unit=knob.unit,
        low=value,
        high=value,
        grid=(value,),
        default=value,
        condition=condition,
        role=role,
    )


def _value(knob: Knob, text: str) -> Value:
    if isinstance(knob, ChoiceKnob):
        truth = TRUTHS.get(text.lower())
        value: Value = text if truth is None or truth not in knob.choices else truth
        knob.check(value)
        return value
    is_whole = isinstance(knob, IntKnob | DeviceKnob)
    try:
        number = int(text) if is_whole else float(text)
    except ValueError:
        known = "" if isinstance(knob, DeviceKnob) else f" from {knob.low:g} to {knob.high:g}"
        kind = "a whole number" if is_whole else "a number"
        raise ValueError(f"{text!r} is not {kind}; expected one{known}") from None
    if not isinstance(knob, DeviceKnob):
        knob.check(number)
    return number
