"""Warnings about settings that do not take full effect."""

from __future__ import annotations

from collections.abc import Sequence

from serving.deployment.deployment import Deployment
from serving.settings import SETTINGS, ServingSettings

_OF_QUEUES = ("batching.policy", "batching.timeout_us", "routing.policy")
_OF_THE_POOL = ("replica.", "accelerator.", "clockwork.", "routing.", "scheduling.queue_capacity")


def settings_warnings(settings: ServingSettings, served: Sequence[Deployment]) -> list[str]:
    """Return a warning for every setting that does not take full effect."""
    names = {one.id.name for one in served}
    shared = [name for name in sorted(names) if settings.of(name).scheduling.policy == "clockwork"]
    found = settings.notes(names)
    for name in shared:
        found += [
            f"models.{name}.{own}: models on shared replicas have no such setting of their own"
            for own in settings.models.get(name, {})
            if own.startswith(_OF_THE_POOL)
        ]
    flat = settings.flat()
    if shared:
        found += [
            f"{name}: has no effect on models on shared replicas ({', '.join(shared)})"
            for name in _OF_QUEUES
            if flat[name] != SETTINGS[name].default
        ]
    return found + _notes_of_batches(settings, served)


def _notes_of_batches(settings: ServingSettings, served: Sequence[Deployment]) -> list[str]:
    notes = []
    of_pool = settings.batching.max_size
    names: dict[tuple[int, int], dict[str, None]] = {}
    for one in served:
        name, measured = one.id.name, one.placement.max_items
        wanted = settings.of(name).batching.max_size
        if measured is not None and of_pool < min(wanted, measured):
            notes.append(
                f"models.{name}.batching.max_size = {wanted}: models on shared replicas "
                f"use at most the batching.max_size of all models, {of_pool}; raise that"
            )
        elif measured is not None and measured < wanted:
            names.setdefault((wanted, measured), {})[name] = None
    return list(dict.fromkeys(notes)) + [
        f"batching.max_size = {wanted}: batches are limited to {measured}, the largest "
        "size measured at deployment; to allow larger ones, deploy again with enough "
        f"time to run them (replica.warmup_s): {', '.join(models)}"
        for (wanted, measured), models in names.items()
    ]
