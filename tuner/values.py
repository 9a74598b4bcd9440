"""Values that cross the rooms of the tuner: configurations, records of requests, measurements, outcomes, trials.

Pure data. Columns, not objects, for what exists per request. One unit per kind: seconds inside, milliseconds
only where a name says so (`mean_ms`), because reports and the store speak milliseconds.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from serving.values import Signature
from tuner.histogram import Histogram

OUR_ENGINE = "luthier"
"""The serving core, as `--engine` and reports call it."""
Value = int | float | str | bool
"""What a knob may hold."""


class Configuration(Mapping[str, Value]):
    """One assignment of knobs by dotted name: immutable, hashable, ordered by name."""

    __slots__ = ("_hash", "_items")

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._items: dict[str, Value] = dict(sorted(values.items()))
        self._hash = hash(tuple(self._items.items()))

    def __getitem__(self, name: str) -> Value:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and self._items == other._items

    def __repr__(self) -> str:
        return (
            "Configuration("
            + ", ".join(f"{name}={value!r}" for name, value in self._items.items())
            + ")"
        )

    def __reduce__(self) -> tuple[type[Configuration], tuple[dict[str, Value]]]:
        return Configuration, (self._items,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestRecords:
    """Every request of one load phase, as columns of equal length n, in order of completion.

    Times are seconds on the client's monotonic clock, from the start of the phase.
    """

    intended_s: NDArray[np.float64]  # (n,) when it was due; closed loop: equal to started_s
    started_s: NDArray[np.float64]  # (n,) first byte sent
    finished_s: NDArray[np.float64]  # (n,) last byte received
    status: NDArray[np.int16]  # (n,) HTTP status; 0: no answer (connection lost, timeout)
    connection: NDArray[np.int32]  # (n,) index of the connection

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if len(lengths) > 1:
            raise ValueError(f"columns of unequal length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.status)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CpuCourse:
    """CPU time that a process had used, at moments of one load phase."""

    at_s: NDArray[np.float64]  # (n,) from the start of the phase, ascending
    used_s: NDArray[np.float64]  # (n,) from any origin

    def between(self, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """(k,) used between each of k + 1 moments and the next, evenly between two readings."""
        return np.diff(np.interp(edges_s, self.at_s, self.used_s))


MOST_WIDTH = 4.0
"""An interval of a ratio that holds 1 and is wider than half to double tells nothing in its ends."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % interval, ends included; None where the data cannot give that end."""

    low: float | None
    high: float | None

    @property
    def is_vague(self) -> bool:
        """As that of a ratio: it holds 1, and its ends lie more than a factor of `MOST_WIDTH` apart."""
        if self.low is None or self.high is None:
            return False
        return self.low <= 1 <= self.high and self.high > MOST_WIDTH * self.low

    @property
    def inverse(self) -> Interval:
        """That of the ratio turned over."""
        return Interval(
            low=None if not self.high else 1 / self.high,
            high=None if not self.low else 1 / self.low,
        )


