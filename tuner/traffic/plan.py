"""How much load one phase brings, and where: a value that travels to the client's process as JSON.

Seconds throughout. What is sent (method, path, headers, bodies) is not here: payloads are handed
over once and reused by many phases. This file is imported by the client's process, so it imports
next to nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tuner.traffic import arrivals


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """The part of a phase before anything is measured; the load runs on without a pause.

    It ends once `seconds` have passed and every connection has had `round_trips` answers. From
    `cap_s` on it is enough that there have been `round_trips` answers per connection in the mean,
    so that one starved connection cannot hold it up and a slow server still gets its round trips.
    Lost requests count as answers here. An open loop needs so many answers in all: how many of its
    connections are in use is the load's affair.

    A server that was started just now is waited for until its answers have settled (`traffic.steady`).
    """

    seconds: float = 0.1
    """Default 0.1 s: of replicas that were forked from a warm process, answers are steady after 0.05 s."""
    round_trips: int = 3
    """Default 3: the first fills the batches, the second is shaped by the first."""
    cap_s: float = 10.0
    settling_s: float = 0.0
    """Longest wait behind `seconds` until answers have settled; default 0: they are taken as they are."""

    def __post_init__(self) -> None:
        if min(self.seconds, self.round_trips, self.cap_s, self.settling_s) < 0:
            raise ValueError(f"{self}: expected numbers from 0")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """When a measured part ends before its time: at the first look whose mean is above its limit."""

    look_s: float
    """Between two looks, from the end of the warm-up on."""
    limits_ms: tuple[float, ...]
    """Of the mean round trip up to each look; there are no looks behind the last one."""

    def __post_init__(self) -> None:
        if self.look_s <= 0 or any(limit <= 0 for limit in self.limits_ms):
            raise ValueError(f"{self}: expected numbers above 0")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoad:
    """Requests that are due by a schedule, whatever becomes of them."""

    rate_per_s: float
    """Mean."""
    spread: arrivals.Spread = "poisson"
    offsets_s: tuple[float, ...] = ()
    """Of a trace, in its own seconds: they are scaled to the rate."""
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One phase: warm-up, then `seconds` or `requests` are measured (one of them is set)."""

    host: str
    port: int
    concurrency: int
    """Requests in flight at any time, each on a keep-alive connection of its own (closed loop); with
    a rate, the most that may be in flight."""
    rate_per_s: float | None = None
    """Requests that are due each second, whatever becomes of the others (open loop); None: closed."""
    spread: arrivals.Spread = "poisson"
    """How an open loop spreads them over time."""
    seed: int = 0
    """Of the distances between arrivals."""
    offsets_s: tuple[float, ...] = ()
    """Of `spread` trace: seconds of its arrivals, which are scaled to the rate; of `listed`: as they are."""
    each_its_own: bool = False
    """Whether a connection always sends the request of its own number, as a client of one model does; else
    requests are sent in turn."""
    cuts_overload: bool = False
    """Whether an open loop ends at the end of its measured part where the server has fallen behind by then
    (`Phase.fell_behind`): what has no answer yet is lost. Otherwise all that was due is sent."""
    seconds: float | None = None
    answers: int = 0
    """Least of a measured part of `seconds` in a closed loop: a slow server's lasts until it has so many."""
    most_s: float = 10.0
    """How long it lasts for them at most."""
    requests: int | None = None
    """Requests sent after the warm-up, those in flight at its end included; without a warm-up all
    of the phase."""
    warmup: Warmup = dataclasses.field(default_factory=Warmup)
    race: Race | None = None
    """Ends a measured part of `seconds` early; None: it lasts its time."""
    timeout_s: float = 10.0
    """A request without an answer after this long is lost, and its connection is replaced. In an open
    loop a request that no connection was free for in this time after it was due is lost unsent."""

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.requests is None):
            raise ValueError(
                f"seconds {self.seconds}, requests {self.requests}: expected one of the two"
            )
        if (self.seconds is not None and self.seconds <= 0) or (
            self.requests is not None and self.requests < 1
        ):
            raise ValueError(
                f"seconds {self.seconds}, requests {self.requests}: expected more than 0"
            )
        if self.timeout_s <= 0:
            raise ValueError(f"timeout_s {self.timeout_s}: expected more than 0")
        _ = self.arrivals  # checks its numbers

    @property
    def arrivals(self) -> arrivals.Arrivals:
        """The schedule of the phase, from its beginning."""
        if self.rate_per_s is None:
            return arrivals.closed(self.concurrency)
        return arrivals.opened(
            self.rate_per_s, self.concurrency, self.spread, self.seed, self.offsets_s
        )

    def at(self, load: OpenLoad) -> LoadPlan:
        """The same as an open loop, with `concurrency` as the most in flight."""
        return dataclasses.replace(
            self,
            rate_per_s=load.rate_per_s,
            spread=load.spread,
            seed=load.seed,
            offsets_s=load.offsets_s,
        )

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LoadPlan:
        """Inverse of `as_json`."""
        race = data.get("race")
        if race is not None:
            race = Race(look_s=race["look_s"], limits_ms=tuple(race["limits_ms"]))
        plain = {
            "warmup": Warmup(**data["warmup"]),
            "offsets_s": tuple(data.get("offsets_s", ())),
            "race": race,
        }
        return cls(**{**data, **plain})
