"""Errors for rejected requests. Pure."""

from __future__ import annotations

from serving.errors import (
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    DeadlineTooShort,
    Hopeless,
    Overloaded,
    PredictionFailed,
    ReplicaFailed,
    ServingError,
    TooManyItems,
)
from serving.scheduling.interface import Reason, Refusal


def error_of(refusal: Refusal) -> ServingError:
    """Return the error for a rejection."""
    match refusal.reason:
        case Reason.QUEUE_FULL:
            return Overloaded(int(refusal.detail), retry_after_s=1.0)
        case Reason.TOO_MANY_ITEMS:
            return TooManyItems(int(refusal.detail))
        case Reason.HOPELESS:
            return Hopeless()
        case Reason.DEADLINE_IN_QUEUE:
            return DeadlineExceeded("queue")
        case Reason.DEADLINE_IN_REPLICA:
            return DeadlineExceeded("replica")
        case Reason.CANNOT_FINISH if refusal.detail:
            return DeadlineTooShort(float(refusal.detail))
        case Reason.CANNOT_FINISH:
            return CannotFinish(retry_after_s=1.0)
        case Reason.CANNOT_LOAD:
            return CannotLoad(retry_after_s=1.0)
        case Reason.WORKER_LOST:
            return ReplicaFailed(refusal.detail)
        case Reason.NOT_STARTED:
            return PredictionFailed("two replicas did not start the batch that held the request")
