"""Narrowing of knobs to what the machine has, with notes on what is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tuner.space import enumeration
from tuner.space.environment import MACHINE_SYMBOLS, Environment, Machine
from tuner.space.expression import Expression
from tuner.space.knobs import ChoiceKnob, DeviceKnob, Knob, NumberKnob, SearchedKnob

CLOCK = "accelerator.clock_mhz"
"""The only knob whose values come from the device."""
SHARE = "accelerator.share"
OF_DEVICE = frozenset({CLOCK, SHARE})
"""Knobs that some machines lack."""
ENGINE_CPU, ENGINE_MEMORY = "engine.cpu", "engine.memory_mb"


class Narrowed(NamedTuple):
    """Knob on one machine, or None if there is nothing to choose from."""

    knob: SearchedKnob | None
    notes: tuple[str, ...] = ()


def narrow_knob(knob: Knob, machine: Machine) -> Narrowed:
    """Narrow the knob to what the machine has, or raise ValueError if no value fits."""
    if knob.name == CLOCK and not machine.gpu_clocks_mhz:
        return Narrowed(None, (f"{CLOCK} left out: {machine.no_clocks}",))
    if knob.name == SHARE and machine.no_sharing:
        return Narrowed(None, (f"{SHARE} left out: {machine.no_sharing}",))
    if isinstance(knob, DeviceKnob):
        if knob.name != CLOCK:
            raise ValueError(
                f"no device offers choices for {knob.name}; only {CLOCK} takes them from the device"
            )
        found = knob.on(machine.gpu_clocks_mhz)
        lone = (f"{CLOCK} left out: the GPU offers only one clock",)
        return Narrowed(found, () if found else lone)
    if isinstance(knob, ChoiceKnob):
        return Narrowed(knob)
    cores, memory_mb = machine.cores, machine.memory_mb
    if knob.name == CLOCK:
        return _cut(knob, machine.gpu_clocks_mhz.__contains__, "the GPU does not offer it")
    if knob.name in {"replica.cpu", "replica.threads", ENGINE_CPU}:
        has = f"the machine has {cores} core{'s' * (cores > 1)}"
        return _cut(knob, lambda value: value <= cores, has)
    if knob.name in {"replica.memory_mb", ENGINE_MEMORY}:
        return _cut(knob, lambda value: value <= memory_mb, f"the machine has {memory_mb} MiB")
    return Narrowed(knob)


def _cut(knob: NumberKnob, fits: Callable[[float], bool], reason: str) -> Narrowed:
    left_out = [value for value in knob.values() if not fits(value)]
    if not left_out:
        return Narrowed(knob)
    unit = f" {knob.unit}" if knob.unit else ""
    listed = ", ".join(f"{value}" for value in left_out) + unit
    cut = knob.only(fits)
    if cut is None:
        raise ValueError(f"none of its values ({listed}) is possible here: {reason}")
    notes = [f"{knob.name}: {listed} left out: {reason}"]
    if cut.default != knob.default:
        notes.append(f"{knob.name}: default {cut.default}{unit} here, not {knob.default}")
    return Narrowed(cut, tuple(notes))


def ruled_out(
    searched: Sequence[SearchedKnob],
    constraints: Mapping[str, Expression],
    environment: Environment,
) -> Iterator[str]:
    """Yield the values and combinations that the constraints rule out on this machine."""
    symbols = environment.symbols()
    for text, constraint in constraints.items():
        machine = [name for name in symbols if name in constraint.names & set(MACHINE_SYMBOLS)]
        involved = [knob for knob in searched if knob.name in constraint.names]
        if not machine or not involved:
            continue
        found = list(enumeration.assignments(involved, {}, [constraint], symbols))
        size = math.prod(len(knob.values()) for knob in involved)
        if len(found) == size:
            continue
        here = ", ".join(f"{name} = {symbols[name]}" for name in machine)
        for knob in involved:
            possible = {values[knob.name] for values in found}
            lost = [f"{value}" for value in knob.values() if value not in possible]
            if lost:
                unit = f" {knob.unit}" if knob.unit else ""
                yield f"{knob.name}: {', '.join(lost)}{unit} left out: {text} ({here})"
        if len(involved) == 1:
            continue  # its values are reported
        names = " and ".join(knob.name for knob in involved)
        yield f"{text}: leaves {len(found)} of {size} combinations of {names} ({here})"
