"""Interface between Clipper's management commands and `ClipperService`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from serving.selection.application import Application

DEFAULT_BATCH_SIZE = -1
"""The batch size is found while serving."""
SINGLE_MODEL_POLICY = "fixed"
"""Policy of Clipper's own applications, which link at most one model."""


class RegisteredModel(NamedTuple):
    """One registered version of a model."""

    name: str
    version: str
    input_type: str
    labels: tuple[str, ...] = ()
    container_name: str = ""
    model_data_path: str = ""
    batch_size: int = DEFAULT_BATCH_SIZE
    is_valid: bool = True
    """False once deleted; it stays listed."""


class Container(NamedTuple):
    """One replica of a version."""

    model_name: str
    model_version: str
    replica_id: int
    input_type: str


class Catalogue(Protocol):
    """Applications and registered models; commands check existence before changes."""

    def applications(self) -> Sequence[Application]:
        """Return all applications."""
        ...

    def add_application(
        self,
        name: str,
        *,
        input_type: str,
        default_output: str,
        latency_slo_s: float,
        selection: Mapping[str, Any],
    ) -> None:
        """Add an application without links; raises ServingError.

        `selection` has members of `Application`.
        """
        ...

    def delete_application(self, name: str) -> None:
        """Delete an application."""
        ...

    def link(self, application: str, models: Sequence[str]) -> None:
        """Add models to an application."""
        ...

    def unlink(self, application: str, models: Sequence[str]) -> None:
        """Remove models from an application."""
        ...

    def models(self) -> Sequence[RegisteredModel]:
        """Return all versions, including deleted ones."""
        ...

    def current_version(self, name: str) -> str | None:
        """Return a registered model's current version."""
        ...

    def served_input_types(self, name: str) -> Sequence[str] | None:
        """Return a served model's input types, registered or not."""
        ...

    def add_model(self, model: RegisteredModel) -> None:
        """Add a version and make it current."""
        ...

    def set_current_version(self, name: str, version: str) -> None:
        """Make a version current; it responds as soon as it runs."""
        ...

    def delete_model(self, name: str, version: str) -> None:
        """Mark a version as invalid."""
        ...

    def containers(self) -> Sequence[Container]:
        """Return ready replicas of registered versions."""
        ...

    def selection_state(self, application: str, user: str) -> str:
        """Return an application's policy state, as JSON."""
        ...
