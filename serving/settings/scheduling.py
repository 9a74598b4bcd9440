"""Settings on a request's way to a worker: cache, queue, batches, routing."""

from __future__ import annotations

import dataclasses
from typing import Literal

from serving.settings.setting import setting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchingSettings:
    """When queued requests become a batch, counted in items; a request may have several items."""

    policy: Literal["fixed", "aimd", "quantile", "delayed"] = setting("fixed")
    """How batch size and wait are chosen, up to `max_size` and `timeout_us` (docs/batching.md).

    `fixed`: as set. `aimd`, `quantile`: the size follows `slo_ms`. `delayed`: the wait follows the
    arrivals. Default fixed: predictable.
    """
    slo_ms: float = setting(20.0, "ms", 0.1, 3_600_000)
    """Latency SLO for `aimd` and `quantile`; a batch gets a third. Default 20 ms, as in Clipper."""
    max_size: int = setting(8, "items", 1, 4096)
    """Maximum items in a batch; larger requests are split. Default 8: most gain for little wait."""
    timeout_us: int = setting(0, "us", 0, 10_000_000)
    """Maximum wait of the oldest item while a worker is free. Default 0: no wait."""
    pad_to: int | None = setting(None, "", 1, 65_536)
    """Pad free dimensions to the next multiple of this, so that more requests share a batch.

    Needs `model.pad`, and a model whose responses stay the same, checked when it is loaded
    (docs/batching.md). Default none: only requests of the same shapes share a call.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """Response cache of each model version."""

    capacity_mb: int = setting(0, "MiB", 0, 1_048_576)
    """Maximum size of keys and responses; the least recently used ones are evicted.

    Default 0, off: a cache distorts measurements, and helps only if inputs repeat.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Which free worker takes the next batch."""

    policy: Literal["least-loaded", "round-robin"] = setting("least-loaded")
    """`least-loaded`: the worker with the fewest batches or, in a tie, the one free soonest.

    `round-robin`: each in turn.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """The queue in front of the workers."""

    policy: Literal["adaptive", "clockwork"] = setting("adaptive", live=False)
    """How requests become batches (docs/schedulers.md).

    `adaptive`: each model has its own replicas. `clockwork`: models share replicas and are loaded
    on demand; requests that cannot meet their deadline are rejected on arrival. Default adaptive:
    it needs no deadlines.
    """
    queue_capacity: int = setting(2048, "items", 1, 1_000_000)
    """Maximum number of queued items; beyond it, the flow with the most items gets 429.

    A flow is the requests of one client application. A single request with more items gets 413.
    Default 2048: some 0.1 s of a fast model's work.
    """
    default_deadline_s: float = setting(30.0, "s", 0.001, 86_400)
    """Deadline of a request that has none. Default 30 s: longer than a patient client waits."""
    max_deadline_s: float = setting(300.0, "s", 0.001, 86_400)
    """Maximum deadline that a request can have, to bound its time in the queue.

    `default_deadline_s` may be longer. Default 300 s: ten default deadlines, for slow models.
    """
    default_priority: int = setting(2, "", 1, 2**31 - 1)
    """Priority of a request that has none; 1 is the most urgent.

    Default 2: it leaves room on both sides.
    """


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClockworkSettings:
    """How models share replicas if `scheduling.policy` is clockwork (docs/schedulers.md)."""

    memory_mb: int | None = setting(None, "MiB", 1, 4_194_304)
    """Memory for models in each replica; beyond it, the least recently used model is evicted.

    Default none: half of `replica.memory_mb`, or no limit without it. A change starts new replicas.
    """
    page_mb: float = setting(1.0, "MiB", 0.0625, 1024, live=False)
    """Unit in which `memory_mb` is counted. Default 1 MiB: small CPU models are not much larger."""
    schedule_ahead_ms: float = setting(10.0, "ms", 0.1, 1000)
    """How long before a replica becomes free it is given its next batch.

    At most a tenth of the shortest recent relative deadline is used. Default 10 ms, as in
    Clockwork: longer than a message and a plan take. A longer time decides earlier, among fewer
    requests.
    """
    window_ms: float = setting(50.0, "ms", 0.1, 1000)
    """Maximum delay in starting a batch or model load; one that would be later is dropped.

    Default 50 ms: on shared cores neighbours delay replicas by more than Clockwork's 10 ms, which
    suits a dedicated accelerator.
    """
    duration_margin: float = setting(0.1, "", 0, 10)
    """Share by which a batch may take longer than the longest of the last ten batches of its size.

    Default 0.1: cores are shared with the gateway; Clockwork's 0 suits a dedicated accelerator.
    """
    deadline_margin: float = setting(0.05, "", 0, 0.5)
    """Share of a request's time that plans leave unused.

    Default 0.05: Clockwork's 5 ms out of 100 ms, as a share so that short deadlines can be met.
    """
    max_exec_ms: float = setting(25.0, "ms", 0.1, 60_000)
    """Maximum duration of a batch with several items, since it blocks other models.

    Default 25 ms, as in Clockwork.
    """
