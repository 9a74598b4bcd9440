"""Plan of one phase, sent to the client process as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from tuner.load_generator import arrivals


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Warmup:
    """Warm-up before the measurement; the workload continues without a pause.

    It ends once `seconds` have passed and each connection has had `round_trips` responses (after
    `cap_s`, that many on average; in an open loop, in total). Lost requests count.
    """

    seconds: float = 0.1
    """Minimum duration; replicas forked from a warm process are steady after 0.05 s."""
    round_trips: int = 3
    """Responses per connection; the first one fills the batches, which shape the second."""
    cap_s: float = 10.0
    settling_s: float = 0.0
    """Maximum additional wait for steady latencies (`phase.Settling`)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """Rule that ends the measured part at the first look where the mean exceeds its limit."""

    look_s: float
    limits_ms: tuple[float, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoopPlan:
    """Open-loop workload."""

    rate_per_s: float
    spread: arrivals.Spread = "poisson"
    offsets_s: tuple[float, ...] = ()
    seed: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which part of a phase one of several clients has."""

    number: int
    """From 0; in an open loop the client sends the arrivals `number`, `number + clients`, ..."""
    clients: int
    first_connection: int
    """Number of connections of the clients before it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhasePlan:
    """Plan of one phase: a warm-up, then `seconds` or `requests` to measure (one is set)."""

    host: str
    port: int
    concurrency: int
    """Number of requests in flight on keep-alive connections; with a rate, the maximum."""
    rate_per_s: float | None = None
    """Requests due each second; None for a closed loop."""
    spread: arrivals.Spread = "poisson"
    seed: int = 0
    offsets_s: tuple[float, ...] = ()
    each_its_own: bool = False
    """Whether each connection sends its own request, like a client of one model."""
    cuts_overload: bool = False
    """Whether an overloaded open loop abandons unanswered requests at its end."""
    seconds: float | None = None
    answers: int = 0
    """Minimum number of responses in a closed loop; a slow server gets more time to reach it."""
    most_s: float = 10.0
    requests: int | None = None
    """Number of requests to send after the warm-up, including those in flight at its end."""
    warmup: Warmup = dataclasses.field(default_factory=Warmup)
    race: Race | None = None
    timeout_s: float = 10.0
    """Time after which a request is lost, even while it waits for a connection."""
    share: Share | None = None
    """Part of the phase; None: all of it. Rate and schedule are those of the whole phase."""

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.requests is None):
            raise ValueError(
                f"seconds {self.seconds}, requests {self.requests}: expected one of the two"
            )

    @property
    def waits_for_answers(self) -> bool:
        """Whether the measured part ends only when there are `answers`."""
        return self.seconds is not None and self.rate_per_s is None and self.answers > 0

    @property
    def arrivals(self) -> arrivals.ClosedLoop | arrivals.OpenLoop | arrivals.DealtOpenLoop:
        """Arrival schedule of the phase."""
        if self.rate_per_s is None:
            return arrivals.ClosedLoop(self.concurrency)
        whole = arrivals.make_open_loop(
            self.rate_per_s, self.concurrency, self.spread, self.seed, self.offsets_s
        )
        if self.share is None:
            return whole
        return arrivals.DealtOpenLoop(whole, self.share.number, self.share.clients)

    def at(self, load: OpenLoopPlan) -> PhasePlan:
        """Return the plan as an open loop."""
        return dataclasses.replace(self, **dataclasses.asdict(load))

    def with_warmup(self, **changes: Any) -> PhasePlan:
        """Return a copy of the plan with its warm-up changed."""
        return dataclasses.replace(self, warmup=dataclasses.replace(self.warmup, **changes))

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON data for the client process."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PhasePlan:
        """Read what `as_json` wrote."""
        race, share = data["race"], data["share"]
        plain = {
            "warmup": Warmup(**data["warmup"]),
            "offsets_s": tuple(data["offsets_s"]),
            "share": share and Share(**share),
            "race": race and Race(look_s=race["look_s"], limits_ms=tuple(race["limits_ms"])),
        }
        return cls(**{**data, **plain})
