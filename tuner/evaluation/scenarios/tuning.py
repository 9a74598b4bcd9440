"""Scenario as the target of a study: its checks, deadline, rate and search space."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from serving.settings import SETTINGS
from tuner.errors import UsageError
from tuner.evaluation.scenarios import served
from tuner.evaluation.scenarios.emulated import settings_of
from tuner.evaluation.scenarios.values import Scenario, Stream
from tuner.space import files
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob, Knob, NumberKnob
from tuner.space.space import SearchSpace
from tuner.values.configuration import Value

SPACE = "clockwork"
MEMORY, PAGE = served.MEMORY, "clockwork.page_mb"


def check(scenario: Scenario, *, seconds: float) -> None:
    """Raise UsageError if a scenario cannot be tuned with evaluations that last `seconds`."""
    served.check(scenario)
    served.configuration_of(scenario)  # its settings are the serving core's
    for stream in scenario.streams:
        why = _why_not(stream, seconds)
        if why is not None:
            raise UsageError(f"scenario {scenario.name}: stream {stream.name!r} {why}")
    deadlines = sorted({stream.deadline.first_s for stream in scenario.streams})
    if len(deadlines) > 1:
        listed = ", ".join(f"{1e3 * one:g}" for one in deadlines)
        raise UsageError(
            f"scenario {scenario.name}: deadlines of {listed} ms; a study counts "
            "responses within one deadline: give all streams the same deadline_ms"
        )


def _why_not(stream: Stream, seconds: float) -> str | None:
    if stream.clients:
        return (
            "has clients, which send less the slower the responses; a study needs "
            "requests by the clock: give it a rate"
        )
    if stream.deadline.factor != 1.0:
        return (
            "has growing deadlines; a study counts responses within one deadline: give it "
            "one deadline_ms"
        )
    first_s = stream.from_s + (stream.trace[0][0] if stream.trace else 0.0)
    if first_s >= seconds:
        return (
            f"begins after {first_s:g} s, but an evaluation lasts {seconds:g} s (--warmup "
            "and --seconds): let it begin earlier, or evaluate for longer"
        )
    return None


def deadline_ms(scenario: Scenario) -> float:
    """Return the deadline that all streams of a checked scenario share."""
    return round(1e3 * scenario.streams[0].deadline.first_s, 9)


def rate_per_s(scenario: Scenario) -> float:
    """Return the total rate of all streams."""
    traced = sum(
        sum(stream.from_s + at_s < scenario.seconds for at_s, _ in stream.trace)
        for stream in scenario.streams
    )
    return sum(stream.rate_per_s for stream in scenario.streams) + traced / scenario.seconds


def default_space(scenario: Scenario) -> SearchSpace:
    """Return the bundled space around a scenario's values; memory is a knob if it has a budget."""
    found = files.load_bundled(SPACE)
    assert found is not None, "it is bundled"
    own = served.configuration_of(scenario)
    knobs = [_around(knob, own.get(knob.name)) for knob in found.knobs]
    constraints = found.constraints
    if own.get(MEMORY) is None:
        knobs = [knob for knob in knobs if knob.name != MEMORY]
        constraints = tuple(one for one in constraints if MEMORY not in one)
    return dataclasses.replace(
        found, name=scenario.name, knobs=tuple(knobs), constraints=constraints
    )


def with_baseline(space: SearchSpace, scenario: Scenario) -> SearchSpace:
    """Return the space with the scenario's values as defaults, adding them where missing."""
    own = served.configuration_of(scenario)
    knobs = tuple(
        _with_own(knob, own[knob.name]) if knob.name in own else knob for knob in space.knobs
    )
    return dataclasses.replace(space, knobs=knobs)


def with_room(
    space: SearchSpace, scenario: Scenario, *, max_model_mb: float
) -> tuple[SearchSpace, str | None]:
    """Return the space without memory budgets too small for the largest model, and a note.

    Models occupy whole pages, whose size is the scenario's unless it is a knob.
    """
    knobs = {knob.name: knob for knob in space.knobs}
    memory, page = knobs.get(MEMORY), knobs.get(PAGE)
    if not isinstance(memory, IntKnob):
        return space, None
    own_mb = settings_of(scenario).clockwork.page_mb
    sizes = page.values() if isinstance(page, FloatKnob) else (own_mb,)
    needed = {size: size * max(1, math.ceil(max_model_mb / size)) for size in sizes}
    least = min(needed.values())
    kept = memory.only(lambda value: value >= least)
    if kept is None:
        return space, None  # the first launch raises the error
    constraints = [
        f"{PAGE} != {size!r} or {MEMORY} >= {need!r}"
        for size, need in needed.items()
        if need > kept.low
    ]
    if kept.values() == memory.values() and not constraints:
        return space, None
    found = dataclasses.replace(
        space,
        knobs=tuple(kept if knob is memory else knob for knob in space.knobs),
        constraints=(*space.constraints, *constraints),
    )
    left_out = [f"{value}" for value in memory.values() if value not in kept.values()]
    if not left_out:
        return found, None
    return found, (
        f"{MEMORY}: {', '.join(left_out)} MiB left out: the largest model takes "
        f"{max_model_mb:.3g} MiB, {least:g} MiB in whole pages, which a smaller budget "
        "cannot hold"
    )


def _with_own(knob: Knob, own: Value) -> Knob:
    if isinstance(knob, DeviceKnob) or own == knob.default:
        return knob
    if isinstance(knob, ChoiceKnob):
        assert isinstance(own, str | bool), "settings have been checked"
        choices = knob.choices if own in knob.choices else (*knob.choices, own)
        return dataclasses.replace(knob, choices=choices, default=own)
    assert isinstance(own, int | float), "settings have been checked"
    return _with(knob, sorted({*knob.values(), own}), own)


def _around(knob: Knob, own: Value | None) -> Knob:
    if own is None or isinstance(own, str) or not isinstance(knob, IntKnob | FloatKnob):
        return knob
    if knob.name == MEMORY:
        most = SETTINGS[MEMORY].high or math.inf
        values = [min(most, own / knob.default * value) for value in knob.values()]
        return _with(knob, values, own)
    if own in knob.values():
        return _with(knob, knob.values(), own)
    place = knob.to_unit(min(max(own, knob.low), knob.high))
    nearest = min(knob.values(), key=lambda value: abs(knob.to_unit(value) - place))
    return _with(knob, [own if value == nearest else value for value in knob.values()], own)


def _with(knob: NumberKnob, values: Sequence[float], default: float) -> Knob:
    if isinstance(knob, IntKnob):
        least = 0 if knob.low == 0 or knob.zero else 1
        found: list[Any] = sorted({max(least, round(v)) for v in values} | {round(default)})
    else:
        found = sorted(float(value) for value in values)
    zero = knob.scale == "log" and found[0] == 0
    grid = tuple(found[1:] if zero else found)
    return dataclasses.replace(
        knob,
        low=grid[0],
        high=grid[-1],
        grid=grid,
        step=None,
        points=None,
        zero=zero,
        default=type(grid[0])(default),
    )
