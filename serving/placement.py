"""Where a model version runs: in replicas of its own, or in those that many versions share.

In: a card, settings, a home. Out: what `served` asks of either: a dispatcher to submit to, the signature,
replicas that are ready, settings that change. Belongs to the event loop's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any, Protocol

from serving.dispatch import BatchDone, Dispatcher, Loaded
from serving.errors import InvalidSettings
from serving.metrics.counters import Counters
from serving.one_model import OneModel
from serving.pool import Death, Home, Pool
from serving.scheduling import SCHEDULERS
from serving.scheduling.seam import Warmed
from serving.settings import ReplicaSettings, ServingSettings
from serving.shared_pool import SharedPool
from serving.values import ModelCard, ModelId, Signature

log = logging.getLogger(__name__)

_REAL = ("file", "model")
"""Sources of samples that are real inputs."""
OF_QUEUES = ("batching.policy", "batching.timeout_us", "routing.policy")
"""Settings of queues that models which share replicas do not have."""
_OF_THE_POOL = ("replica.", "accelerator.", "clockwork.", "routing.", "scheduling.queue_capacity")
"""Settings that models which share replicas cannot have of their own."""
_OF_LOADING = ("model.", "batching.pad_to")
"""Settings with which a model is loaded."""


class Listener(Protocol):
    """Who is told of a placement."""

    counters: Counters

    def batch_done(self, done: BatchDone) -> None:
        """A batch came back."""
        ...

    def signature_changed(self) -> None:
        """Replicas report another signature than before."""
        ...


class Placement(Protocol):
    """Where one model version runs."""

    dispatcher: Dispatcher

    @property
    def model(self) -> ModelId:
        """What the dispatcher calls the model; settled once it is open."""
        ...

    @property
    def signature(self) -> Signature | None:
        """Inputs and outputs; there once it is open."""
        ...

    @property
    def told(self) -> Loaded | None:
        """What the last replica said that has loaded it."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """What else is known of it, for people."""
        ...

    @property
    def ready_count(self) -> int:
        """Replicas that take its batches."""
        ...

    @property
    def unfinished(self) -> int:
        """Its requests without an answer."""
        ...

    @property
    def waiting_items(self) -> int:
        """Its items in the queue."""
        ...

    @property
    def most_items(self) -> int | None:
        """Items that its batches cannot exceed, whatever the settings say; None: what they say counts."""
        ...

    def states(self) -> dict[str, int]:
        """Its replicas by state."""
        ...

    def members(self) -> list[dict[str, Any]]:
        """Replicas of its own, as plain data."""
        ...

    def deaths(self) -> list[Death]:
        """Of replicas of its own."""
        ...

    async def open(self) -> None:
        """Make it ready."""
        ...

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learnt: bool) -> None:
        """Bring new settings into force while serving."""
        ...

    async def close(self) -> None:
        """Give it up; whoever still waits is refused."""
        ...


class OwnPool:
    """Replicas, a queue and a scheduler of its own."""

    def __init__(
        self,
        card: ModelCard,
        settings: ServingSettings,
        home: Home,
        workers: Iterator[int],
        listener: Listener,
    ) -> None:
        """Nothing is started yet.

        Args:
            card: what is loaded.
            settings: those of this model.
            home: where its replicas live, open.
            workers: numbers for its replicas that no other replica of the home has.
            listener: who is told.
        """
        self._card = card
        self.model = card.id
        self._listener = listener
        self._scheduler = SCHEDULERS[settings.scheduling.policy](card.id, settings)
        self.dispatcher = Dispatcher(self._scheduler, on_batch=self._batch_done)
        self._model = OneModel(card, listener.signature_changed, self._replica_loaded)
        self._pool = Pool(home, self.dispatcher, settings, listener.counters, workers, self._model)

    @property
    def signature(self) -> Signature | None:
        """As replicas report it."""
        return self._model.signature

    @property
    def told(self) -> Loaded | None:
        """By the last replica that became ready."""
        return self._model.told

    @property
    def facts(self) -> dict[str, Any]:
        """Its replicas have told all."""
        return {}

    @property
    def most_items(self) -> int | None:
        """Any."""
        return None

    @property
    def ready_count(self) -> int:
        """Replicas that take batches."""
        return self._pool.ready_count

    @property
    def unfinished(self) -> int:
        """Requests without an answer."""
        return self.dispatcher.unfinished

    @property
    def waiting_items(self) -> int:
        """Items in the queue."""
        return self.dispatcher.waiting_items

    def states(self) -> dict[str, int]:
        """Replicas by state."""
        return self._pool.states()

    def members(self) -> list[dict[str, Any]]:
        """Every replica as plain data."""
        return self._pool.members()

    def deaths(self) -> list[Death]:
        """Of replicas, since the settings came into force."""
        return list(self._pool.deaths)

    async def open(self) -> None:
        """Start the replicas; each loads the model.

        Raises:
            ServingError: they do not become ready; nothing is left running.
        """
        await self._pool.open()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learnt: bool) -> None:
        """Bring new settings into force while serving; see `Pool.apply`."""
        await self._pool.apply(settings, fresh=fresh, keep_learnt=keep_learnt)

    async def close(self) -> None:
        """End the replicas."""
        await self._pool.close(grace_s=0.0)
        self.dispatcher.close(self._card.label)

    def _replica_loaded(self, loaded: Loaded, limits: ReplicaSettings) -> None:
        """The scheduler begins with what a warm-up on real inputs has measured; made-up ones tell too little."""
        warmup = loaded.warmup
        if warmup.get("source") in _REAL and "failure" not in warmup:
            batch_s = loaded.batch_s
            if batch_s:
                self._scheduler.on(Warmed(batch_s, limits.cpu, limits.threads), time.monotonic())

    def _batch_done(self, done: BatchDone) -> None:
        self._pool.served(done.worker)
        self._listener.batch_done(done)


class Tenancy:
    """A place among the models of a shared pool."""

    def __init__(
        self, card: ModelCard, settings: ServingSettings, shared: SharedPool, listener: Listener
    ) -> None:
        """Nobody may ask for it yet.

        Args:
            card: what is loaded, whenever it is asked for.
            settings: those of this model.
            shared: the pool.
            listener: who is told.
        """
        self._card = card
        self._settings = settings
        self._shared = shared
        self._listener = listener
        self.dispatcher = shared.dispatcher
        self.model = card.id
        self.signature: Signature | None = None
        self.told: Loaded | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Its profile, and what there is of it in memory."""
        return {} if self.signature is None else self._shared.facts_of(self.model)

    @property
    def most_items(self) -> int | None:
        """Items of the largest batch that was measured; see `SharedPool.most_items`."""
        return None if self.signature is None else self._shared.most_items(self.model)

    @property
    def ready_count(self) -> int:
        """Replicas that could load it."""
        return self._shared.pool.ready_count if self.signature is not None else 0

    @property
    def unfinished(self) -> int:
        """Its requests without an answer."""
        return self.dispatcher.unfinished_of(self.model)

    @property
    def waiting_items(self) -> int:
        """Its items in the queue."""
        return self.dispatcher.waiting_of(self.model)

    def states(self) -> dict[str, int]:
        """None of its own: the pool tells of its replicas."""
        return {}

    def members(self) -> list[dict[str, Any]]:
        """None of its own."""
        return []

    def deaths(self) -> list[Death]:
        """None of its own."""
        return []

    async def open(self) -> None:
        """Profile it, and let it be asked for.

        Raises:
            ServingError: it cannot be loaded, or be run on samples.
        """
        joined = await self._shared.join(self._card, self._settings, self._listener.batch_done)
        self.model, found = joined
        self.signature, self.told = found.signature, found.told
        self._listener.signature_changed()

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learnt: bool) -> None:  # noqa: ARG002
        """What concerns the model alone; the pool has the rest already.

        Raises:
            InvalidSettings: it would have to be loaded anew.
        """
        changed = _changed_of_loading(self._settings, settings)
        if changed:
            raise InvalidSettings(
                f"{', '.join(changed)} of {self._card.name}: what shares replicas (scheduling.policy: clockwork) keeps "
                "what it was loaded with while it is served; retire it before the change, and deploy it again after it"
            )
        self._settings = settings
        if self.signature is not None:
            self._shared.set_most(self.model, settings.batching.max_size)

    async def close(self) -> None:
        """Leave; whoever still waits is refused."""
        if self.signature is not None:
            self.signature = None
            await self._shared.leave(self.model)


def _changed_of_loading(before: ServingSettings, after: ServingSettings) -> list[str]:
    """Settings that differ, of those with which a model is loaded."""
    old, new = before.flat(), after.flat()
    return [
        name for name, value in new.items() if name.startswith(_OF_LOADING) and value != old[name]
    ]


def own_settings_of_the_pool(settings: ServingSettings, model: str) -> list[str]:
    """Settings of a single model that have no meaning where it shares replicas."""
    own = settings.models.get(model, {})
    return [name for name in own if name.startswith(_OF_THE_POOL)]
