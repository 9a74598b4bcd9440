"""Errors for rejected requests."""

from __future__ import annotations

from serving.errors import (
    CannotFinish,
    CannotLoad,
    DeadlineExceeded,
    DeadlineTooShort,
    DeadlineUnreachable,
    InferenceFailed,
    Overloaded,
    ReplicaFailed,
    ServingError,
    TooManyItems,
)
from serving.scheduling.interface import Rejection, RejectionReason


def error_for(refusal: Rejection) -> ServingError:
    """Return the error that tells a client of a rejection."""
    match refusal.reason:
        case RejectionReason.QUEUE_FULL:
            return Overloaded(int(refusal.detail), retry_after_s=1.0)
        case RejectionReason.TOO_MANY_ITEMS:
            return TooManyItems(int(refusal.detail))
        case RejectionReason.DEADLINE_UNREACHABLE:
            return DeadlineUnreachable()
        case RejectionReason.DEADLINE_IN_QUEUE:
            return DeadlineExceeded("queue")
        case RejectionReason.DEADLINE_IN_REPLICA:
            return DeadlineExceeded("replica")
        case RejectionReason.CANNOT_FINISH if refusal.detail:
            return DeadlineTooShort(float(refusal.detail))
        case RejectionReason.CANNOT_FINISH:
            return CannotFinish(retry_after_s=1.0)
        case RejectionReason.CANNOT_LOAD:
            return CannotLoad(retry_after_s=1.0)
        case RejectionReason.WORKER_LOST:
            return ReplicaFailed(refusal.detail)
        case RejectionReason.NOT_STARTED:
            return InferenceFailed("two replicas did not start the batch that held the request")
