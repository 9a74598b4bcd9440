"""Contents of replicas that each hold one model for life."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable

from serving.deployment.dispatch import LoadReport, LoadSpec, declared_inputs
from serving.deployment.pool import Member
from serving.errors import ServingError
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.settings.replica import ModelSettings, ReplicaSettings
from serving.values import ModelId, Signature

log = logging.getLogger(__name__)

NO_PAD = "no fill value for its inputs is set; set model.pad, as ids=0 (docs/batching.md)"


class SingleModelContents:
    """One model version, in every replica."""

    is_shared = False

    def __init__(
        self,
        spec: ModelSpec,
        on_signature: Callable[[], None],
        on_loaded: Callable[[LoadReport, ReplicaSettings], None],
    ) -> None:
        """Start with no load.

        `on_signature` is called when replicas report another signature, `on_loaded` with each load
        report and the replica's limits, before its first batch.
        """
        self.spec = spec
        self._on_signature = on_signature
        self._on_loaded = on_loaded
        self.signature: Signature | None = None
        self.load_report: LoadReport | None = None
        self._judged_for: tuple[ModelSettings, int | None] | None = None

    def make_load_spec(self, _model: ModelId, member: Member) -> LoadSpec:
        """How a replica loads it."""
        limits = member.limits
        known = self.signature if self._judged_for == _form_of(member) else None
        return LoadSpec(
            self.spec,
            limits.threads,
            member.max_items,
            limits.warmup_s,
            device=member.accelerator.device,
            weights=self.spec.weights(member.model.variant),
            inputs=declared_inputs(self.spec, member.model, pad_to=member.pad_to, known=known),
        )

    def pages(self, _settings: ServingSettings) -> int | None:
        """No budget."""
        return None

    def on_loaded(
        self, _model: ModelId, told: LoadReport, member: Member, *, reads_json: bool
    ) -> bool:
        """Handle a load; return whether the signature has changed."""
        self.load_report = told
        self._judged_for = _form_of(member)
        self._on_loaded(told, member.limits)
        signature = dataclasses.replace(told.signature, reads_json=reads_json)
        if signature == self.signature:  # keep the object, and what is cached about it
            return False
        self.signature = signature
        self._say(told)
        self._on_signature()
        return True

    def _say(self, told: LoadReport) -> None:
        failure = told.warmup.get("failure")
        if isinstance(failure, str):
            log.warning("not warmed up", extra={"model": self.spec.name, "reason": failure})

    def on_load_failed(self, _model: ModelId, _error: ServingError) -> None:
        """Do nothing: the waiting start raises the error."""

    def achievable(self, settings: ServingSettings) -> ServingSettings:
        """Settings as far as the model follows them; unbatched, it gets batches of 1."""
        if self.signature is None:
            return settings
        changed: dict[str, int] = {}
        if not self.signature.is_batched:
            if settings.batching.max_size > 1:
                facts = {"model": self.spec.name, "reason": self.signature.unbatched}
                log.warning("requests are not batched, each runs alone", extra=facts)
            changed = {"batching.max_size": 1, "batching.timeout_us": 0}
        if (settings.batching.pad_to or 1) > 1 and self.signature.padding != "":
            reason = self.signature.padding or NO_PAD
            facts = {"model": self.spec.name, "reason": reason}
            log.warning("batching.pad_to has no effect", extra=facts)
        return settings.with_changes(changed)


def _form_of(member: Member) -> tuple[ModelSettings, int | None]:
    return member.model, member.pad_to
