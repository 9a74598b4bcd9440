"""Errors of the serving core, each with the HTTP status of its response.

    ServingError (500)
    ├── InvalidRequest (400)
    │   ├── TooLarge (413)
    │   │   ├── BodyTooLarge (413)
    │   │   ├── JsonTooLarge (413)
    │   │   ├── RequestTooLarge (413)
    │   │   └── SplitTooLarge (413)
    │   └── TooManyItems (413)
    ├── UnknownModel (404)
    │   └── UnknownLabel (404)
    ├── Overloaded (429)
    ├── StaleRevision (409)
    ├── ChangeInWork (409)
    ├── BufferFull (503)
    ├── NotReady (503)
    ├── CannotFinish (503)
    ├── DeadlineTooShort (503)
    ├── CannotLoad (503)
    ├── DeadlineExceeded (504)
    │   └── DeadlineUnreachable (504)
    ├── Unimplemented (501)
    ├── ReplicaFailed (500)
    ├── InferenceFailed (500)
    ├── InvalidSettings (400)
    ├── ModelLoadFailed (500)
    │   └── ModelMissing (500)
    ├── ReplicaStartFailed (500)
    ├── LimitsUnavailable (500)
    └── AcceleratorUnavailable (500)

Errors keep all facts as attributes and pass them to `super().__init__`, so that they can be
pickled. Messages name what was given, what was expected and what to try.
"""

from __future__ import annotations

from typing import ClassVar

from serving.error_text import nearest, short_repr


class ServingError(Exception):
    """Base class of all errors of the serving core."""

    status: ClassVar[int] = 500
    template: ClassVar[str] = ""
    """Message with the error's facts in braces; empty if the message is the only fact."""

    def __str__(self) -> str:
        return self.template.format(self) or super().__str__()


class InvalidRequest(ServingError):
    """The request is malformed or does not fit the model."""

    status = 400


class TooLarge(InvalidRequest):
    """A size limit is exceeded."""

    status = 413

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes


class BodyTooLarge(TooLarge):
    """The body exceeds the configured limit."""

    template = "the body is larger than the limit of {0.limit_bytes} bytes (server.max_body_bytes)"


class JsonTooLarge(TooLarge):
    """The body's JSON exceeds the limit for parsing on the event loop's thread."""

    template = (
        "the request's JSON is larger than the limit of {0.limit_bytes} bytes "
        "(server.max_json_bytes), and not only because of arrays of numbers, which a "
        "replica parses; send less per request, or binary tensors"
    )


class RequestTooLarge(TooLarge):
    """Even alone, the request is too large for a message to a replica."""

    template = (
        "the request is larger than a message to a replica may be, "
        "{0.limit_bytes} bytes; send fewer items at a time"
    )


class SplitTooLarge(TooLarge):
    """The request cannot be cut, and is too large to send whole with each batch of its items."""

    template = (
        "the request would be sent to replicas whole for each batch of its items, "
        "more than {0.limit_bytes} bytes in total; send fewer items at a time, or "
        "binary tensors, which are split"
    )


class TooManyItems(InvalidRequest):
    """Even alone, the request exceeds the queue's capacity."""

    status = 413
    template = (
        "the request has more items than may be queued, {0.capacity} "
        "(scheduling.queue_capacity); send fewer items at a time"
    )

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.capacity = capacity


class UnknownModel(ServingError):
    """There is no model or version with that name."""

    status = 404

    def __init__(self, name: str, known: tuple[str, ...], version: str | None = None) -> None:
        """Store the facts; `version` is the unknown version or label if the model itself exists.

        `known` lists the models or, if `version` is given, the model's versions and labels.
        """
        super().__init__(name, known, version)
        self.name = name
        self.known = known
        self.version = version

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        name = short_repr(self.name)
        if self.version is None:
            return f"model {name} is not known{nearest(self.name, self.known)} (known: {known})"
        words = [known for known in self.known if not known.isdigit()]  # 2 is no misspelt 12
        return (
            f"model {name} version {short_repr(self.version)} is not known{nearest(self.version, words)} "
            f"(its versions and labels: {known})"
        )


class UnknownLabel(UnknownModel):
    """The model has no such label: `version` is the label, `known` the existing labels."""

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        hint = nearest(str(self.version), self.known)
        label = short_repr(self.version)
        return f"model {short_repr(self.name)} has no label {label}{hint} (its labels: {known})"


