"""Values that describe a scenario: workers, the models that share them, and request streams.

Times are in seconds; emulation (`emulated`) and serving (`served`) use the same values. Pure.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Literal

Arrivals = Literal["poisson", "constant", "burst", "serverless", "trace"]
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant", "burst", "serverless", "trace")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedProfile:
    """Cost of a model on an emulated worker."""

    pages: int
    load_s: float
    batch_s: Mapping[int, float]
    """Mapping from items in a batch to seconds; other batches are padded to the next size."""


MAX_ARRIVALS = 10_000_000
REFERENCE = EmulatedProfile(
    pages=7,
    load_s=0.00831,
    batch_s={1: 0.00273, 2: 0.00405, 4: 0.00588, 8: 0.00993, 16: 0.01733},
)
"""ResNet-50 on a V100: 102 MB in pages of 16 MB (Gujarati et al., OSDI'20, table 2)."""
PROFILES = {"resnet50-v100": REFERENCE}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelGroup:
    """Models that differ only in their names."""

    name: str
    copies: int
    profile: EmulatedProfile | None = None
    """Cost on emulated workers, or None if the group can only be served."""
    model: str | None = None
    """Bundled model or file to copy, or None if the group can only be emulated."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the group's copies, in order."""
        return tuple(f"{self.name}-{copy}" for copy in range(self.copies))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """Deadline relative to a request's arrival; it may grow over time."""

    first_s: float
    factor: float = 1.0
    every_s: float = 1.0

    def at(self, now_s: float) -> float:
        """Return the deadline of a request that arrives at `now_s`."""
        if self.factor == 1.0:
            return self.first_s
        return float(self.first_s * self.factor ** int(now_s / self.every_s))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Stream of requests of one kind."""

    name: str
    group: str
    deadline: Deadline
    rate_per_s: float = 0.0
    """Total rate of all models in the group; 0 for clients and traces."""
    arrivals: Arrivals = "poisson"
    exponent: float = 0.0
    """Exponent of Zipf's law for model popularity; 0 if all models are equally popular."""
    active_every_s: float = 0.0
    """Time after which one more model gets requests; 0 if all models get them from the start."""
    clients: int = 0
    """Number of clients per model, in place of a rate; each resends after a response."""
    items: int = 1
    from_s: float = 0.0
    trace: tuple[tuple[float, int], ...] = ()
    """Rows of a time in seconds (ascending) and a model index, for `trace` arrivals."""
    file: pathlib.Path | None = None
    """File of the trace."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmulationSettings:
    """Settings of the emulation other than profiles."""

    jitter: tuple[float, ...] = (1.0,)
    """Factors by which durations vary; each action draws one of them."""
    message_latency_s: float = 0.0002
    """Mean message latency: one half is fixed, the other exponentially distributed."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Scenario: workers, models and requests."""

    name: str
    seconds: float
    seed: int
    workers: int
    pages: int | None
    """Number of memory pages of each worker, or None if it has room for all models."""
    concurrent_loads: bool
    groups: tuple[ModelGroup, ...]
    streams: tuple[Stream, ...]
    settings: Mapping[str, Any]
    emulated: EmulationSettings

    def first_of(self, group: str) -> int:
        """Return the index of a group's first model among all models."""
        first = 0
        for one in self.groups:
            if one.name == group:
                return first
            first += one.copies
        raise KeyError(group)

    def group(self, name: str) -> ModelGroup:
        """Return a group by name."""
        return next(one for one in self.groups if one.name == name)
