"""Data types of the tuner: configurations, requests, measurements, outcomes, trials.

Per-request data is in columns. Units are seconds, or milliseconds where named (`mean_ms`), as in
reports and the store.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from serving.values import Signature
from tuner.values.histogram import LatencyHistogram

OUR_ENGINE = "luthier"
"""Luthier's name in `--engine` and reports."""
Value = int | float | str | bool
"""Values of a knob."""


class Configuration(Mapping[str, Value]):
    """Knob values by dotted name: immutable, hashable, sorted."""

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
    """Requests of a load phase, as columns in order of completion.

    Times are seconds of the client's monotonic clock since its start.
    """

    intended_s: NDArray[np.float64]  # (n,) when due; closed loop: started_s
    started_s: NDArray[np.float64]  # (n,) first byte sent
    finished_s: NDArray[np.float64]  # (n,) last byte received
    status: NDArray[np.int16]  # (n,) HTTP status; 0: connection lost or timeout
    connection: NDArray[np.int32]  # (n,) index of the connection

    def __post_init__(self) -> None:
        lengths = {len(getattr(self, field.name)) for field in dataclasses.fields(self)}
        if len(lengths) > 1:
            raise ValueError(f"columns of unequal length: {sorted(lengths)}")

    def __len__(self) -> int:
        return len(self.status)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CpuTimeSeries:
    """CPU time of a process during a load phase."""

    at_s: NDArray[np.float64]  # (n,) since the start of the phase, ascending
    used_s: NDArray[np.float64]  # (n,) from any origin

    def between(self, edges_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return CPU time (k,) between k + 1 times, interpolated linearly."""
        return np.diff(np.interp(edges_s, self.at_s, self.used_s))


MAX_WIDTH = 4.0
"""A ratio's interval that holds 1 and is wider (half to double) tells nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Closed 95 % interval; None: end unknown."""

    low: float | None
    high: float | None

    @property
    def is_vague(self) -> bool:
        """Whether a ratio's interval holds 1 and is wider than `MAX_WIDTH`."""
        if self.low is None or self.high is None:
            return False
        return self.low <= 1 <= self.high and self.high > MAX_WIDTH * self.low

    @property
    def inverse(self) -> Interval:
        """Interval of the inverse ratio."""
        return Interval(
            low=None if not self.high else 1 / self.high,
            high=None if not self.low else 1 / self.low,
        )


UNKNOWN = Interval(low=None, high=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Part of a measured phase: whole CPU quota periods (0.1 s)."""

    start_s: float
    seconds: float
    requests: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    throughput_per_s: float
    spread_ms: float | None = None
    """p95 - p5; None with too few requests."""
    client_cpu_s: float | None = None
    """Load generator's CPU time; constant work per request reveals drift."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostNoise:
    """Interference with a phase; None: unreadable."""

    steal_s: float | None = None
    throttled_s: float | None = None
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    peak_memory_mb: float | None = None
    """Largest replica's peak, MiB."""
    foreign_cpu_s: float | None = None
    """CPU time outside server and tuner; None if unknown."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy of counted devices in the measured phase."""

    per_request_j: float
    """All sources, over successful requests."""
    interval: Interval
    """Of `per_request_j`."""
    sources: Mapping[str, float]
    """J per request by source: `gpu` (whole board), `cpu` (packages)."""
    power_w: float
    """Mean of all sources."""
    clock_mhz: float | None
    """Mean graphics clock of a counted GPU."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Energy:
        """Inverse of `dataclasses.asdict`."""
        return cls(**{**data, "interval": Interval(**data["interval"])})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Resources held for 1,000 responses."""

    cpu_s: float
    """Core-seconds, the larger of reserved and used."""
    memory_mib_s: float
    """MiB-seconds, likewise; 0 if unknown."""
    gpu_s: float
    """GPU-seconds."""
    price: float
    """In the price file's currency, or core-seconds."""


MAX_LITTLES_LAW_ERROR = 0.05
"""Above it, throughput x mean contradicts the concurrency: the load was wrong."""
LATE_S = 1e-3
"""A request sent later than this waited for a connection or the client."""
MAX_LATE_SHARE = 0.01
"""With more late requests, the clients may be what was measured."""
MIN_FOR_P99 = 459
"""Fewest independent requests whose maximum exceeds the true p99 in 99 % (0.99^459 = 0.01)."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Result of an evaluation; latencies in ms."""

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
    """|throughput x mean / concurrency - 1|; None in an open loop."""
    warmup_s: float
    blocks: tuple[Block, ...]
    noise: HostNoise
    energy: Energy | None = None
    """None if not counted."""
    client_batch: int = 1
    """Items per request."""
    spread_ms: float = 0.0
    """p95 - p5; 0, which never occurs, in old measurements."""
    spread_interval: Interval = dataclasses.field(default=UNKNOWN)
    p99_effective: float | None = None
    """Independent requests behind the p99; None in old measurements."""
    histogram: LatencyHistogram | None = None
    """Of latencies; None in old measurements."""
    goodput: float | None = None
    """Responses per second within `--slo-ms`, if set."""
    goodput_interval: Interval = dataclasses.field(default=UNKNOWN)
    cost: Cost | None = None
    """None if resources are unknown."""
    rate_per_s: float | None = None
    """Mean due requests per second; None: closed loop."""
    late_share: float | None = None
    """Share of requests sent over `LATE_S` late."""
    refused: int = 0
    """Scenario requests rejected for their deadline: no errors, no responses."""
    ended_early: bool = False
    """Whether racing ended it."""
    repeats: int = 0
    """Earlier disturbed measurements and omitted slices."""

    @property
    def effective(self) -> float:
        """Independent requests behind the p99, at most all."""
        return float(self.requests if self.p99_effective is None else self.p99_effective)

    @property
    def has_p99(self) -> bool:
        """Whether p99 is reportable; with fewer requests it is luck."""
        return self.effective >= MIN_FOR_P99

    @property
    def told_p99_ms(self) -> float:
        """p99; NaN if not reportable."""
        return self.p99_ms if self.has_p99 else math.nan

    @property
    def items_per_s(self) -> float:
        """Items per second."""
        return self.throughput_per_s * self.client_batch

    @property
    def time_per_item_ms(self) -> float:
        """Measured time per item in ms, at any concurrency."""
        return 1e3 / self.items_per_s if self.items_per_s else math.inf

    @property
    def highest_per_s(self) -> float:
        """Rate found by a rate search; NaN: closed loop."""
        return math.nan if self.rate_per_s is None else self.rate_per_s

    @property
    def goodput_per_s(self) -> float:
        """Responses per second in time; NaN without a deadline."""
        return math.nan if self.goodput is None else self.goodput

    @property
    def answered_share(self) -> float:
        """Successful share of due requests."""
        return self.requests / (self.requests + self.refused + self.errors)

    @property
    def offered_per_s(self) -> float:
        """Due requests per second of an open loop."""
        return (self.requests + self.refused + self.errors) / self.seconds

    @property
    def cpu_s(self) -> float:
        """Core-seconds per 1,000 responses, or NaN."""
        return math.nan if self.cost is None else self.cost.cpu_s

    @property
    def memory_mib_s(self) -> float:
        """MiB-seconds per 1,000 responses, or NaN."""
        known = self.cost is not None and self.cost.memory_mib_s > 0
        return self.cost.memory_mib_s if known and self.cost is not None else math.nan

    @property
    def price(self) -> float:
        """Price of 1,000 responses, or NaN."""
        return math.nan if self.cost is None else self.cost.price

    @property
    def energy_j(self) -> float:
        """J per request, or NaN."""
        return math.nan if self.energy is None else self.energy.per_request_j

    @property
    def energy_interval(self) -> Interval:
        """Of `energy_j`."""
        return UNKNOWN if self.energy is None else self.energy.interval

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
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
            fields["histogram"] = LatencyHistogram(counted["first"], tuple(counted["counts"]))
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
    """Trial's outcome: ok, infeasible (cannot work), or failed (broke while running)."""

    status: Status
    cause: Cause | None = None
    reason: str = ""
    """One line; empty if ok."""


OK = Outcome(status="ok")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One evaluation of a search, as stored."""

    number: int
    configuration: Configuration
    outcome: Outcome
    measurement: Measurement | None
    origin: str
    """default, initial, guided, replicate or check."""
    objective: float | None
    """The sampler's minimised value; None unless ok."""
    launch_s: float
    """Seconds until the server was ready."""
    overhead_s: float
    """Seconds outside warm-up and measurement."""
    started_at: float
    """Unix time for display, not for durations."""
    missed: Measurement | None = None
    """Measurement that misses a constraint, or cannot decide it."""

    @property
    def measured(self) -> Measurement | None:
        """Measurement, constraints met or not."""
        return self.missed if self.measurement is None else self.measurement


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundEvaluation:
    """Evaluation of an arm in a round."""

    role: str
    outcome: Outcome
    measurement: Measurement | None
    """None unless ok."""
    slices_ms: tuple[float, ...] = ()
    """Mean latency per time slice, 0 for one left out; empty if unsliced."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RoundEvaluation:
        """Inverse of `as_json`."""
        measurement = data["measurement"]
        return cls(
            role=data["role"],
            outcome=Outcome(**data["outcome"]),
            measurement=None if measurement is None else Measurement.from_json(measurement),
            slices_ms=tuple(data.get("slices_ms", ())),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FailureCount:
    """Round evaluations and failures of an arm."""

    launched: int = 0
    failed: int = 0
    reason: str = ""
    """Of the last failure."""

    @property
    def mostly_failed(self) -> bool:
        """Whether more than half failed."""
        return 2 * self.failed > self.launched

    @property
    def all_failed(self) -> bool:
        """Whether all failed, of at least one."""
        return self.launched > 0 and self.failed == self.launched


UNKNOWN_PAIR_SD = 0.1
"""Assumed sd of two evaluations' log ratio."""
VerdictOutcome = Literal["better", "worse", "no difference shown"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ShortlistEntry:
    """Shortlisted configuration after re-evaluation."""

    configuration: Configuration
    ratio: float
    """Objective over the chosen one's, in these rounds."""
    interval: Interval
    """Simultaneous over the shortlist."""
    is_tied: bool
    """Whether it could equally have been chosen."""

    @property
    def is_compared(self) -> bool:
        """Whether it was re-evaluated."""
        return self.interval.low is not None

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ShortlistEntry:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "interval": Interval(**data["interval"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PredictionComparison:
    """Best against the prediction's choice."""

    configuration: Configuration
    """The prediction's choice."""
    outcome: VerdictOutcome
    """For the best."""
    ratio: float
    """Best over the prediction's choice."""
    interval: Interval
    pairs: int

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PredictionComparison:
        """Inverse of `as_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration(data["configuration"]),
                "interval": Interval(**data["interval"]),
            }
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """Configuration that none beats in both objectives."""

    configuration: Configuration
    values: tuple[float, ...]
    """Both objectives' estimates from all evaluations."""
    sds: tuple[float, ...]
    """Sd of their logs."""
    trial: int | None
    """A trial that evaluated it."""
    is_chosen: bool
    """Whether it is verified and exported."""

    def interval(self, place: int) -> Interval:
        """Return the 95 % interval of one objective."""
        reach = math.exp(1.96 * self.sds[place])
        return Interval(low=self.values[place] / reach, high=self.values[place] * reach)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {**dataclasses.asdict(self), "configuration": dict(self.configuration)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParetoPoint:
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
class OpenLoopCheck:
    """Open-loop check of a closed-loop study: default and best once each."""

    rate_per_s: float
    """Same Poisson arrivals for both."""
    share: float
    """Of the best's closed-loop throughput."""
    starts: tuple[RoundEvaluation, ...]
    """Of arms "default" and "best"."""

    def of(self, role: str) -> RoundEvaluation:
        """Return an arm's evaluation."""
        return next(start for start in self.starts if start.role == role)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OpenLoopCheck:
        """Inverse of `as_json`."""
        return cls(**{**data, "starts": tuple(map(RoundEvaluation.from_json, data["starts"]))})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VerificationState:
    """Study after its search: what to verify, and rounds."""

    stopped: str
    """Why the search ended."""
    best: Configuration | None
    """Recommendation, if a trial succeeded."""
    pairs: int
    """Planned rounds of default and best."""
    starts: tuple[RoundEvaluation, ...] = ()
    """Of default, best, and a compared prediction."""
    finalists: tuple[Configuration, ...] = ()
    """Shortlist, recommendation first; one leaves no choice."""
    finals: tuple[RoundEvaluation, ...] = ()
    """Rounds of the shortlist."""
    standings: tuple[ShortlistEntry, ...] | None = None
    """Shortlist results, best first; None while open."""
    guess: Configuration | None = None
    """The prediction's choice, unless best or default."""
    presumed_sd: float = UNKNOWN_PAIR_SD
    """Assumed sd of pairs' log ratios."""
    front: tuple[ParetoPoint, ...] = ()
    """With two objectives."""
    open_loop: OpenLoopCheck | None = None
    """None if pending, or without time."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Arms of each verification round."""
        return ("default", "best") if self.guess is None else ("default", "best", "guess")

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
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
    def from_json(cls, data: Mapping[str, Any]) -> VerificationState:
        """Inverse of `as_json`."""
        standings, guess = data.get("standings"), data.get("guess")
        open_loop = data.get("open_loop")
        return cls(
            stopped=data["stopped"],
            best=None if data["best"] is None else Configuration(data["best"]),
            pairs=data["pairs"],
            starts=tuple(map(RoundEvaluation.from_json, data["starts"])),
            finalists=tuple(map(Configuration, data.get("finalists", ()))),
            finals=tuple(map(RoundEvaluation.from_json, data.get("finals", ()))),
            standings=None
            if standings is None
            else tuple(map(ShortlistEntry.from_json, standings)),
            guess=None if guess is None else Configuration(guess),
            presumed_sd=float(data.get("presumed_sd", UNKNOWN_PAIR_SD)),
            front=tuple(map(ParetoPoint.from_json, data.get("front", ()))),
            open_loop=None if open_loop is None else OpenLoopCheck.from_json(open_loop),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecondObjectiveVerdict:
    """Verdict on a second objective, by the same pairs."""

    objective: str
    outcome: VerdictOutcome
    ratio: float
    """Best over default."""
    interval: Interval
    """In this session."""
    another_day: Interval
    """Of another session's ratio."""
    text: str
    """One sentence."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Default against best in alternating rounds; ratios are best over default."""

    outcome: VerdictOutcome
    ratio: float
    interval: Interval
    """In this session."""
    another_day: Interval
    """Of another session's ratio."""
    throughput_ratio: float | None
    throughput_interval: Interval
    p99_ratio: float | None
    """None if too few pairs have both p99."""
    p99_interval: Interval
    default: tuple[Measurement, ...]
    best: tuple[Measurement, ...]
    text: str
    """One sentence."""
    against_guess: PredictionComparison | None = None
    """None without prediction, or with the same choice."""
    second: SecondObjectiveVerdict | None = None
    """On the second objective."""
    launch_sd: float | None = None
    """Sd of pairs' log mean ratios beyond that of slices within.

    None without slices.
    """

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
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
        fields["against_guess"] = (
            None if against is None else PredictionComparison.from_json(against)
        )
        second = fields.get("second")
        fields["second"] = (
            None
            if second is None
            else SecondObjectiveVerdict(
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
    """Knob for reports."""

    name: str
    unit: str
    scale: Literal["linear", "log"]
    values: tuple[Value, ...]
    """Searched grid in order."""
    default: Value


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedModels:
    """Scenario's models sharing replicas."""

    groups: Mapping[str, tuple[str, int]]
    """Group -> model and copies, named NAME-0, NAME-1, ..."""
    settings: Mapping[str, Value]
    """Default server settings."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {"groups": dict(self.groups), "settings": dict(self.settings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SharedModels:
        """Inverse of `as_json`."""
        groups = {
            name: (str(model), int(copies)) for name, (model, copies) in data["groups"].items()
        }
        return cls(groups=groups, settings=dict(data["settings"]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputFacts:
    """Model input and what is sent, in words."""

    name: str
    datatype: str
    shape: str
    """With dimension names: `[items, 3, height, width]`; unnamed: `?`."""
    items: str
    """Item axis, if any, and why."""
    free: tuple[str, ...]
    """Other free dimensions."""
    sent: str
    """Shape and values in a request."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InputSummary:
    """Inputs sent by a study."""

    inputs: tuple[InputFacts, ...]
    whole: str
    """Why it is unbatched; empty: batched."""
    source: str
    """Origin of the inputs."""

    @property
    def lines(self) -> tuple[str, ...]:
        """Lines per input, and one if unbatched."""
        told = [f"input {one.name} {one.datatype} {one.shape}: {one.sent}" for one in self.inputs]
        if self.whole:
            told.append(f"served whole, one request at a time: {self.whole}")
        return tuple(told)

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> InputSummary:
        """Inverse of `as_json`."""
        inputs = (InputFacts(**{**one, "free": tuple(one["free"])}) for one in data["inputs"])
        return cls(inputs=tuple(inputs), whole=str(data["whole"]), source=str(data["source"]))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StudyRecord:
    """Study for reports, exports and comparisons."""

    name: str
    folder: str
    """Absolute path."""
    model: str
    concurrency: int
    sampler: str
    objective: str
    """Key of `tuner.metrics.objective.OBJECTIVES`."""
    knobs: tuple[KnobInfo, ...]
    trials: tuple[Trial, ...]
    default: Configuration
    best: Configuration | None
    """Recommendation, if a trial succeeded."""
    verdict: Verdict | None
    """None with fewer than two complete pairs."""
    fresh_starts: Mapping[str, FailureCount]
    """Of the verification, by arm."""
    notes: tuple[str, ...]
    """Omitted knobs, limits not enforced, synthetic payloads, early stop."""
    environment: Mapping[str, Any]
    """environment.json: host, cores, memory, versions, limits."""
    settings: Mapping[str, Any]
    """settings.yaml: all settings of the study."""
    records: Mapping[str, RequestRecords]
    """Saved requests of "default" and "best"."""
    is_finished: bool = True
    """False during search and verification: no result yet."""
    engine: str = OUR_ENGINE
    """Engine in reports."""
    engine_file: str | None = None
    """Text of the engine file, if any."""
    used_s: float | None = None
    """Duration over all commands, if known."""
    signature: Signature | None = None
    """None in old studies."""
    client_batch: int = 1
    """Items per request."""
    finalists: tuple[ShortlistEntry, ...] = ()
    """Shortlist results, best first; empty without a choice."""
    second: str | None = None
    """Second objective, if any."""
    front: tuple[ParetoPoint, ...] = ()
    """Pareto front, best first objective first."""
    rate_per_s: float | None = None
    """Due requests per second; None: closed loop."""
    shared: SharedModels | None = None
    """Models of a scenario."""
    sent: InputSummary | None = None
    """None for scenarios and old studies."""
    told: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Declared inputs beyond the model's file, as settings `model.shapes`, `model.values`."""
    open_loop: OpenLoopCheck | None = None
    """Open-loop check, if done."""

    @property
    def is_open(self) -> bool:
        """Whether it was an open loop."""
        return self.rate_per_s is not None or self.objective == "rate"

    @property
    def offered_per_s(self) -> float | None:
        """Mean requests per second sent in a scenario.

        From the verdict, else the search.
        """
        if self.shared is None:
            return None
        told = () if self.verdict is None else (*self.verdict.default, *self.verdict.best)
        told = told or tuple(trial.measurement for trial in self.trials if trial.measurement)
        seconds = sum(one.seconds for one in told)
        return sum(one.offered_per_s * one.seconds for one in told) / seconds if seconds else None

    @property
    def arrivals(self) -> str | None:
        """Requested arrivals of an open loop."""
        asked = self.settings.get("target", {}).get("arrivals")
        return None if asked is None else str(asked)

    @property
    def is_of_other_engine(self) -> bool:
        """Whether another engine was tuned."""
        return self.engine != OUR_ENGINE

    @property
    def scenario(self) -> str | None:
        """Scenario file, if any."""
        asked = self.settings.get("target", {}).get("scenario")
        return None if asked is None else str(asked)

    @property
    def served(self) -> str | None:
        """Model to start a server with; None: deployed later."""
        return self.target if self.scenario is None else None

    @property
    def target(self) -> str:
        """Model in commands: bundled name or path."""
        return str(self.settings.get("target", {}).get("model") or self.model)

    @property
    def is_trusted(self) -> bool:
        """Whether the model may run its files' code; serving commands then say so."""
        return bool(self.settings.get("target", {}).get("trust"))

    @property
    def home(self) -> str:
        """Spawner: `replica.home`."""
        return str(self.settings.get("target", {}).get("home") or "process")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerRun:
    """One search of a comparison."""

    sampler: str
    repeat: int
    """From 0; runs of a repeat share a seed and pair up."""
    seed: int
    study: str
    """Study with its trials."""
    objectives: tuple[float | None, ...]
    """Per trial in its unit, not negated; None unless ok."""
    best_so_far: tuple[float | None, ...]
    """After each trial; None before a success."""
    wall_s: float
    winner: Configuration | None
    """Recommendation, if a trial succeeded."""
    remeasured: tuple[Measurement, ...] = ()
    """The winner's final evaluations, alternating with others."""
    seconds: tuple[float, ...] = ()
    """Time until each trial's end, profile included, other searches not.

    Empty in old files.
    """
    profiling: int = 0
    """Budget's trials spent on the profile."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
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
    """Two samplers compared by re-evaluated winners."""

    first: str
    second: str
    outcome: VerdictOutcome
    """Of `first` against `second`."""
    ratio: float
    """`first`'s winners over `second`'s."""
    interval: Interval
    text: str
    """One sentence, perhaps without a shown difference."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord:
    """Result of `tune compare`."""

    name: str
    model: str
    concurrency: int
    objective: str
    """As in StudyRecord."""
    samplers: tuple[str, ...]
    repeats: int
    trials: int
    """Per run, default and failures included."""
    runs: tuple[SamplerRun, ...]
    differences: tuple[SamplerDifference, ...]
    """For re-evaluated winners."""
    notes: tuple[str, ...]
    environment: Mapping[str, Any]
    settings: Mapping[str, Any]
    client_batch: int = 1
    """Items per request."""

    def as_json(self) -> dict[str, Any]:
        """Return plain data."""
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
