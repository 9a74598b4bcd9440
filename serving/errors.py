"""Errors of the serving core, each with the HTTP status that answers it.

    ServingError (500)
    ├── InvalidRequest (400)          the client sent something wrong; the text goes back to it
    │   ├── TooLarge (413)
    │   │   ├── BodyTooLarge (413)
    │   │   ├── JsonTooLarge (413)    more JSON than is read on the thread that serves everybody
    │   │   ├── RequestTooLarge (413) no replica takes a message of its size
    │   │   └── SplitTooLarge (413)   it would be sent to replicas too often
    │   └── TooManyItems (413)        more items than may wait at all
    ├── UnknownModel (404)            no such model or version; lists the known ones
    │   └── UnknownLabel (404)        no such label to take away
    ├── Overloaded (429)              the queue is full; `retry_after_s`
    ├── TooMuchHeld (503)             more bytes of requests wait than the server holds; `retry_after_s`
    ├── NotReady (503)                starting, draining, or no replica comes up
    ├── CannotFinish (503)            refused early: it could not finish before its deadline; `retry_after_s`
    ├── DeadlineTooShort (503)        refused early: shorter than the model takes, whatever else there is to do
    ├── CannotLoad (503)              refused early: its model could not be loaded before its deadline; `retry_after_s`
    ├── DeadlineExceeded (504)        the request's deadline passed before its answer
    │   └── Hopeless (504)            it was admitted, and cannot be in time any more
    ├── Unimplemented (501)           this server does not offer it
    ├── ReplicaFailed (500)           the replica that held the request died, twice
    ├── PredictionFailed (500)        the model raised, or broke its contract
    ├── InvalidSettings (400)         unknown knob, wrong type, out of range
    ├── ModelLoadFailed (500)         missing or broken file, missing runtime
    │   └── ModelMissing (500)        the file or module is there, but the class or function is not
    ├── ReplicaStartFailed (500)      no ready replicas; `reason`: oom, crash, timeout, load
    ├── LimitsUnavailable (500)       CPU or memory limits cannot be set on this machine
    └── AcceleratorUnavailable (500)  the GPU is not there, or does not let this be set or read

Every error keeps its facts as attributes and hands all of them to `super().__init__`, so it
pickles. Texts say what was given, what was expected and what to try.
"""

from __future__ import annotations

import difflib
import itertools
import reprlib
from collections.abc import Iterable
from typing import ClassVar

_LONGEST_NAME = 100
"""Characters of what may be a misspelt name: to look for what is near to a text of megabytes takes seconds."""
_LONGEST_SHOWN = 300
_MOST_LISTED = 20


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxstring = short.maxother = 200
    short.maxlong = 80
    short.maxlist = short.maxtuple = 40
    short.maxlevel = 4
    return short


_SHORT = _short()


