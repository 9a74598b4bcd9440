"""What is told of batches that came back and of actions that ended, to those who count them. Values."""

from __future__ import annotations

from typing import NamedTuple

from serving.replica import wire
from serving.scheduling.seam import Action, Kind
from serving.values import ModelId, StageTimes

NOT_STARTED = (
    wire.ActionStatus.TOO_LATE,
    wire.ActionStatus.UNKNOWN_MODEL,
    wire.ActionStatus.NO_ROOM,
)
"""How an action ends that a replica has not begun."""


class BatchDone:
    """What is known of a batch that came back."""

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
        """Requests in it, whole or in part, whose clients still wait."""
        self.waited_s = waited_s
        """Of these together, from their arrival until the batch was sent."""
        self.late = late
        """Those of them whose answer left after their deadline."""


class ActionEnded(NamedTuple):
    """What became of something that a replica was to do."""

    kind: Kind
    outcome: str
    """`ok`, `failed`, `lost` (with its replica), or why it was not begun: `too_late` (its window had closed),
    `no_room`, `unknown_model`."""
    expected_s: float
    """As the scheduler had predicted."""
    took_s: float | None
    """In the replica; None: it was not begun, or nothing was to be measured."""


def ended(action: Action, status: int, times: StageTimes | None) -> ActionEnded:
    """An action that a replica has answered with a status."""
    outcome = "ok" if status == wire.ActionStatus.OK else "failed"
    took_s = None if times is None else times.input_s + times.exec_s + times.output_s
    if status in NOT_STARTED:
        outcome, took_s = wire.ActionStatus(status).name.lower(), None
    return ActionEnded(action.kind, outcome, action.expected_s, took_s)