UNKNOWN = Interval(low=None, high=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One part of a measured phase: whole periods of the CPU quota (multiples of 0.1 s)."""

    start_s: float
    seconds: float
    requests: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    throughput_per_s: float
    spread_ms: float | None = None
    """p95 - p5; None where the block has too few requests for it."""
    client_cpu_s: float | None = None
    """CPU time of the load generator, which does the same for each request: a reading of the machine's moment."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostNoise:
    """What else happened to the machine while a phase was measured; None where it cannot be read."""

    steal_s: float | None = None
    throttled_s: float | None = None
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    peak_memory_mb: float | None = None
    """Largest memory of any one replica, in MiB."""
    foreign_cpu_s: float | None = None
    """CPU time of processes that are neither the server's nor the tuner's; None where the server's are not known."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """What the devices that were counted used in the measured part."""

    per_request_j: float
    """All sources together, over the answered requests."""
    interval: Interval
    """Of `per_request_j`."""
    sources: Mapping[str, float]
    """J per request by source: `gpu`, the whole board; `cpu`, the CPU packages."""
    power_w: float
    """Mean, all sources together."""
    clock_mhz: float | None
    """Mean graphics clock of the GPU; None where it was not counted."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Energy:
        """Inverse of `dataclasses.asdict`."""
        return cls(**{**data, "interval": Interval(**data["interval"])})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What 1,000 answers cost: what was held of the machine meanwhile."""

    cpu_s: float
    """Core-seconds, reserved or used, whichever is more."""
    memory_mib_s: float
    """MiB-seconds, likewise; 0 where nothing is known of them."""
    gpu_s: float
    """GPU-seconds."""
    price: float
    """In the currency of the price file; core-seconds without one."""


MOST_LITTLE_ERROR = 0.05
"""Above it, throughput x mean does not give the concurrency: the load was not what was asked."""
LATE_S = 1e-3
"""A request that is sent later than this after it was due waited for a free connection, or for the client."""
MOST_LATE_SHARE = 0.01
"""Of the requests of an open loop: where more are late, the clients may be what was measured."""
LEAST_FOR_P99 = 459
"""Fewest independent requests whose maximum lies above the true p99 in 99 of 100 cases (0.99^459 = 0.01)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one launch of one configuration gave under the set load; latencies are round trips in ms."""

    requests: int
    errors: int
    seconds: float
    mean_ms: float
    mean_interval: Interval
    p50_ms: float
    p50_interval: Interval
    p95_ms: float
    p95_interval: Interval
    p99_ms: float
    p99_interval: Interval
    throughput_per_s: float
    little_error: float | None
    """|throughput x mean / concurrency - 1|; None in an open loop, whose concurrency is not set."""
    warmup_s: float
    blocks: tuple[Block, ...]
    noise: HostNoise
    energy: Energy | None = None
    """None where no energy could be counted."""
    client_batch: int = 1
    """Items in each request."""
    spread_ms: float = 0.0
    """p95 - p5: nine in ten round trips lie within it; 0, which no launch has, where an older version
    kept the measurement."""
    spread_interval: Interval = dataclasses.field(default=UNKNOWN)
    p99_effective: float | None = None
    """Independent requests that the p99 rests on; None where an older version kept the measurement."""
    histogram: Histogram | None = None
    """Of the round trips of its answers; None where an older version kept the measurement."""
    goodput: float | None = None
    """Answers per second within the deadline (`--slo-ms`); None where there was none."""
    goodput_interval: Interval = dataclasses.field(default=UNKNOWN)
    cost: Cost | None = None
    """None where it is not known what the server held."""
    rate_per_s: float | None = None
    """Requests that were due each second, in the mean of the schedule; None in a closed loop."""
    late_share: float | None = None
    """Share of the requests of an open loop that were sent more than `LATE_S` after they were due."""
    refused: int = 0
    """Requests of a scenario that the server refused because they could not be in time: no errors, and no answers."""
    ended_early: bool = False
    """Whether it ended before its time, because it was decided to be no rival of the best so far."""
    repeats: int = 0
    """Times that it was measured before, and slices left out, since others took more of the machine than usual."""

    @property
    def effective(self) -> float:
        """Independent requests that the p99 rests on, at most all."""
        return float(self.requests if self.p99_effective is None else self.p99_effective)

    @property
    def has_p99(self) -> bool:
        """Whether the requests are enough for a p99: what is told of it without is luck."""
        return self.effective >= LEAST_FOR_P99

    @property
    def told_p99_ms(self) -> float:
        """p99; NaN where the requests are too few for one."""
        return self.p99_ms if self.has_p99 else math.nan

    @property
    def items_per_s(self) -> float:
        """Items answered per second."""
        return self.throughput_per_s * self.client_batch

    @property
    def time_per_item_ms(self) -> float:
        """Measured time over items: ms between two answered items, however many run at once."""
        return 1e3 / self.items_per_s if self.items_per_s else math.inf

    @property
    def highest_per_s(self) -> float:
        """Rate of the open loop, which a search for the highest has found; NaN in a closed loop."""
        return math.nan if self.rate_per_s is None else self.rate_per_s

    @property
    def goodput_per_s(self) -> float:
        """Answers per second within the deadline; NaN without one."""
        return math.nan if self.goodput is None else self.goodput

    @property
    def answered_share(self) -> float:
        """Of the requests that were due."""
        return self.requests / (self.requests + self.refused + self.errors)

    @property
    def offered_per_s(self) -> float:
        """Requests of an open loop that were due in the measured part, per second."""
        return (self.requests + self.refused + self.errors) / self.seconds

    @property
    def cpu_s(self) -> float:
        """Core-seconds for 1,000 answers; NaN where they are not known."""
        return math.nan if self.cost is None else self.cost.cpu_s

    @property
    def memory_mib_s(self) -> float:
        """MiB-seconds for 1,000 answers; NaN where they are not known."""
        known = self.cost is not None and self.cost.memory_mib_s > 0
        return self.cost.memory_mib_s if known and self.cost is not None else math.nan

    @property
    def price(self) -> float:
        """Of 1,000 answers; NaN where it is not known."""
        return math.nan if self.cost is None else self.cost.price

    @property
    def energy_j(self) -> float:
        """J per request; NaN where it was not counted."""
        return math.nan if self.energy is None else self.energy.per_request_j

    @property
    def energy_interval(self) -> Interval:
        """Of `energy_j`."""
        return UNKNOWN if self.energy is None else self.energy.interval

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store and reports."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Measurement:
        """Inverse of `as_json`."""
        fields = dict(data)
        for name in (
            "mean_interval",
            "p50_interval",
            "p95_interval",
            "p99_interval",
            "spread_interval",
            "goodput_interval",
        ):
            if name in fields:
                fields[name] = Interval(**fields[name])
        fields["blocks"] = tuple(Block(**block) for block in fields["blocks"])
        fields["noise"] = HostNoise(**fields["noise"])
        counted = fields.get("histogram")
        if counted is not None:
            fields["histogram"] = Histogram(counted["first"], tuple(counted["counts"]))
        cost = fields.get("cost")
        fields["cost"] = None if cost is None else Cost(**cost)
        energy = fields.get("energy")
        fields["energy"] = None if energy is None else Energy.from_json(energy)
        return cls(**fields)


Status = Literal["ok", "infeasible", "failed"]
Cause = Literal[
    "oom", "start", "crash", "errors", "timeout", "limits", "constraint", "overload", "short"
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a trial ended: ok, or infeasible (the configuration cannot work), or failed (it broke while it ran)."""

    status: Status
    cause: Cause | None = None
    reason: str = ""
    """One line for a person; empty when ok."""


OK = Outcome(status="ok")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One launch of one configuration, as the store returns it; `measurement` is None unless the outcome is ok."""

    number: int
    configuration: Configuration
    outcome: Outcome
    measurement: Measurement | None
    origin: str
    """default, initial, guided or replicate."""
    objective: float | None
    """The value that the sampler minimises (ms for latencies); None unless ok."""
    launch_s: float
    """Seconds from the decision to a ready server."""
    overhead_s: float
    """Seconds of the trial that were neither warm-up nor measurement."""
    started_at: float
    """Unix time, for people; never used for durations."""
    missed: Measurement | None = None
    """What was measured of a launch that misses a limit, or does not tell whether it does; None of any other."""

    @property
    def measured(self) -> Measurement | None:
        """What was measured, whether limits were kept or not."""
        return self.missed if self.measurement is None else self.measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FreshStart:
    """One launch of the verification, on a server of its own."""

    role: str
    outcome: Outcome
    measurement: Measurement | None
    """None where the outcome is not ok."""
    slices_ms: tuple[float, ...] = ()
    """Mean round trip of each slice of time that it was loaded in; empty where it was loaded in one."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FreshStart:
        """Inverse of `as_json`."""
        measurement = data["measurement"]
        return cls(
            role=data["role"],
            outcome=Outcome(**data["outcome"]),
            measurement=None if measurement is None else Measurement.from_json(measurement),
            slices_ms=tuple(data.get("slices_ms", ())),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Fresh starts of one role, and how many of them failed."""

    launched: int = 0
    failed: int = 0
    reason: str = ""
    """Of the last one that failed; empty where none did."""

    @property
    def mostly_failed(self) -> bool:
        """Whether more than half of them failed."""
        return 2 * self.failed > self.launched

    @property
    def all_failed(self) -> bool:
        """Whether there were fresh starts, and none worked."""
        return self.launched > 0 and self.failed == self.launched


UNKNOWN_PAIR_SD = 0.1
"""Standard deviation of the logarithm of two launches' ratio where no search tells it."""
VerdictOutcome = Literal["better", "worse", "no difference shown"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """A configuration that was measured again beside the others that may be the best."""

    configuration: Configuration
    ratio: float
    """Of its objective over that of the chosen one, by these fresh starts alone; 1 of the chosen one."""
    interval: Interval
    """Of the ratio; together with those of the other finalists."""
    is_tied: bool
    """Whether it could as well have been chosen."""

    @property
    def is_compared(self) -> bool:
        """Whether fresh starts tell of it: there was time for some."""
        return self.interval.low is not None

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finalist:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "interval": Interval(**data["interval"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The best beside what a prediction alone would have chosen."""

    configuration: Configuration
    """That prediction's."""
    outcome: VerdictOutcome
    """Of the best."""
    ratio: float
    """Objective of the best over that of the prediction's choice."""
    interval: Interval
    pairs: int

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Against:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "interval": Interval(**data["interval"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A configuration that none was found to beat in both objectives."""

    configuration: Configuration
    values: tuple[float, ...]
    """Of both objectives, in their units: what all launches together say."""
    sds: tuple[float, ...]
    """Standard deviations of their logarithms."""
    trial: int | None
    """Number of a trial that launched it."""
    is_chosen: bool
    """Whether it is the one that is verified and exported."""

    def interval(self, place: int) -> Interval:
        """95 %, of one of the objectives."""
        reach = math.exp(1.96 * self.sds[place])
        return Interval(low=self.values[place] / reach, high=self.values[place] * reach)

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FrontPoint:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "values": tuple(data["values"]),
                "sds": tuple(data["sds"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """Default and best of a closed-loop study, each launched once in an open loop at a share of the best's rate."""

    rate_per_s: float
    """Of both; Poisson arrivals, the same for both."""
    share: float
    """Of the throughput that the best had in the closed loop."""
    starts: tuple[FreshStart, ...]
    """One of each role: "default" and "best"."""

    def of(self, role: str) -> FreshStart:
        """The fresh start of a role."""
        return next(start for start in self.starts if start.role == role)

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store and reports."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpenLoop:
        """Inverse of `as_json`."""
        return cls(**{**data, "starts": tuple(map(FreshStart.from_json, data["starts"]))})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """A study whose search has ended: what is verified, and the fresh starts so far."""

    stopped: str
    """Why the search ended."""
    best: Configuration | None
    """What the search recommends; None where no trial was ok."""
    pairs: int
    """Fresh starts that default and best get each."""
    starts: tuple[FreshStart, ...] = ()
    """Of default, best, and guess where there is one."""
    finalists: tuple[Configuration, ...] = ()
    """What the search holds for the best, its recommendation first; one of them is nothing to choose from."""
    finals: tuple[FreshStart, ...] = ()
    """Fresh starts among the finalists, by which the best was chosen."""
    standings: tuple[Finalist, ...] | None = None
    """How the finalists came out, the best first; None while that is open."""
    guess: Configuration | None = None
    """What a prediction alone would choose, where it is neither the best nor the default."""
    presumed_sd: float = UNKNOWN_PAIR_SD
    """Spread that the logarithms of the pairs' ratios are presumed to have, from the search."""
    front: tuple[FrontPoint, ...] = ()
    """Of two objectives."""
    open_loop: OpenLoop | None = None
    """None until default and best were launched in one, or where there was no time for it."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Of each round of the verification."""
        return ("default", "best") if self.guess is None else ("default", "best", "guess")

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {
            "stopped": self.stopped,
            "best": None if self.best is None else dict(self.best),
            "pairs": self.pairs,
            "starts": [start.as_json() for start in self.starts],
            "finalists": [dict(one) for one in self.finalists],
            "finals": [start.as_json() for start in self.finals],
            "standings": None
            if self.standings is None
            else [one.as_json() for one in self.standings],
            "guess": None if self.guess is None else dict(self.guess),
            "presumed_sd": self.presumed_sd,
            "front": [point.as_json() for point in self.front],
            "open_loop": None if self.open_loop is None else self.open_loop.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Ending:
        """Inverse of `as_json`."""
        standings, guess = data.get("standings"), data.get("guess")
        open_loop = data.get("open_loop")
        return cls(
            stopped=data["stopped"],
            best=None if data["best"] is None else Configuration(data["best"]),
            pairs=data["pairs"],
            starts=tuple(map(FreshStart.from_json, data["starts"])),
            finalists=tuple(map(Configuration, data.get("finalists", ()))),
            finals=tuple(map(FreshStart.from_json, data.get("finals", ()))),
            standings=None if standings is None else tuple(map(Finalist.from_json, standings)),
            guess=None if guess is None else Configuration(guess),
            presumed_sd=float(data.get("presumed_sd", UNKNOWN_PAIR_SD)),
            front=tuple(map(FrontPoint.from_json, data.get("front", ()))),
            open_loop=None if open_loop is None else OpenLoop.from_json(open_loop),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """The verdict on a second objective, by the same pairs."""

    objective: str
    outcome: VerdictOutcome
    ratio: float
    """Best over default."""
    interval: Interval
    """Here and now."""
    another_day: Interval
    """Of the ratio that another session will have."""
    text: str
    """One sentence for a person."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Default and best, re-measured alternating on fresh starts; the ratio is best over default of the objective."""

    outcome: VerdictOutcome
    ratio: float
    interval: Interval
    """Here and now."""
    another_day: Interval
    """Of the ratio that another session will have."""
    throughput_ratio: float | None
    throughput_interval: Interval
    p99_ratio: float | None
    """None where too few pairs have a p99 on both sides."""
    p99_interval: Interval
    default: tuple[Measurement, ...]
    best: tuple[Measurement, ...]
    text: str
    """One sentence for a person."""
    against_guess: Against | None = None
    """None where there was no prediction, or it chose the same."""
    second: Beside | None = None
    """On the second of two objectives."""
    launch_sd: float | None = None
    """By how much the logarithms of the pairs' ratios differ beyond what slices of one pair do, mean round trips
    taken; None where launches were not loaded in slices."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store and reports."""
        against = self.against_guess
        return {
            **dataclasses.asdict(self),
            "against_guess": None if against is None else against.as_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Verdict:
        """Inverse of `as_json`."""
        fields = dict(data)
        for name in ("interval", "another_day", "throughput_interval", "p99_interval"):
            fields[name] = Interval(**fields[name]) if name in fields else UNKNOWN
        for name in ("default", "best"):
            fields[name] = tuple(Measurement.from_json(item) for item in fields[name])
        against = fields.get("against_guess")
        fields["against_guess"] = None if against is None else Against.from_json(against)
        second = fields.get("second")
        fields["second"] = (
            None
            if second is None
            else Beside(
                **{
                    **second,
                    "interval": Interval(**second["interval"]),
                    "another_day": Interval(**second["another_day"])
                    if "another_day" in second
                    else UNKNOWN,
                }
            )
        )
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnobInfo:
    """What a report needs to know of a knob."""

    name: str
    unit: str
    scale: Literal["linear", "log"]
    values: tuple[Value, ...]
    """The searched grid, in order."""
    default: Value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Models that share replicas, as a scenario has them."""

    groups: Mapping[str, tuple[str, int]]
    """Name of a group -> what its copies are of, and how many there are; they are called NAME-0, NAME-1, ..."""
    settings: Mapping[str, Value]
    """Of the server, where a configuration says nothing else."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return {"groups": dict(self.groups), "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Shared:
        """Inverse of `as_json`."""
        groups = {
            name: (str(model), int(copies)) for name, (model, copies) in data["groups"].items()
        }
        return cls(groups=groups, settings=dict(data["settings"]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """One input of a model, and what is sent of it, in words."""

    name: str
    datatype: str
    shape: str
    """With the names of its dimensions: `[items, 3, height, width]`; `?` where a free one has none."""
    items: str
    """Which axis the items lie along, and why; or that they lie along none."""
    free: tuple[str, ...]
    """Its free dimensions beside that axis."""
    sent: str
    """Its shape and values in a request."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SentInputs:
    """The inputs of a model as a study asked it."""

    inputs: tuple[InputFacts, ...]
    whole: str
    """Why it is served whole, one request at a time; empty: items of several requests run together."""
    source: str
    """Where what is sent comes from."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The short form: a line for each input, and one where the model is served whole."""
        told = [f"input {one.name} {one.datatype} {one.shape}: {one.sent}" for one in self.inputs]
        if self.whole:
            told.append(f"served whole, one request at a time: {self.whole}")
        return tuple(told)

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SentInputs:
        """Inverse of `as_json`."""
        inputs = (InputFacts(**{**one, "free": tuple(one["free"])}) for one in data["inputs"])
        return cls(inputs=tuple(inputs), whole=str(data["whole"]), source=str(data["source"]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """A study as reports, exports and comparisons see it."""

    name: str
    folder: str
    """Absolute path."""
    model: str
    concurrency: int
    sampler: str
    objective: str
    """A key of `tuner.objective.OBJECTIVES`."""
    knobs: tuple[KnobInfo, ...]
    trials: tuple[Trial, ...]
    default: Configuration
    best: Configuration | None
    """The recommended configuration; None when no trial was ok."""
    verdict: Verdict | None
    """None where fewer than two pairs of fresh starts worked, or none were made."""
    fresh_starts: Mapping[str, Tally]
    """Of the verification, by role: "default" and "best"; empty where none were made."""
    notes: tuple[str, ...]
    """What a reader must know: knobs left out, limits not enforced, synthetic payloads, early stop."""
    environment: Mapping[str, Any]
    """environment.json: host, cores, memory, versions, limits."""
    settings: Mapping[str, Any]
    """settings.yaml: everything that the study was asked for."""
    records: Mapping[str, RequestRecords]
    """Raw requests by role: "default" and "best", where kept."""
    is_finished: bool = True
    """False while it searches or verifies, and where that was interrupted: it answers nothing yet."""
    engine: str = OUR_ENGINE
    """What reports call the engine."""
    engine_file: str | None = None
    """What the engine file held; None where the engine has none."""
    used_s: float | None = None
    """Time of the whole study, over all commands that ran it; None where it is not known."""
    signature: Signature | None = None
    """Inputs and outputs of the model; None of studies that were made before it was kept."""
    client_batch: int = 1
    """Items in each request."""
    finalists: tuple[Finalist, ...] = ()
    """What was measured again to choose the best, the best first; empty where there was no choice."""
    second: str | None = None
    """Name of a second objective; None in a study of one."""
    front: tuple[FrontPoint, ...] = ()
    """Of both objectives, the best in the first one first."""
    rate_per_s: float | None = None
    """Requests that were due each second; None where the load was a closed loop."""
    shared: Shared | None = None
    """What was served in a study of a scenario; None of one model."""
    sent: SentInputs | None = None
    """What the model was asked; None of a scenario, and of studies that were made before it was kept."""
    told: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What was told of inputs beside the model's own file, as settings of a server: `model.shapes`, `model.values`."""
    open_loop: OpenLoop | None = None
    """Default and best in an open loop, beside the verdict of a closed one; None where that was not done."""

    @property
    def is_open(self) -> bool:
        """Whether requests were due by a schedule (open loop)."""
        return self.rate_per_s is not None or self.objective == "rate"

    @property
    def offered_per_s(self) -> float | None:
        """What the launches of a scenario were sent each second, in the mean; None of anything else.

        Those of the verdict, else those of the search.
        """
        if self.shared is None:
            return None
        told = () if self.verdict is None else (*self.verdict.default, *self.verdict.best)
        told = told or tuple(trial.measurement for trial in self.trials if trial.measurement)
        seconds = sum(one.seconds for one in told)
        return sum(one.offered_per_s * one.seconds for one in told) / seconds if seconds else None

    @property
    def arrivals(self) -> str | None:
        """How an open loop spread its requests, as it was asked for."""
        asked = self.settings.get("target", {}).get("arrivals")
        return None if asked is None else str(asked)

    @property
    def is_of_other_engine(self) -> bool:
        """Whether another engine than the serving core was tuned."""
        return self.engine != OUR_ENGINE

    @property
    def scenario(self) -> str | None:
        """The file with its models and requests; None of a study of one model."""
        asked = self.settings.get("target", {}).get("scenario")
        return None if asked is None else str(asked)

    @property
    def served(self) -> str | None:
        """What a server is started with; None where its models are deployed later."""
        return self.target if self.scenario is None else None

    @property
    def target(self) -> str:
        """The model as a command names it: a bundled one's name, or a path."""
        return str(self.settings.get("target", {}).get("model") or self.model)

    @property
    def is_trusted(self) -> bool:
        """Whether the model may run code from its files, which the commands that serve it then say as well."""
        return bool(self.settings.get("target", {}).get("trust"))

    @property
    def home(self) -> str:
        """Where the replicas lived: `replica.home`."""
        return str(self.settings.get("target", {}).get("home") or "process")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRun:
    """One search of a comparison: one sampler, one seed, the whole budget."""

    sampler: str
    repeat: int
    """0, 1, ...; runs of one repeat share a seed, so they can be paired."""
    seed: int
    study: str
    """Name of the study that holds the trials."""
    objectives: tuple[float | None, ...]
    """Objective of each trial in order, in its unit (not negated); None: the trial was not ok."""
    best_so_far: tuple[float | None, ...]
    """Best objective after each trial, as long as `objectives`; None before the first ok."""
    wall_s: float
    winner: Configuration | None
    """What this run recommends; None when no trial was ok."""
    remeasured: tuple[Measurement, ...] = ()
    """The winner on fresh starts after all runs, alternating with the others; one per launch."""
    seconds: tuple[float, ...] = ()
    """Time up to the end of each trial, the profile's included and without that of the other searches; empty in
    older files."""
    profiling: int = 0
    """Trials of the budget whose time went into the model's profile, before the first."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        plain = ("sampler", "repeat", "seed", "study", "wall_s", "profiling")
        return {
            **{name: getattr(self, name) for name in plain},
            "objectives": list(self.objectives),
            "best_so_far": list(self.best_so_far),
            "seconds": list(self.seconds),
            "winner": None if self.winner is None else dict(self.winner),
            "remeasured": [measurement.as_json() for measurement in self.remeasured],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SamplerRun:
        """Inverse of `as_json`."""
        fields = dict(data)
        fields["objectives"] = tuple(fields["objectives"])
        fields["best_so_far"] = tuple(fields["best_so_far"])
        fields["seconds"] = tuple(fields.get("seconds", ()))
        fields["winner"] = None if fields["winner"] is None else Configuration(fields["winner"])
        fields["remeasured"] = tuple(Measurement.from_json(item) for item in fields["remeasured"])
        return cls(**fields)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerDifference:
    """The winners of one sampler against those of another, by their re-measurements."""

    first: str
    second: str
    outcome: VerdictOutcome
    """Of `first` against `second`."""
    ratio: float
    """Objective of `first`'s winners over that of `second`'s."""
    interval: Interval
    text: str
    """One sentence for a person; "no difference that could be shown" is an answer."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """Samplers compared on one model at one concurrency, as `tune compare` measured them."""

    name: str
    model: str
    concurrency: int
    objective: str
    """As in StudyRecord."""
    samplers: tuple[str, ...]
    repeats: int
    trials: int
    """Budget of each run, the default configuration and failures included."""
    runs: tuple[SamplerRun, ...]
    differences: tuple[SamplerDifference, ...]
    """Pairs of samplers whose winners were re-measured; empty when that was not done."""
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    client_batch: int = 1
    """Items in each request."""

    def as_json(self) -> dict[str, Any]:
        """Plain data for the store."""
        plain = (
            "name",
            "model",
            "concurrency",
            "client_batch",
            "objective",
            "repeats",
            "trials",
        )
        return {
            **{name: getattr(self, name) for name in plain},
            "samplers": list(self.samplers),
            "runs": [run.as_json() for run in self.runs],
            "differences": [dataclasses.asdict(difference) for difference in self.differences],
            "notes": list(self.notes),
            "environment": dict(self.environment),
            "settings": dict(self.settings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComparisonRecord:
        """Inverse of `as_json`."""
        fields = dict(data)
        fields["samplers"] = tuple(fields["samplers"])
        fields["runs"] = tuple(SamplerRun.from_json(run) for run in fields["runs"])
        fields["differences"] = tuple(
            SamplerDifference(**{**item, "interval": Interval(**item["interval"])})
            for item in fields["differences"]
        )
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)
