"""What the replicas of a pool hold, as the pool asks for it. Only its form."""

from __future__ import annotations

from typing import Protocol

from serving.dispatch import Loaded, Wanted
from serving.errors import ServingError
from serving.pool.member import Member
from serving.settings import ServingSettings
from serving.values import ModelCard, ModelId


class Contents(Protocol):
    """What the replicas of a pool hold."""

    @property
    def is_shared(self) -> bool:
        """Whether models come and go in a replica, so that it is ready as soon as it is connected."""
        ...

    @property
    def card(self) -> ModelCard | None:
        """What a replica is started for; None: for models that come and go, each lent by the home."""
        ...

    def wanted(self, model: ModelId, member: Member) -> Wanted:
        """How a replica is to load a model."""
        ...

    def pages(self, settings: ServingSettings) -> int | None:
        """Memory for models in a replica; None: as many as there are."""
        ...

    def loaded(self, model: ModelId, told: Loaded, member: Member, *, reads_json: bool) -> bool:
        """A replica has loaded a model; returns whether what is `possible` has changed."""
        ...

    def failed(self, model: ModelId, error: ServingError) -> None:
        """A replica could not load a model."""
        ...

    def possible(self, settings: ServingSettings) -> ServingSettings:
        """The settings as far as what is held can follow them."""
        ...
