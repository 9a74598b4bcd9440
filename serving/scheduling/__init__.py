"""Scheduling: the seam that every scheduler stands behind, and the registry of schedulers."""

from __future__ import annotations

from collections.abc import Callable

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.seam import Scheduler
from serving.settings import ServingSettings
from serving.values import ModelId

SCHEDULERS: dict[str, Callable[[ModelId, ServingSettings], Scheduler]] = {
    "adaptive": AdaptiveScheduler,
}
"""`scheduling.policy` -> factory of a scheduler for the replicas of one model."""

SHARED: dict[str, Callable[[ServingSettings], Scheduler]] = {
    "clockwork": ClockworkScheduler.of,
}
"""`scheduling.policy` -> factory of a scheduler for replicas that many models share."""