def nearest(given: str, valid: Iterable[str]) -> str:
    """A hint «, did you mean 'x'?» with the closest valid name, or the empty string."""
    if len(given) > _LONGEST_NAME:
        return ""
    close = difflib.get_close_matches(given, list(valid), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


def shown(value: object) -> str:
    """What a stranger sent, for an error's text: as Python writes it, and short however large it is."""
    return _cut(_SHORT.repr(value))


def shown_names(names: Iterable[str]) -> str:
    """Names that a stranger sent, for an error's text: the first ones, each cut off where it is long."""
    first = [name[:_LONGEST_NAME] for name in itertools.islice(names, _MOST_LISTED)]
    return _cut(", ".join(first)) or "none"


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


class ServingError(Exception):
    """Root of the tree."""

    status: ClassVar[int] = 500


class InvalidRequest(ServingError):
    """The request cannot be understood or does not fit the model."""

    status = 400

    def __init__(self, text: str) -> None:
        super().__init__(text)


class TooLarge(InvalidRequest):
    """More bytes than a limit allows."""

    status = 413

    def __init__(self, limit_bytes: int) -> None:
        ServingError.__init__(self, limit_bytes)
        self.limit_bytes = limit_bytes


class BodyTooLarge(TooLarge):
    """The body exceeds the configured limit."""

    def __str__(self) -> str:
        return (
            f"the body is larger than the limit of {self.limit_bytes} bytes (server.max_body_bytes)"
        )


class JsonTooLarge(TooLarge):
    """The JSON of a body exceeds what is read on the thread that serves everybody."""

    def __str__(self) -> str:
        return (
            f"the request's JSON is larger than the limit of {self.limit_bytes} bytes (server.max_json_bytes), and "
            "not for arrays of numbers alone, which a replica reads; send less in one request, or binary tensors"
        )


class RequestTooLarge(TooLarge):
    """Even alone the request exceeds a message to a replica."""

    def __str__(self) -> str:
        return (
            f"the request is larger than a message to a replica can be, {self.limit_bytes} bytes; "
            "send fewer items at a time"
        )


class SplitTooLarge(TooLarge):
    """The request cannot be cut, and would be sent whole for each batch of its items."""

    def __str__(self) -> str:
        return (
            f"the request would be sent to replicas whole for each batch of its items, more than {self.limit_bytes} "
            "bytes in all; send fewer items at a time, or binary tensors, which are cut"
        )


class TooManyItems(InvalidRequest):
    """Even alone the request exceeds what may wait."""

    status = 413

    def __init__(self, capacity: int) -> None:
        ServingError.__init__(self, capacity)
        self.capacity = capacity

    def __str__(self) -> str:
        return (
            f"the request has more items than may wait, {self.capacity} (scheduling.queue_capacity); "
            "send fewer items at a time"
        )


class UnknownModel(ServingError):
    """No model or version of that name."""

    status = 404

    def __init__(self, name: str, known: tuple[str, ...], version: str | None = None) -> None:
        """Keep the facts.

        Args:
            name: of the model.
            known: models that there are; where a version is named, versions and labels of this model.
            version: version or label that was asked for; None: the model itself is not known.
        """
        super().__init__(name, known, version)
        self.name = name
        self.known = known
        self.version = version

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        name = shown(self.name)
        if self.version is None:
            return f"model {name} is not known{nearest(self.name, self.known)} (known: {known})"
        words = [known for known in self.known if not known.isdigit()]  # 2 is no misspelt 12
        return (
            f"model {name} version {shown(self.version)} is not known{nearest(self.version, words)} "
            f"(its versions and labels: {known})"
        )


class UnknownLabel(UnknownModel):
    """A model has no label of that name; `version` is the label, `known` the labels that there are."""

    def __str__(self) -> str:
        known = ", ".join(self.known) or "none"
        hint = nearest(str(self.version), self.known)
        label = shown(self.version)
        return f"model {shown(self.name)} has no label {label}{hint} (its labels: {known})"


class Overloaded(ServingError):
    """The queue is full; try again after `retry_after_s`."""

    status = 429

    def __init__(self, capacity: int, retry_after_s: float) -> None:
        super().__init__(capacity, retry_after_s)
        self.capacity = capacity
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"the queue holds its limit of {self.capacity} items; try again in {self.retry_after_s:g} s"


class TooMuchHeld(ServingError):
    """No room for another body among those that are held; try again after `retry_after_s`."""

    status = 503

    def __init__(self, limit_bytes: int, retry_after_s: float = 1.0) -> None:
        super().__init__(limit_bytes, retry_after_s)
        self.limit_bytes = limit_bytes
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return (
            f"the server holds the {self.limit_bytes} bytes of requests that server.max_held_mb allows; "
            f"try again in {self.retry_after_s:g} s"
        )


class NotReady(ServingError):
    """The server or the model cannot answer now."""

    status = 503

    def __init__(self, text: str) -> None:
        super().__init__(text)


class CannotFinish(ServingError):
    """By the profile of the model it would be answered after its deadline; try again after `retry_after_s`."""

    status = 503

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return f"too much waits to finish before the request's deadline; try again in {self.retry_after_s:g} s"


class DeadlineTooShort(ServingError):
    """The model takes longer than the request can wait, whatever else there is to do: another try is of no use."""

    status = 503

    def __init__(self, takes_s: float) -> None:
        super().__init__(takes_s)
        self.takes_s = takes_s

    def __str__(self) -> str:
        return (
            f"the model takes {1e3 * self.takes_s:.3g} ms for the request alone, longer than its deadline leaves "
            "with what is allowed for the way and as a buffer; give it a later deadline"
        )


class CannotLoad(ServingError):
    """Its model is in no replica's memory, and would not be before the deadline; try again after `retry_after_s`."""

    status = 503

    def __init__(self, retry_after_s: float) -> None:
        super().__init__(retry_after_s)
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return (
            "the model is in no replica's memory and cannot be loaded before the request's deadline; "
            f"try again in {self.retry_after_s:g} s, or with a later deadline"
        )


class DeadlineExceeded(ServingError):
    """The deadline passed before an answer was there."""

    status = 504

    def __init__(self, where: str = "queue") -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return f"the request's deadline passed while it was in the {self.where}"


class Hopeless(DeadlineExceeded):
    """It was admitted, and no answer can be there in time any more."""

    def __str__(self) -> str:
        return "the request was admitted, but cannot be answered before its deadline any more"


class Unimplemented(ServingError):
    """This server does not offer it."""

    status = 501

    def __init__(self, text: str) -> None:
        super().__init__(text)


class ReplicaFailed(ServingError):
    """The replica died with the request in it, and so did the one that got it next."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"the model's replica ended while it held the request ({self.reason}), and so did a second one"


class PredictionFailed(ServingError):
    """The model raised an exception or returned something that breaks its contract."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


class InvalidSettings(ServingError):
    """A setting is unknown, of the wrong type, or out of its range."""

    status = 400

    def __init__(self, text: str) -> None:
        super().__init__(text)


class ModelLoadFailed(ServingError):
    """A model's file is missing or broken, or its runtime is not installed."""

    def __init__(self, model: str, text: str) -> None:
        super().__init__(model, text)
        self.model = model
        self.text = text

    def __str__(self) -> str:
        return f"model {self.model} cannot be loaded: {self.text}"


class ModelMissing(ModelLoadFailed):
    """A Python file or module has no class or function of the name."""


class ReplicaStartFailed(ServingError):
    """Replicas do not become ready under these settings."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason, text)
        self.reason = reason
        self.text = text

    def __str__(self) -> str:
        return self.text


class LimitsUnavailable(ServingError):
    """CPU or memory limits cannot be enforced here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)


class AcceleratorUnavailable(ServingError):
    """There is no GPU, or it does not let this user set or read what is wanted."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
