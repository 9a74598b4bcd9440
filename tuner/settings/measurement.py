"""Settings for the measurement in an evaluation."""

from __future__ import annotations

import dataclasses
import math

from tuner.errors import UsageError
from tuner.metrics import metric_constraints
from tuner.metrics import objective as objectives
from tuner.metrics.metric_constraints import MetricConstraint
from tuner.settings.option import check_range, option_field, require
from tuner.settings.workload import RATE

SCENARIO_S = 5.0
"""Measured seconds for a scenario, whose models are requested rarely."""
RATE_LOADS, USUAL_RATES = 20, 15
"""Maximum and usual number of rates that a rate search tries."""
OF_MEANS = frozenset({"mean", "throughput", "time-per-item"})
"""Objectives that follow from mean latency at a fixed concurrency (Little's law)."""
RATE_S = 1.0
"""Measured seconds per rate."""
RATE_WARMUP_S = 0.3
"""Minimum warm-up per rate, which drains the backlog of a rate that was too high."""
SHORT_S, USUAL_S = 0.6, 2.0
"""Measured seconds if mean latency alone decides, and otherwise."""
WARMUP_S = 0.1
"""Minimum warm-up; replicas forked from a warm process settle in 0.05 s."""
SETTLING_S = 2.0
"""Maximum time, after the warm-up, in which a new server settles."""
MAX_BLOCKS = 100
"""Maximum number of blocks per phase; blocks of longer phases are longer."""
QUOTA_PERIOD_S = 0.1
"""CPU quota period; the length of a block is a multiple of it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementSettings:
    """Metrics and duration of evaluations."""

    objective: str = option_field(
        "mean",
        "NAME[,NAME]",
        "metric to optimise: mean, p50, p95 or p99 latency (ms), throughput "
        "(requests/s), goodput (requests/s within --slo-ms), time-per-item (ms), "
        "consistency (p95 - p5 latency, ms), cost (per 1,000 requests, from --prices), "
        "cpu (core-s per 1,000 requests), memory (MiB-s per 1,000 requests), energy "
        "(J/request), or rate (highest open-loop requests/s that keeps --slo-ms); two, "
        "as mean,cost, search their Pareto front; default mean",
        parse=objectives.parse_names,
    )
    point: str = option_field(
        "knee",
        "NAME",
        "point of a two-objective front to verify and export: knee, or the objective in "
        "which it is best; default knee",
    )
    slo_ms: float | None = option_field(
        None,
        "MS",
        "upper limit of the p99 (ms); for goodput, the deadline of each request instead; "
        "default: no limit",
        parse=float,
    )
    constraints: tuple[str, ...] = option_field(
        (),
        "TEXT",
        "metric constraint METRIC <= NUMBER or METRIC >= NUMBER, as 'p99_ms <= 50'; "
        "repeatable; default: none",
        parse=metric_constraints.canonical,
        is_repeated=True,
        flag="--constraint",
    )
    prices: str | None = option_field(
        None,
        "FILE",
        "YAML file with prices per hour of a core (core_hour), a GiB (gib_hour) and a "
        "GPU (gpu_hour, if used), for the objective cost; default: core-seconds, with a "
        "GiB-second as an eighth of one",
    )
    requests: int | None = option_field(
        None,
        "COUNT",
        "requests measured per evaluation, instead of a time; default: by time",
        parse=int,
    )
    seconds: float | None = option_field(
        None,
        "S",
        "seconds measured per evaluation; default 0.6, or four latencies if longer, if "
        "the mean alone decides (objectives mean, throughput and time-per-item, without "
        "--slo-ms and --constraint); 5 with --scenario; else 2",
        parse=float,
    )
    warmup_s: float = option_field(
        WARMUP_S,
        "S",
        "least seconds of warm-up, always at least three latencies; a new server gets up "
        "to 2 s more to settle; default 0.1",
        parse=float,
    )
    timeout_s: float = option_field(
        10.0,
        "S",
        "seconds without a response after which a request is an error; default 10",
        parse=float,
    )
    load_clients: int = option_field(
        1,
        "COUNT",
        "processes of the load generator, among which connections or arrivals are "
        "dealt out, for loads that need more than one core of it; ends no trial early "
        "(--racing off); default 1, which makes some 90,000 requests/s",
        parse=int,
    )
    racing: str = option_field(
        "on",
        "on|off",
        "on: end a trial after one, two or three quarters of its time if it clearly "
        "cannot beat the best so far (objectives mean, throughput and time-per-item in a "
        "closed loop, without --slo-ms, --constraint and --requests); default on",
        choices=("on", "off"),
    )
    pairs: int = option_field(
        30,
        "COUNT",
        "most evaluations each of the default and the best for the verdict, fewer if it "
        "is clear earlier; default 30",
        parse=int,
    )

    def __post_init__(self) -> None:
        for limit in self.limits:
            if limit.metric == "goodput_per_s" and self.slo_ms is None:
                raise UsageError(
                    f"--constraint {limit.text!r}: goodput counts responses within a "
                    "deadline; add --slo-ms MS"
                )
        try:
            objectives.parse_names(self.objective)
        except ValueError as error:
            raise UsageError(f"--objective {error}") from None
        points = ("knee", *((self.first, self.second) if self.second else ()))
        require(
            self.point in points,
            "--point",
            self.point,
            " or ".join(str(one) for one in points)
            if self.second
            else "knee, as there is only one objective",
        )
        check_range("--slo-ms", self.slo_ms, "milliseconds above 0", above=0)
        if RATE in self.names and self.second is not None:
            raise UsageError(
                f"--objective {self.objective}: {RATE} cannot be combined with another objective"
            )
        if self.objective == RATE and self.slo_ms is None:
            raise UsageError(
                "--find-rate: needs the p99 limit that the rate must keep; add --slo-ms MS"
            )
        if "goodput" in self.names and self.slo_ms is None:
            raise UsageError(
                f"--objective {self.objective}: counts responses within a deadline; add --slo-ms MS"
            )
        check_range("--requests", self.requests, "a whole number from 20", low=20)
        told = "from 0.4 (four quota periods) to 3600"
        check_range("--seconds", self.seconds, told, low=0.4, high=3600)
        check_range("--warmup", self.warmup_s, "from 0 to 3600", low=0, high=3600)
        check_range("--timeout", self.timeout_s, "seconds above 0", above=0)
        check_range("--load-clients", self.load_clients, "from 1 to 64", low=1, high=64)
        check_range("--pairs", self.pairs, "a whole number from 2", low=2)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the objectives."""
        return tuple(self.objective.split(","))

    @property
    def first(self) -> str:
        """Name of the first objective."""
        return self.names[0]

    @property
    def second(self) -> str | None:
        """Name of the second objective, if any."""
        return self.names[1] if len(self.names) > 1 else None

    @property
    def counts_goodput(self) -> bool:
        """Whether `--slo-ms` defines goodput rather than a p99 constraint."""
        found = metric_constraints.parse_all(self.constraints)
        return "goodput" in self.names or any(one.metric == "goodput_per_s" for one in found)

    @property
    def deadline_ms(self) -> float | None:
        """Deadline of each request, if goodput is counted."""
        return self.slo_ms if self.counts_goodput else None

    @property
    def limits(self) -> tuple[MetricConstraint, ...]:
        """Constraints on metrics, including the p99 limit from `--slo-ms`.

        `--slo-ms` sets no such limit if the objective is goodput or the rate.
        """
        found = metric_constraints.parse_all(self.constraints)
        if self.slo_ms is None or self.counts_goodput or self.objective == RATE:
            return found
        return (metric_constraints.of_slo(self.slo_ms), *found)

    @property
    def is_of_means(self) -> bool:
        """Whether mean latency, or throughput as its inverse, decides alone."""
        return self.objective in OF_MEANS and not self.limits

    @property
    def measured_s(self) -> float:
        """Measured seconds per evaluation, unless latencies are long.

        If mean latency decides, drift dominates: longer trials gain little (docs/measurement.md).
        """
        if self.seconds is not None:
            return self.seconds
        if self.objective == RATE:
            return RATE_S
        return SHORT_S if self.is_of_means else USUAL_S

    @property
    def compared_s(self) -> float:
        """Minimum measured seconds of interleaved evaluations; 0 if mean latency decides."""
        return 0.0 if self.is_of_means and self.seconds is None else self.measured_s

    @property
    def load_s(self) -> float:
        """Warm-up and measured seconds, estimated for a rate search."""
        if self.objective == RATE:
            return USUAL_RATES * (max(RATE_WARMUP_S, self.warmup_s) + self.measured_s)
        return self.warmup_s + self.measured_s

    @property
    def block_s(self) -> float:
        """Length of a block: the fewest quota periods that `MAX_BLOCKS` allows."""
        periods = math.ceil(self.measured_s / MAX_BLOCKS / QUOTA_PERIOD_S - 1e-9)
        return max(1, periods) * QUOTA_PERIOD_S
