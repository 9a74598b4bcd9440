"""A scenario: a pool of workers, the models that share them, and who asks for what, when.

Pure values, in seconds. The same scenario is emulated in virtual time (`emulated`), and can be served.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Arrivals = Literal["poisson", "constant", "burst", "serverless", "trace"]
ARRIVALS: tuple[Arrivals, ...] = ("poisson", "constant", "burst", "serverless", "trace")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a model costs an emulated worker."""

    pages: int
    load_s: float
    batch_s: Mapping[int, float]
    """Items -> seconds; a batch of another size is padded to the next one."""


MOST_ARRIVALS = 10_000_000
"""Requests of a scenario."""
REFERENCE = Profile(
    pages=7,
    load_s=0.00831,
    batch_s={1: 0.00273, 2: 0.00405, 4: 0.00588, 8: 0.00993, 16: 0.01733},
)
"""ResNet-50 on a V100: 102 MB of weights in pages of 16 MB (Gujarati et al., OSDI'20, table 2)."""
PROFILES = {"resnet50-v100": REFERENCE}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Models of one kind, which differ in nothing but their names."""

    name: str
    copies: int
    profile: Profile | None = None
    """What emulated workers take for them; None: they can only be served."""
    model: str | None = None
    """A bundled model, or a file, of which copies are served; None: they can only be emulated."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the copies, in order."""
        return tuple(f"{self.name}-{copy}" for copy in range(self.copies))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """How long a request may take; it may grow as time goes by."""

    first_s: float
    factor: float = 1.0
    every_s: float = 1.0

    def at(self, now_s: float) -> float:
        """Of a request that comes then."""
        if self.factor == 1.0:
            return self.first_s
        return float(self.first_s * self.factor ** int(now_s / self.every_s))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Requests of one kind."""

    name: str
    group: str
    deadline: Deadline
    rate_per_s: float = 0.0
    """Of all models of the group together; 0 of clients, and of a trace with its own times."""
    arrivals: Arrivals = "poisson"
    exponent: float = 0.0
    """Of Zipf's law, by which the first models of the group are asked for more often; 0: all alike."""
    active_every_s: float = 0.0
    """Time after which one more model is asked for, the first one from the beginning; 0: all at once."""
    clients: int = 0
    """Instead of a rate: so many clients for each model, who send again when they have their answer."""
    items: int = 1
    from_s: float = 0.0
    trace: tuple[tuple[float, int], ...] = ()
    """Of arrivals `trace`: seconds, ascending, and models by their place in the group."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """What is emulated beside the profiles."""

    jitter: tuple[float, ...] = (1.0,)
    """Factors of durations, one of which is drawn for each action."""
    lag_s: float = 0.0002
    """Mean of what a message takes, over and above half of it: the other half is drawn."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All of it."""

    name: str
    seconds: float
    seed: int
    workers: int
    pages: int | None
    """Memory of each worker; None: as much as there are models."""
    loads_apart: bool
    groups: tuple[Group, ...]
    streams: tuple[Stream, ...]
    settings: Mapping[str, Any]
    """Of the serving core, by their dotted names."""
    emulated: Emulated

    def first_of(self, group: str) -> int:
        """Place of a group's first model among all."""
        first = 0
        for one in self.groups:
            if one.name == group:
                return first
            first += one.copies
        raise KeyError(group)

    def group(self, name: str) -> Group:
        """By its name."""
        return next(one for one in self.groups if one.name == name)
