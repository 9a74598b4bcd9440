"""Events for metrics: completed batches and ended actions."""

from __future__ import annotations

from typing import NamedTuple

from serving import wire
from serving.scheduling.interface import Action, ActionType
from serving.values import ModelId, StageTimes

NOT_STARTED = (
    wire.ActionStatus.TOO_LATE,
    wire.ActionStatus.UNKNOWN_MODEL,
    wire.ActionStatus.NO_ROOM,
)


class BatchDone:
    """A completed batch."""

    __slots__ = ("items", "late", "model", "parts", "times", "waited_s", "worker")

    def __init__(
        self,
        worker: int,
        model: ModelId,
        items: int,
        times: StageTimes,
        parts: int,
        waited_s: float,
        late: int,
    ) -> None:
        self.worker = worker
        self.model = model
        self.items = items
        self.times = times
        self.parts = parts
        """Requests in it, whole or in part, still in flight."""
        self.waited_s = waited_s
        self.late = late


class ActionEnded(NamedTuple):
    """Outcome of an action."""

    kind: ActionType
    outcome: str
    """`ok`, `failed`, `lost` (with its replica), or why it was not started."""
    expected_s: float
    took_s: float | None


def make_action_ended(action: Action, status: int, times: StageTimes | None) -> ActionEnded:
    """Event for an action's status."""
    outcome = "ok" if status == wire.ActionStatus.OK else "failed"
    took_s = None if times is None else times.input_s + times.exec_s + times.output_s
    if status in NOT_STARTED:
        outcome, took_s = wire.ActionStatus(status).name.lower(), None
    return ActionEnded(action.kind, outcome, action.expected_s, took_s)
