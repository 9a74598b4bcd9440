"""Roles of number knobs: what another engine's knob is called and counted in by Luthier. Pure.

A knob declares its role (`role:` in its file), or has one by its name. Only a role says what a knob
does: one without a role may do anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tuner.space.knobs import FloatKnob, IntKnob, Knob, NumberKnob, Role
from tuner.space.narrowing import ENGINE_CPU
from tuner.values.configuration import Value

CANONICAL: Mapping[Role, str] = {
    "replicas": "replica.count",
    "threads": "replica.threads",
    "batch": "batching.max_size",
    "wait": "batching.timeout_us",
    "quota": "replica.cpu",
    "total_quota": ENGINE_CPU,
}
"""Luthier's name for the knob of each role."""
WAIT_MS = "batching.wait_ms"
"""Knob of mosec, whose recorded benchmark tables declare no roles."""
BY_NAME: Mapping[str, Role] = {name: role for role, name in CANONICAL.items()} | {WAIT_MS: "wait"}
"""Roles of knobs that declare none."""
MICROSECONDS: Mapping[str, int] = {"us": 1, "ms": 1_000, "s": 1_000_000}
"""Units of a wait."""

Translator = Callable[[Mapping[str, Value]], dict[str, Value]]


def role_of(knob: Knob) -> Role | None:
    """Return the role that a knob declares, else the one of its name."""
    if not isinstance(knob, IntKnob | FloatKnob):
        return None
    return knob.role or BY_NAME.get(knob.name)


def translator(knobs: Iterable[Knob]) -> Translator:
    """Return a function that gives a configuration's knobs with a role Luthier's names and units.

    Other knobs are left out, and so is one whose role by its name belongs to another knob: the one
    that declares it, or the one with Luthier's own name.
    """
    terms = [
        (knob.name, CANONICAL[role], _factor(knob) if role == "wait" else 1)
        for role, knob in _by_role(knobs).items()
    ]

    def canonical(configuration: Mapping[str, Value]) -> dict[str, Value]:
        return {
            name: configuration[own] * factor for own, name, factor in terms if own in configuration
        }

    return canonical


def _by_role(knobs: Iterable[Knob]) -> dict[Role, NumberKnob]:
    numbers = {knob.name: knob for knob in knobs if isinstance(knob, IntKnob | FloatKnob)}
    found: dict[Role, NumberKnob] = {
        knob.role: knob for knob in numbers.values() if knob.role is not None
    }
    for name, role in BY_NAME.items():
        if name in numbers and numbers[name].role is None:
            found.setdefault(role, numbers[name])
    return found


def _factor(knob: NumberKnob) -> int:
    default = "ms" if knob.name == WAIT_MS else "us"
    return MICROSECONDS.get(knob.unit, MICROSECONDS[default])