class Overloaded(ServingError):
    """The queue is full."""

    status = 429
    template = (
        "the queue has reached its limit of {0.capacity} items; try again in {0.retry_after_s:g} s"
    )

    def __init__(self, capacity: int, retry_after_s: float) -> None:
        super().__init__(capacity, retry_after_s)
        self.capacity = capacity
        self.retry_after_s = retry_after_s


class ChangeInWork(ServingError):
    """A change that names the revision it is made on came while another one was in work."""

    status = 409

    def __str__(self) -> str:
        return (
            "another change is in work, which may make the revision given in If-Match stale; nothing "
            "was changed: send the change again once the other one has been answered"
        )


class StaleRevision(ServingError):
    """A change was made on a state that another gateway has changed meanwhile."""

    status = 409

    def __str__(self) -> str:
        return (
            f"another change came first, the state is now at revision {self.now}; nothing was "
            "changed: look at it (GET) and send the change again"
        )

    def __init__(self, now: int) -> None:
        super().__init__(now)
        self.now = now


class BufferFull(ServingError):
    """There is no buffer space for another body."""

    status = 503
    template = (
        "requests in the server have reached the {0.limit_bytes} bytes of "
        "server.max_buffered_mb; try again in {0.retry_after_s:g} s"
    )

    def __init__(self, limit_bytes: int, retry_after_s: float = 1.0) -> None:
        super().__init__(limit_bytes, retry_after_s)
        self.limit_bytes = limit_bytes
        self.retry_after_s = retry_after_s


class NotReady(ServingError):
    """The server or model cannot respond now."""

    status = 503


class CannotFinish(ServingError):
    """The request is rejected: according to the model's profile, it would miss its deadline."""

    status = 503
    template = (
        "the queue is too long to finish before the request's deadline; try again in "
        "{0.retry_after_s:g} s"
    )

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class DeadlineTooShort(ServingError):
    """The request is rejected: it would be late even on an idle server, so a retry is pointless."""

    status = 503

    def __init__(self, takes_s: float) -> None:
        super().__init__(takes_s)
        self.takes_s = takes_s

    def __str__(self) -> str:
        return (
            f"the model takes {1000.0 * self.takes_s:.3g} ms for this request alone, more "
            "than its deadline leaves after transfer and buffer; use a later deadline"
        )


class CannotLoad(ServingError):
    """The request is rejected: its model is not loaded and cannot be loaded by the deadline."""

    status = 503
    template = (
        "the model is not in the memory of any replica and cannot be loaded before "
        "the request's deadline; try again in {0.retry_after_s:g} s, or with a "
        "later deadline"
    )

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(ServingError):
    """The deadline passed before the response."""

    status = 504
    template = "the request's deadline passed while it was in the {0.where}"

    def __init__(self, where: str = "queue") -> None:
        super().__init__(where)
        self.where = where


class DeadlineUnreachable(DeadlineExceeded):
    """An admitted request can no longer meet its deadline."""

    template = "the request was admitted, but can no longer be answered before its deadline"


class Unimplemented(ServingError):
    """This server does not offer what was requested."""

    status = 501


class ReplicaFailed(ServingError):
    """Two replicas in a row died while running the request."""

    template = (
        "the model's replica ended while it held the request ({0.reason}), and so did a second one"
    )

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class InferenceFailed(ServingError):
    """The model raised an exception or broke its contract."""


class InvalidSettings(ServingError):
    """A setting is unknown, of the wrong type or out of range."""

    status = 400


class ModelLoadFailed(ServingError):
    """A model's file is missing or broken, or its runtime is missing."""

    template = "model {0.model} cannot be loaded: {0.text}"

    def __init__(self, model: str, text: str) -> None:
        super().__init__(model, text)
        self.model = model
        self.text = text


class ModelMissing(ModelLoadFailed):
    """A Python file or module lacks the named class or function."""


class ReplicaStartFailed(ServingError):
    """Replicas do not become ready; `reason` is a word, such as oom, crash, timeout or load."""

    template = "{0.text}"

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text


class LimitsUnavailable(ServingError):
    """CPU or memory limits cannot be enforced on this machine."""


class AcceleratorUnavailable(ServingError):
    """There is no GPU, or this user may not read or configure it."""
