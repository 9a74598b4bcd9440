"""What the replicas of a pool hold."""

from __future__ import annotations

from serving.deployment.dispatch.model_load import LoadReport, LoadSpec
from serving.deployment.pool.member import Member
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.values import ModelId


class ReplicaContents:
    """The models of a pool's replicas; by default one for life, without a memory budget."""

    is_shared = False
    """Whether models come and go, so that a replica is ready once connected."""
    spec: ModelSpec | None = None
    """Model a replica is started for; None: shared models, each staged."""

    def make_load_spec(self, model: ModelId, member: Member) -> LoadSpec:
        """Return how a replica loads a model."""
        raise NotImplementedError

    def pages(self, _settings: ServingSettings) -> int | None:
        """Return a replica's page budget; None: no limit."""
        return None

    def on_loaded(self, model: ModelId, told: LoadReport, member: Member) -> bool:
        """Handle a model's load; return whether `achievable` has changed."""
        raise NotImplementedError

    def on_load_failed(self, model: ModelId, error: ServingError) -> None:
        """Handle a model's failed load, beside the start that waits for it."""

    def achievable(self, settings: ServingSettings) -> ServingSettings:
        """Return the settings as far as the contents can follow them."""
        return settings
