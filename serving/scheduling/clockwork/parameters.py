"""Settings of the clockwork controller in the units that it uses."""

from __future__ import annotations

import dataclasses
from typing import Self

from serving.settings import ServingSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The controller's settings, in seconds, with Clockwork's defaults where it has any.

    `serving.settings.scheduling` describes them.
    """

    schedule_ahead_s: float = 0.010
    window_s: float = 0.010
    duration_margin: float = 0.0
    deadline_margin: float = 0.05
    max_items: int = 16
    max_waiting: int = 1_000_000
    max_exec_s: float = 0.025
    message_latency_s: float = 0.0005
    """Assumed message latency; the latency of results is measured later."""

    @classmethod
    def of(cls, settings: ServingSettings) -> Self:
        """Return the parameters that the settings describe."""
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
