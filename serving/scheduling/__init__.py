"""Schedulers by their name in `scheduling.policy`."""

from __future__ import annotations

from collections.abc import Callable

from serving.scheduling.adaptive.scheduler import AdaptiveScheduler
from serving.scheduling.clockwork.scheduler import ClockworkScheduler
from serving.scheduling.interface import Scheduler
from serving.settings import ServingSettings
from serving.values import ModelId

SCHEDULERS: dict[str, Callable[[ModelId, ServingSettings], Scheduler]] = {
    "adaptive": AdaptiveScheduler,
}
"""`scheduling.policy` -> factory of a scheduler for one model's replicas."""

SHARED: dict[str, Callable[[ServingSettings], Scheduler]] = {
    "clockwork": ClockworkScheduler.of,
}
"""`scheduling.policy` -> factory of a scheduler for replicas shared by many models."""
