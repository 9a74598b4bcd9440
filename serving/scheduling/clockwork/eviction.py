"""Memory of workers: what may be evicted, least recently used first.

Pure; a step per instance.
"""

from __future__ import annotations

from serving.scheduling.clockwork.instances import (
    NEVER_S,
    InstanceState,
    ModelInstance,
    PoolModel,
    PoolWorker,
)
from serving.scheduling.clockwork.outbox import ActionOutbox
from serving.scheduling.clockwork.pool_state import PoolState
from serving.scheduling.interface import ActionType


class Memory:
    """Models that workers hold and may evict."""

    __slots__ = ("_orders",)

    def __init__(self, orders: ActionOutbox) -> None:
        self._orders = orders

    def mark_evictable(self, model: PoolModel) -> None:
        """Mark a model as evictable if its queue is empty."""
        if model.waiting.entries:
            return
        for holding in tuple(model.holdings):
            if holding.swap is not None:  # its swap is cancelled
                self._orders.to_check[holding.worker.id] = holding.worker
            if holding.state is InstanceState.LOADED and not holding.busy and not holding.is_idle:
                if holding.planned_eviction is not None:  # its memory is reserved
                    self._orders.to_check[holding.worker.id] = holding.worker
                    continue
                holding.is_idle = True
                holding.worker.evictable_pages += model.pages
                if model.is_gone:
                    self.evict(holding)

    def use(self, holding: ModelInstance) -> None:
        """Mark an instance as in use."""
        if holding.is_idle:
            holding.is_idle = False
            holding.worker.evictable_pages -= holding.model.pages

    def evict(self, holding: ModelInstance) -> None:
        """Unload an idle instance."""
        worker, model = holding.worker, holding.model
        self.use(holding)
        worker.free_pages += model.pages
        self.forget(holding)
        holding.key_s = NEVER_S
        self._orders.send(ActionType.UNLOAD, holding, latest_s=NEVER_S, expected_s=0.0)

    def forget(self, holding: ModelInstance) -> None:
        """Remove an instance; another may be planned on that worker."""
        held, model = holding.worker.instances, holding.model
        model.holdings.remove(holding)
        if held.get(model.index) is not holding:
            return
        del held[model.index]
        for other in model.holdings:
            if other.worker is holding.worker:
                held[model.index] = other

    def make_room(self, worker: PoolWorker, pages: int) -> bool:
        """Evict until `pages` are free; return whether they are."""
        if worker.free_pages + worker.evictable_pages < pages:
            return False
        while worker.free_pages < pages:
            self.evict(next(holding for holding in worker.instances.values() if holding.is_idle))
        return True


def lost_per_s(pool: PoolState, worker: PoolWorker, pages: int) -> float:
    """Return the requests per second lost if idle models gave up so many pages.

    Only those with deadlines too short for a new load.
    """
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
    """Whether evicting models requested less often makes room for a model."""
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
