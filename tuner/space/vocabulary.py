"""Which knobs an engine has, and what is known of each: what a search-space file may name.

Of the serving core every knob is known with type, unit and limits (`serving.settings.KNOBS`), and
so is which of its configurations behave the same. Another engine's knobs are names that its user
chose (`tuner.engines`): of them nothing is assumed but of the limits that the tuner itself imposes.
Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from serving.settings import KNOBS
from serving.settings import Knob as Setting
from tuner.space import equivalence
from tuner.space.narrowing import ENGINE_CPU, ENGINE_MEMORY, OF_DEVICE

LIMITS: Mapping[str, Setting] = {
    ENGINE_CPU: KNOBS["replica.cpu"],
    ENGINE_MEMORY: KNOBS["replica.memory_mb"],
}
"""Limits of another engine's whole server, in the units and ranges of a replica's."""
LIMITS_OF_ANY = ("replica.cpu", "replica.memory_mb", *LIMITS)
"""Limits that the tuner, or the serving core, imposes on an engine of one kind or the other."""
RESERVED = (*LIMITS_OF_ANY, *sorted(OF_DEVICE))
"""Names that mean what the tuner, or the serving core, imposes; for no engine do they mean anything else."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """What a search space for one engine may name."""

    settings: Mapping[str, Setting]
    """Knobs of known type, unit and limits."""
    others: tuple[str, ...] | None = ()
    """Further knobs; None: any name."""
    rules: tuple[str, ...] = ()
    """Equivalence rules of a file that lists none."""
    beside: tuple[str, ...] = ()
    """Keys at the top of the file that are not the space's: somebody else reads them."""
    about_limits: str = ""
    """What to say of a reserved name that this engine has no knob of, as the end of a sentence."""

    def names(self) -> tuple[str, ...]:
        """Every name that is known."""
        return (*self.settings, *(self.others or ()))


SERVING = Vocabulary(
    settings=KNOBS,
    rules=equivalence.RULES,
    about_limits=": this engine limits each replica (replica.cpu, replica.memory_mb)",
)
"""The serving core."""


def of_command(names: Iterable[str], *, beside: tuple[str, ...] = ()) -> Vocabulary:
    """Another engine that the tuner starts: the knobs that its templates name, and the limits."""
    return Vocabulary(
        settings=LIMITS,
        others=tuple(names),
        beside=beside,
        about_limits=": of another engine the whole server is limited (engine.cpu, engine.memory_mb)",
    )


OF_URL = Vocabulary(
    settings={},
    others=None,
    about_limits=": the tuner limits no server that it does not start; name the knob otherwise",
)
"""A running server: its hook takes any knob."""
OF_ANY = Vocabulary(settings=LIMITS, others=None)
"""Whatever engine a recorded surface was of."""
