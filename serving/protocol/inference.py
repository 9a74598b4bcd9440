"""What the routes of every protocol need of whoever serves the models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from serving.served import Query
from serving.values import ModelId, Signature
from serving.waiter import Ticket, Waiter


class Inference(Protocol):
    """What the routes of every protocol need of an engine."""

    resolved: dict[tuple[str, str | None], Target]
    """What `resolve` would say of some names, where it would say the same again: always this object, never written
    to by others. Whoever looks here first saves a call per request."""

    def ready(self) -> bool:
        """Whether requests are answered now."""
        ...

    def models(self) -> tuple[ModelId, ...]:
        """What is served."""
        ...

    def resolve(self, name: str, version: str | None) -> Target:
        """The model meant, asked for each request; raises UnknownModel or NotReady."""
        ...

    def model_ready(self, name: str, version: str | None) -> bool:
        """Whether the model answers now; raises UnknownModel."""
        ...

    def versions(self, name: str) -> tuple[str, ...]:
        """All versions of a model; raises UnknownModel."""
        ...

    def resolve_label(self, name: str, label: str) -> str | None:
        """The version that a label of a model means; None: the model or the label is unknown."""
        ...

    def states(self) -> Mapping[ModelId, tuple[str, str]]:
        """Every version that is known: `ready`, `unavailable`, `loading` or `failed`, and why it failed."""
        ...

    def unresolved(self, status: int) -> None:
        """Count an answered request that meant no model."""
        ...


class Target(Protocol):
    """What the routes need of a model version."""

    @property
    def id(self) -> ModelId:
        """Name and version."""
        ...

    @property
    def signature(self) -> Signature:
        """Inputs and outputs."""
        ...

    @property
    def codecs(self) -> dict[str, Any]:
        """Room for what the protocols make of the signature."""
        ...

    def submit(self, query: Query, waiter: Waiter, application: str = "") -> Ticket:
        """Take a request of an application; the waiter is called later, never before this returns."""
        ...

    def done(self, status: int, seconds: float) -> None:
        """Count an answered request."""
        ...
