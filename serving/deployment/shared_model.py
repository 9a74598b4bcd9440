"""A model in a pool of shared replicas: its profile, and its pages of memory."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from serving.deployment.dispatch.model_load import LoadSpec, declared_inputs
from serving.deployment.dispatch.request_table import BatchDone
from serving.deployment.pool import Member
from serving.deployment.profiler import ModelProfile, RecentDurations
from serving.errors import InvalidSettings
from serving.model_spec import ModelSpec
from serving.settings import ServingSettings
from serving.settings.replica import ModelSettings
from serving.system.fingerprint import Fingerprint

FIRST_CALL_S = 1e-6
"""Warm-up time that suffices only for the first call, whose cost is part of each load."""

MODELS_SHARE = 0.5


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class SharedModel:
    """One model version in a shared pool."""

    spec: ModelSpec
    model: ModelSettings
    pad_to: int | None
    most: int
    root: pathlib.Path | None
    """Root below which the model's files are staged."""
    pages: int
    profile: ModelProfile
    on_batch: Callable[[BatchDone], None]
    identity: Fingerprint | None
    key: str | None
    measured: RecentDurations = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.measured = RecentDurations(self.profile)

    @property
    def batch_s(self) -> dict[int, float]:
        """Seconds that permitted batches take, by number of items."""
        most = self.most if self.profile.signature.is_batched else 1
        return {size: took_s for size, took_s in self.profile.batch_s.items() if size <= most}

    def load_spec(self, member: Member) -> LoadSpec:
        """Return the spec for a load while serving, whose warm-up is only the first call."""
        limits = member.limits
        return LoadSpec(
            self.spec,
            limits.threads,
            1,
            min(limits.warmup_s, FIRST_CALL_S),
            device=member.accelerator.device,
            weights=self.spec.weights(self.model.variant),
            root=self.root,
            pages=self.pages,
            budget=member.pages,
            digest=digest_of(self.identity),
            inputs=declared_inputs(
                self.spec, self.model, pad_to=self.pad_to, known=self.profile.signature
            ),
        )

    def facts(self, replicas: Sequence[int]) -> dict[str, Any]:
        """Return facts about the model: profile, memory, and the replicas that hold it."""
        return {
            "load_s": round(self.measured.taught().load_s, 6),
            "memory_mb": round(memory_bytes_of(self.profile, self.identity) / 2**20, 2),
            "pages": self.pages,
            "in_memory": bool(replicas),
            "replicas": replicas,
            "profile": self.profile.facts(),
        }


def with_own(
    pool: ServingSettings, model: ModelSettings, *, pad_to: int | None, most: int | None = None
) -> ServingSettings:
    """Return a pool's settings with one model's own; `most` replaces `max_size` if given."""
    batching: dict[str, Any] = {"batching.pad_to": pad_to}
    if most is not None:
        batching["batching.max_size"] = most
    return dataclasses.replace(pool.with_changes(batching), model=model)


def budget_of(settings: ServingSettings) -> int | None:
    """Return the page budget of one replica; None means no limit."""
    memory_mb: float | None = settings.clockwork.memory_mb
    if memory_mb is None and settings.replica.memory_mb is not None:
        memory_mb = MODELS_SHARE * settings.replica.memory_mb
    return None if memory_mb is None else math.floor(memory_mb / settings.clockwork.page_mb)


def memory_bytes_of(profile: ModelProfile, identity: Fingerprint | None) -> int:
    """Return a model's memory in a replica: the measured bytes, but at least its files' size."""
    return max(profile.memory_bytes, 0 if identity is None else identity.size)


def digest_of(identity: Fingerprint | None) -> str | None:
    """Return a model's SHA-256 if it is a single file, since only such models can be optimised."""
    return identity.digest if identity is not None and identity.is_whole else None


def still_holds(profile: ModelProfile) -> bool:
    """Return whether the optimised model that was profiled, if any, still exists."""
    optimised = profile.told.optimised
    try:
        return optimised is None or pathlib.Path(optimised).is_dir()
    except OSError:  # a replica may report anything
        return False


def check_fits(spec: ModelSpec, pages: int, settings: ServingSettings) -> None:
    """Raise `InvalidSettings` if not even an empty replica can hold a model."""
    budget = budget_of(settings)
    if budget is not None and pages > budget:
        raise InvalidSettings(
            f"{spec.label} takes {pages} pages of {settings.clockwork.page_mb:g} MiB, but "
            f"a replica's budget is {budget} (clockwork.memory_mb): raise it, or serve "
            "the model with scheduling.policy adaptive"
        )
