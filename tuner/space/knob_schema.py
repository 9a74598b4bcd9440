"""Knob schemas: which names a search-space file for an engine may use.

Luthier's knobs are `serving.settings.SETTINGS`. Users name another engine's knobs, except for
limits that the tuner imposes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from serving.settings import SETTINGS
from serving.settings.setting import SettingSpec as Setting
from tuner.space import equivalence
from tuner.space.narrowing import ENGINE_CPU, ENGINE_MEMORY, OF_DEVICE

LIMITS: Mapping[str, Setting] = {
    ENGINE_CPU: SETTINGS["replica.cpu"],
    ENGINE_MEMORY: SETTINGS["replica.memory_mb"],
}
"""Limits on another engine's whole server, in the units and ranges of a replica's."""
LIMITS_OF_ANY = ("replica.cpu", "replica.memory_mb", *LIMITS)
"""Limits that the tuner or Luthier imposes."""
RESERVED = (*LIMITS_OF_ANY, *sorted(OF_DEVICE))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnobSchema:
    """Names that an engine's search space may use."""

    settings: Mapping[str, Setting]
    """Knobs whose type, unit and limits are known."""
    others: tuple[str, ...] | None = ()
    """Names of further knobs; None allows any name."""
    rules: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    """Other top-level keys, which are read elsewhere."""
    about_limits: str = ""
    """End of the error message for a reserved name that this engine lacks."""

    def names(self) -> tuple[str, ...]:
        """Return every known name."""
        return (*self.settings, *(self.others or ()))


SERVING = KnobSchema(
    settings=SETTINGS,
    rules=equivalence.RULES,
    about_limits=": this engine limits each replica (replica.cpu, replica.memory_mb)",
)


def of_command(names: Iterable[str], *, beside: tuple[str, ...] = ()) -> KnobSchema:
    """Return the schema for an engine that the tuner starts."""
    return KnobSchema(
        settings=LIMITS,
        others=tuple(names),
        beside=beside,
        about_limits=": for another engine, the whole server is limited (engine.cpu, engine.memory_mb)",
    )


OF_URL = KnobSchema(
    settings={},
    others=None,
    about_limits=": the tuner does not limit servers that it does not start; rename the knob",
)
"""Schema for a running server, whose hook takes any knob."""
OF_ANY = KnobSchema(settings=LIMITS, others=None)
"""Schema for any engine in a benchmark table."""
