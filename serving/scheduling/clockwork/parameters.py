"""Settings of the clockwork controller."""

from __future__ import annotations

import dataclasses
from typing import Self

from serving.settings import ServingSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Settings of the controller."""

    schedule_ahead_s: float = 0.010
    """A worker gets its next action when it will be free within this.
    Default 10 ms, Clockwork's: longer than a message and a plan; more would leave fewer requests to
    choose from."""
    window_s: float = 0.010
    """An action is not started this long after its expected start. Default 10 ms, Clockwork's."""
    duration_margin: float = 0.0
    """Margin over the longest of the last ten durations, as a share.
    Default 0, for a dedicated accelerator; shared cores need more."""
    deadline_margin: float = 0.05
    """Share of a request's time left over as a margin.
    Default 5 %, Clockwork's 5 ms of 100 ms; a share suits short deadlines too."""
    max_items: int = 16
    """Items of the largest batch."""
    max_waiting: int = 1_000_000
    """Items that may be queued."""
    max_exec_s: float = 0.025
    """Longest batch of several items, as it holds up all others. Default 25 ms, Clockwork's."""
    message_latency_s: float = 0.0005
    """Message latency until it is measured."""

    @classmethod
    def of(cls, settings: ServingSettings) -> Self:
        """Convert settings."""
        clockwork = settings.clockwork
        return cls(
            schedule_ahead_s=1e-3 * clockwork.schedule_ahead_ms,
            window_s=1e-3 * clockwork.window_ms,
            duration_margin=clockwork.duration_margin,
            deadline_margin=clockwork.deadline_margin,
            max_items=settings.batching.max_size,
            max_waiting=settings.scheduling.queue_capacity,
            max_exec_s=1e-3 * clockwork.max_exec_ms,
        )
