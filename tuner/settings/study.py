"""All settings of a study, and their format in `settings.yaml`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from serving.error_text import nearest
from tuner.errors import UsageError
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.option import options
from tuner.settings.search import SearchSettings
from tuner.settings.store import StoreSettings
from tuner.settings.target import TargetSettings
from tuner.settings.workload import NO_ARRIVALS, NO_LOAD, RATE

KINDS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
OF_THE_LOAD = ("throughput", "time-per-item")
"""Objectives whose value the rate of an open loop determines."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudySettings:
    """All settings of a study."""

    target: TargetSettings
    search: SearchSettings = dataclasses.field(default_factory=SearchSettings)
    measurement: MeasurementSettings = dataclasses.field(default_factory=MeasurementSettings)
    store: StoreSettings = dataclasses.field(default_factory=StoreSettings)

    def __post_init__(self) -> None:
        if self.target.scenario is not None:
            self._check_scenario()
        if self.measurement.objective == RATE and self.target.rate is not None:
            raise UsageError(
                f"--rate {self.target.rate:g}: --find-rate searches for the rate itself; "
                "leave one of them out"
            )
        if self.target.concurrency is None and not self.is_open:
            raise UsageError(NO_LOAD)
        clients = self.measurement.load_clients
        if clients > self.target.in_flight:
            raise UsageError(
                f"--load-clients {clients}: expected at most one for each of the "
                f"{self.target.in_flight} requests in flight"
            )
        if self.target.arrivals is not None and not self.is_open:
            raise UsageError(f"--arrivals {self.target.arrivals}: {NO_ARRIVALS}")
        if self.target.is_open and not set(self.measurement.names).isdisjoint(OF_THE_LOAD):
            raise UsageError(
                f"--objective {self.measurement.objective}: fixed by the rate of an open "
                "loop; choose a latency"
            )

    def _check_scenario(self) -> None:
        measurement = self.measurement
        if RATE in measurement.names:
            raise UsageError(
                f"--objective {RATE}: a scenario defines its own rates; choose goodput"
            )
        if measurement.requests is not None:
            raise UsageError(
                f"--requests {measurement.requests}: a scenario is measured for a time; "
                "use --seconds S"
            )
        if measurement.load_clients > 1:
            raise UsageError(
                f"--load-clients {measurement.load_clients}: the requests of a scenario are sent by one"
            )
        if not measurement.counts_goodput:
            raise UsageError(
                f"--objective {measurement.objective}: covers only answered requests, so "
                "rejecting many may look best; choose goodput, combine it with goodput, "
                "or add --constraint 'goodput_per_s >= NUMBER'"
            )

    @property
    def is_open(self) -> bool:
        """Whether the study uses an open loop."""
        return self.target.is_open or self.measurement.objective == RATE

    def as_nested(self) -> dict[str, dict[str, Any]]:
        """Return the settings as mappings by group, as in `settings.yaml`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_nested(cls, tree: Mapping[str, Any], *, source: str) -> StudySettings:
        """Return the settings that `as_nested` converted, or raise UsageError."""
        _check_keys(tree, GROUPS, source)
        groups: dict[str, Any] = {}
        for name, kind in GROUPS.items():
            values = tree.get(name, {})
            if not isinstance(values, Mapping):
                raise UsageError(
                    f"{source}: {name} holds {type(values).__name__}, expected a mapping"
                )
            try:
                groups[name] = kind(**_checked(values, kind, f"{source}, {name}"))
            except TypeError as error:
                raise UsageError(f"{source}, {name}: {error}") from error
        return cls(**groups)


GROUPS: dict[str, type] = {
    "target": TargetSettings,
    "search": SearchSettings,
    "measurement": MeasurementSettings,
    "store": StoreSettings,
}


def _check_keys(given: Mapping[str, Any], valid: Any, source: str) -> None:
    for key in given:
        if key not in valid:
            raise UsageError(
                f"{source}: unknown key {key!r}{nearest(str(key), valid)} "
                f"(known: {', '.join(valid)})"
            )


def _checked(given: Mapping[str, Any], group: type, source: str) -> dict[str, Any]:
    known, kinds = (
        {field.name: option for field, option in options(group)},
        typing.get_type_hints(group),
    )
    _check_keys(given, list(known), source)
    found = dict(given)
    for key, value in given.items():
        if known[key].is_repeated:
            if not isinstance(value, list | tuple) or not all(
                isinstance(one, str) for one in value
            ):
                raise UsageError(f"{source}: {key} holds {value!r}, expected a list of texts")
            found[key] = tuple(value)
            continue
        allowed = typing.get_args(kinds[key]) or (kinds[key],)
        fits = isinstance(value, allowed) or (float in allowed and isinstance(value, int))
        if not fits or isinstance(value, bool) != (bool in allowed):  # bool is an int
            expected = " or ".join(KINDS[kind] for kind in allowed if kind in KINDS)
            raise UsageError(f"{source}: {key} holds {value!r}, expected {expected}")
    return found
