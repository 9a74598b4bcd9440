"""The models that a pool's replicas hold."""

from __future__ import annotations

from serving.deployment.dispatch.model_load import LoadReport, LoadSpec
from serving.deployment.pool.member import Member
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.values import ModelId


class ReplicaContents:
    """Models that a pool's replicas hold: by default a single one, without a memory budget."""

    is_shared = False
    """Whether models come and go, so that a replica is ready once it is connected."""
    spec: ModelSpec | None = None
    """Model for which replicas are started; None if models are staged later."""

    def make_load_spec(self, model: ModelId, member: Member) -> LoadSpec:
        """Return how a replica must load a model."""
        raise NotImplementedError

    def pages(self, _settings: ServingSettings) -> int | None:
        """Return a replica's page budget; None means no limit."""
        return None

    def on_loaded(self, model: ModelId, told: LoadReport, member: Member) -> bool:
        """Handle a finished load; return whether the result of `achievable` has changed."""
        raise NotImplementedError

    def on_load_failed(self, model: ModelId, error: ServingError) -> None:
        """Handle a failed load; starts that wait for the load fail in any case."""

    def achievable(self, settings: ServingSettings) -> ServingSettings:
        """Return the settings, adapted to what the contents can do."""
        return settings
