"""Eviction of idle models from a worker's memory, least recently used first. Pure."""

from __future__ import annotations

from serving.scheduling.clockwork.instances import (
    NEVER_S,
    InstanceState,
    ModelInstance,
    PoolModel,
    PoolWorker,
)
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.interface import ActionType


def mark_evictable(pool: PoolState, model: PoolModel) -> None:
    """Mark a model as evictable if its queue is empty."""
    if model.waiting.entries:
        return
    for holding in tuple(model.holdings):
        if holding.swap is not None:  # its swap is cancelled
            pool.to_check[holding.worker.id] = holding.worker
        if holding.state is InstanceState.LOADED and not holding.busy and not holding.is_idle:
            if holding.planned_eviction is not None:  # its memory is reserved
                pool.to_check[holding.worker.id] = holding.worker
                continue
            holding.is_idle = True
            holding.worker.evictable_pages += model.pages
            if model.is_gone:
                evict(pool, holding)


def evict(pool: PoolState, holding: ModelInstance) -> None:
    """Unload an idle instance."""
    holding.use()
    holding.worker.free_pages += holding.model.pages
    holding.forget()
    holding.key_s = NEVER_S
    pool.send(ActionType.UNLOAD, holding, latest_s=NEVER_S, expected_s=0.0)


def make_room(pool: PoolState, worker: PoolWorker, pages: int) -> bool:
    """Evict idle models until `pages` are free; return whether they are."""
    if worker.free_pages + worker.evictable_pages < pages:
        return False
    while worker.free_pages < pages:
        evict(pool, next(one for one in worker.instances.values() if one.is_idle))
    return True


def lost_per_s(pool: PoolState, worker: PoolWorker, pages: int) -> float:
    """Return the items per second that freeing `pages` would lose, too urgent for a reload."""
    needed, lost = pages - worker.free_pages, 0.0
    for holding in worker.instances.values() if needed > 0 else ():
        if holding.is_idle:
            model = holding.model
            if model.relative_deadline_s < model.load.estimate_s + model.durations.estimate_s[0]:
                lost += pool.rate_of(model)
            needed -= model.pages
            if needed <= 0:
                break
    return lost


def is_evictable(worker: PoolWorker, model: PoolModel) -> bool:
    """Whether evicting less recently requested models would make room for a model."""
    pages = worker.free_pages
    if pages + worker.evictable_pages < model.pages:
        return False
    for holding in worker.instances.values():
        if not holding.is_idle:
            continue
        if holding.model.previous_request_s >= model.previous_request_s:
            return False
        pages += holding.model.pages
        if pages >= model.pages:
            return True
    return False
