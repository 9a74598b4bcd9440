"""Warnings about settings without full effect."""

from __future__ import annotations

from collections.abc import Sequence

from serving.deployment.deployment import Deployment
from serving.deployment.placement import OF_QUEUES, own_settings_of_the_pool
from serving.scheduling import SHARED
from serving.settings import SETTINGS, ServingSettings


def settings_warnings(settings: ServingSettings, served: Sequence[Deployment]) -> list[str]:
    """Warning for every setting without full effect."""
    names = {one.id.name for one in served}
    shared = [name for name in sorted(names) if settings.of(name).scheduling.policy in SHARED]
    found = settings.notes(names)
    for name in shared:
        found += [
            f"models.{name}.{own}: models that share replicas have none of their own"
            for own in own_settings_of_the_pool(settings, name)
        ]
    flat = settings.flat()
    if shared:
        found += [
            f"{name}: nothing of models that share replicas depends on it ({', '.join(shared)})"
            for name in OF_QUEUES
            if flat[name] != SETTINGS[name].default
        ]
    return found + _notes_of_batches(settings, served)


def _notes_of_batches(settings: ServingSettings, served: Sequence[Deployment]) -> list[str]:
    notes = []
    of_pool = settings.batching.max_size
    names: dict[tuple[int, int], dict[str, None]] = {}
    for one in served:
        name, measured = one.id.name, one.place.most_items
        wanted = settings.of(name).batching.max_size
        if measured is not None and of_pool < min(wanted, measured):
            notes.append(
                f"models.{name}.batching.max_size = {wanted}: batches of models that share replicas are no larger "
                f"than batching.max_size of all, {of_pool}; raise that"
            )
        elif measured is not None and measured < wanted:
            names.setdefault((wanted, measured), {})[name] = None
    return list(dict.fromkeys(notes)) + [
        f"batching.max_size = {wanted}: batches are no larger than {measured}, the most that was measured when the "
        "model was deployed; deploy it anew to have larger ones, with the time to run them (replica.warmup_s): "
        f"{', '.join(models)}"
        for (wanted, measured), models in names.items()
    ]
