"""What the replicas of a pool hold where each holds one model, from its start to its end.

In: what a replica says of its load. Out: how the model is to be loaded, its signature, and the settings as far
as it can follow them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from serving.dispatch import Loaded, Wanted
from serving.errors import ServingError
from serving.pool import NOTHING_BESIDE, Member
from serving.settings import ReplicaSettings, ServingSettings
from serving.values import ModelCard, ModelId, Signature

log = logging.getLogger(__name__)


class OneModel:
    """One model version, in every replica."""

    is_shared = False
    beside = NOTHING_BESIDE

    def __init__(
        self,
        card: ModelCard,
        on_signature: Callable[[], None],
        on_loaded: Callable[[Loaded, ReplicaSettings], None],
    ) -> None:
        """No replica has loaded it yet.

        Args:
            card: what replicas load.
            on_signature: called when replicas report another signature than before.
            on_loaded: called with what a replica says of its load, and its limits, before it gets a batch.
        """
        self.card = card
        self._on_signature = on_signature
        self._on_loaded = on_loaded
        self.signature: Signature | None = None
        self.told: Loaded | None = None
        """What the last replica said that became ready."""

    def kept(self, _settings: ServingSettings) -> None:
        """Such replicas end with their gateway."""

    def wanted(self, _model: ModelId, member: Member) -> Wanted:
        """How a replica is to load it."""
        limits = member.limits
        return Wanted(
            self.card,
            limits.threads,
            member.max_items,
            limits.warmup_s,
            device=member.accelerator.device,
            weights=self.card.weights(member.variant),
        )

    def pages(self, _settings: ServingSettings) -> int | None:
        """No budget: the one model is all that there is."""
        return None

    def loaded(self, _model: ModelId, told: Loaded, member: Member, *, reads_json: bool) -> bool:
        """A replica has loaded it; returns whether its signature is another one than before."""
        self.told = told
        self._on_loaded(told, member.limits)
        signature = dataclasses.replace(told.signature, reads_json=reads_json)
        if signature == self.signature:  # an equal one stays, with what is kept about it
            return False
        self.signature = signature
        self._on_signature()
        return True

    def failed(self, _model: ModelId, _error: ServingError) -> None:
        """Whoever waits for the replica is told."""

    def possible(self, settings: ServingSettings) -> ServingSettings:
        """The settings as far as the model can follow: one with a fixed batch takes one request at a time."""
        if self.signature is None or self.signature.is_batched:
            return settings
        if settings.batching.max_size > 1:
            log.warning("the model's first dimension is fixed: its requests are not batched")
        return settings.changed({"batching.max_size": 1, "batching.timeout_us": 0})
