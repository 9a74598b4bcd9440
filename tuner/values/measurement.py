"""Results of one evaluation: latencies, throughput, noise, energy and cost."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from tuner.values.histogram import LatencyHistogram
from tuner.values.interval import UNKNOWN, Interval
from tuner.values.plain import Plain


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Part of a measured phase that lasts a whole number of CPU quota periods (0.1 s)."""

    start_s: float
    seconds: float
    requests: int
    mean_ms: float
    p50_ms: float
    p99_ms: float
    throughput_per_s: float
    spread_ms: float | None = None
    """p95 - p5, or None if there are too few requests."""
    client_cpu_s: float | None = None
    """CPU time of the load generator, whose constant work per request reveals drift."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostNoise:
    """Interference with a phase; unreadable values are None."""

    steal_s: float | None = None
    throttled_s: float | None = None
    client_cpu_s: float | None = None
    server_cpu_s: float | None = None
    peak_memory_mb: float | None = None
    """Peak memory of the largest replica in MiB."""
    neighbour_cpu_s: float | None = None
    """CPU time used by processes other than server and tuner."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy that the counted devices used in the measured phase."""

    per_request_j: float
    interval: Interval
    sources: Mapping[str, float]
    """Energy in J per request by source: `gpu` (whole board) or `cpu` (packages)."""
    power_w: float
    clock_mhz: float | None
    """Graphics clock of a counted GPU in MHz."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Resources held for 1,000 responses."""

    cpu_s: float
    """Core-seconds, the larger of reserved and used."""
    memory_mib_s: float
    """MiB-seconds, the larger of reserved and used; 0 if unknown."""
    gpu_s: float
    price: float
    """Price in the price file's currency, or core-seconds."""


MAX_LITTLES_LAW_ERROR = 0.05
"""Error above which throughput x mean contradicts the concurrency."""
LATE_S = 1e-3
"""Delay above which a request waited for a connection or the client."""
MAX_LATE_SHARE = 0.01
"""Share of late requests above which the measurement may reflect the clients."""
MIN_FOR_P99 = 459
"""Minimum number of independent requests for a p99.

Their maximum exceeds the true p99 with a probability of 99 % (0.99^459 = 0.01).
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measurement(Plain):
    """Measurements of one evaluation; latencies are in ms."""

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
    client_batch: int = 1
    """Number of items per request."""
    spread_ms: float = 0.0
    """p95 - p5, or 0 in old measurements."""
    spread_interval: Interval = UNKNOWN
    p99_effective: float | None = None
    """Number of independent requests behind the p99, or None in old measurements."""
    histogram: LatencyHistogram | None = None
    """Latency histogram, or None in old measurements."""
    goodput: float | None = None
    """Responses per second within the deadline (`--slo-ms`)."""
    goodput_interval: Interval = UNKNOWN
    cost: Cost | None = None
    rate_per_s: float | None = None
    """Mean number of requests due per second, or None in a closed loop."""
    late_share: float | None = None
    """Share of requests sent more than `LATE_S` late."""
    refused: int = 0
    """Number of scenario requests rejected for their deadline, neither errors nor responses."""
    ended_early: bool = False
    repeats: int = 0
    """Number of disturbed measurements before this one, or of omitted slices."""

    @property
    def effective(self) -> float:
        """Number of independent requests behind the p99."""
        return float(self.requests if self.p99_effective is None else self.p99_effective)

    @property
    def has_p99(self) -> bool:
        """Whether there are enough requests to report the p99."""
        return self.effective >= MIN_FOR_P99

    @property
    def reportable_p99_ms(self) -> float:
        """The p99, or NaN if not reportable."""
        return self.p99_ms if self.has_p99 else math.nan

    @property
    def items_per_s(self) -> float:
        """Items processed per second."""
        return self.throughput_per_s * self.client_batch

    @property
    def time_per_item_ms(self) -> float:
        """Measured time per item, whatever the concurrency."""
        return 1e3 / self.items_per_s if self.items_per_s else math.inf

    @property
    def max_rate_per_s(self) -> float:
        """Highest rate found by a rate search, or NaN in a closed loop."""
        return math.nan if self.rate_per_s is None else self.rate_per_s

    @property
    def goodput_per_s(self) -> float:
        """Responses per second within the deadline, or NaN without a deadline."""
        return math.nan if self.goodput is None else self.goodput

    @property
    def answered_share(self) -> float:
        """Share of the requests due that succeeded."""
        return self.requests / (self.requests + self.refused + self.errors)

    @property
    def offered_per_s(self) -> float:
        """Requests due per second in an open loop."""
        return (self.requests + self.refused + self.errors) / self.seconds

    @property
    def cpu_s(self) -> float:
        """Core-seconds per 1,000 responses, or NaN if unknown."""
        return math.nan if self.cost is None else self.cost.cpu_s

    @property
    def memory_mib_s(self) -> float:
        """MiB-seconds per 1,000 responses, or NaN if unknown."""
        known = self.cost is not None and self.cost.memory_mib_s > 0
        return self.cost.memory_mib_s if known and self.cost is not None else math.nan

    @property
    def price(self) -> float:
        """Price of 1,000 responses, or NaN if unknown."""
        return math.nan if self.cost is None else self.cost.price

    @property
    def energy_j(self) -> float:
        """Energy in J per request, or NaN if unknown."""
        return math.nan if self.energy is None else self.energy.per_request_j

    @property
    def energy_interval(self) -> Interval:
        """95 % interval of `energy_j`."""
        return UNKNOWN if self.energy is None else self.energy.interval
