"""What the replicas of a pool hold where each holds one model, from its start to its end.

In: what a replica says of its load. Out: how the model is to be loaded, its signature, and the settings as far
as it can follow them.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from serving.dispatch import Loaded, Wanted, told_inputs
from serving.errors import ServingError
from serving.pool import Member
from serving.settings import ModelSettings, ReplicaSettings, ServingSettings
from serving.values import ModelCard, ModelId, Signature

log = logging.getLogger(__name__)

NO_PAD = "no value is told that fills its inputs up; set model.pad, as ids=0 (docs/batching.md)"


class OneModel:
    """One model version, in every replica."""

    is_shared = False

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
        self._judged_for: tuple[ModelSettings, int | None] | None = None
        """What the signature's item axes were found for; other replicas of the same need not try it again."""

    def wanted(self, _model: ModelId, member: Member) -> Wanted:
        """How a replica is to load it."""
        limits = member.limits
        known = self.signature if self._judged_for == _form_of(member) else None
        return Wanted(
            self.card,
            limits.threads,
            member.max_items,
            limits.warmup_s,
            device=member.accelerator.device,
            weights=self.card.weights(member.model.variant),
            inputs=told_inputs(self.card, member.model, pad_to=member.pad_to, known=known),
        )

    def pages(self, _settings: ServingSettings) -> int | None:
        """No budget: the one model is all that there is."""
        return None

    def loaded(self, _model: ModelId, told: Loaded, member: Member, *, reads_json: bool) -> bool:
        """A replica has loaded it; returns whether its signature is another one than before."""
        self.told = told
        self._judged_for = _form_of(member)
        self._on_loaded(told, member.limits)
        signature = dataclasses.replace(told.signature, reads_json=reads_json)
        if signature == self.signature:  # an equal one stays, with what is kept about it
            return False
        self.signature = signature
        self._say(told)
        self._on_signature()
        return True

    def _say(self, told: Loaded) -> None:
        """Log, once for all replicas, what makes the model slower than it could be."""
        failure = told.warmup.get("failure")
        if isinstance(failure, str):
            log.warning("not warmed up", extra={"model": self.card.name, "reason": failure})

    def failed(self, _model: ModelId, _error: ServingError) -> None:
        """Whoever waits for the replica is told."""

    def possible(self, settings: ServingSettings) -> ServingSettings:
        """The settings as far as the model can follow them; of one that is served whole no batch is made."""
        if self.signature is None:
            return settings
        changed: dict[str, int] = {}
        if not self.signature.is_batched:
            if settings.batching.max_size > 1:
                facts = {"model": self.card.name, "reason": self.signature.unbatched}
                log.warning("requests are not batched, each is run as it is", extra=facts)
            changed = {"batching.max_size": 1, "batching.timeout_us": 0}
        if (settings.batching.pad_to or 1) > 1 and self.signature.padding != "":
            reason = self.signature.padding or NO_PAD
            facts = {"model": self.card.name, "reason": reason}
            log.warning("batching.pad_to does nothing", extra=facts)
        return settings.changed(changed)


def _form_of(member: Member) -> tuple[ModelSettings, int | None]:
    """What decides how the model takes batches."""
    return member.model, member.pad_to
