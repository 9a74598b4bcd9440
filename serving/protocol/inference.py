"""Interface of the engine to all protocols."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from serving.served import Query
from serving.values import ModelId, Signature
from serving.waiter import Ticket, Waiter


class Inference(Protocol):
    """Engine, as the routes see it."""

    resolved: dict[tuple[str, str | None], Target]
    """Cache of `resolve`: always the same object, written only by the engine.

    Reading it first saves a call per request.
    """

    def ready(self) -> bool:
        """Return whether requests are served now."""
        ...

    def models(self) -> tuple[ModelId, ...]:
        """Return the served versions."""
        ...

    def resolve(self, name: str, version: str | None) -> Target:
        """Return a model's handle, for one request only; raises UnknownModel or NotReady."""
        ...

    def model_ready(self, name: str, version: str | None) -> bool:
        """Return whether a model is ready; raises UnknownModel."""
        ...

    def versions(self, name: str) -> tuple[str, ...]:
        """Return all versions of a model; raises UnknownModel."""
        ...

    def resolve_label(self, name: str, label: str) -> str | None:
        """Return the version of a label, or None if unknown."""
        ...

    def states(self) -> Mapping[ModelId, tuple[str, str]]:
        """Return each version's state and failure reason.

        States: `ready`, `unavailable`, `loading`, `failed`.
        """
        ...

    def unresolved(self, status: int) -> None:
        """Count a response to a request for an unknown model."""
        ...


class Target(Protocol):
    """Handle of one deployment."""

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
        """Cache of the protocols' codecs."""
        ...

    def submit(self, query: Query, waiter: Waiter, application: str = "") -> Ticket:
        """Submit a request of a flow; the handler is never called before this returns."""
        ...

    def done(self, status: int, seconds: float) -> None:
        """Count a response."""
        ...
