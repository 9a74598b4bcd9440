"""Protocol for the contents of a pool's replicas."""

from __future__ import annotations

from typing import Protocol

from serving.deployment.dispatch import LoadReport, LoadSpec
from serving.deployment.pool.member import Member
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.values import ModelId


class ReplicaContents(Protocol):
    """Contents of a pool's replicas."""

    @property
    def is_shared(self) -> bool:
        """Whether models come and go, so that a replica is ready once connected."""
        ...

    @property
    def spec(self) -> ModelSpec | None:
        """Model a replica is started for; None: shared models, each staged."""
        ...

    def make_load_spec(self, model: ModelId, member: Member) -> LoadSpec:
        """How a replica loads a model."""
        ...

    def pages(self, settings: ServingSettings) -> int | None:
        """A replica's page budget; None: no limit."""
        ...

    def on_loaded(
        self, model: ModelId, told: LoadReport, member: Member, *, reads_json: bool
    ) -> bool:
        """Handle a model's load; return whether `achievable` has changed."""
        ...

    def on_load_failed(self, model: ModelId, error: ServingError) -> None:
        """Handle a model's failed load."""
        ...

    def achievable(self, settings: ServingSettings) -> ServingSettings:
        """Settings as far as the contents can follow them."""
        ...
