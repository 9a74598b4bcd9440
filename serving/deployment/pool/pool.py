"""Pool that keeps the wanted replicas alive under the wanted limits, and changes both live.

Replica states: starting -> ready -> draining -> ended. A replica that ends unexpectedly is
replaced, after a back-off if replicas have failed before answering any batch.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from serving.deployment.dispatch.connection import ReplicaConnection
from serving.deployment.dispatch.dispatcher import Dispatcher
from serving.deployment.dispatch.model_load import LoadReport, LoadSpec
from serving.deployment.pool.contents import ReplicaContents
from serving.deployment.pool.member import Death, Member
from serving.deployment.pool.spawner import Replica, Spawner
from serving.errors import ReplicaStartFailed, ServingError
from serving.scheduling.interface import SettingsChanged
from serving.settings import ServingSettings
from serving.settings.replica import ReplicaSettings
from serving.values import ModelId

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0
_RETAINED_DEATHS = 100
_LAST_WORDS_S = 0.5
_WATCH_PERIOD_S = 0.25


class Pool:
    """Replicas with the same settings and contents.

    Not thread-safe; calls to `apply` must not overlap.
    """

    def __init__(
        self,
        spawner: Spawner,
        dispatcher: Dispatcher,
        settings: ServingSettings,
        on_death: Callable[[str, str], None],
        workers: Iterator[int],
        contents: ReplicaContents,
    ) -> None:
        """Start nothing yet; `spawner` must be open, and `workers` must yield ids new to it.

        `on_death` is called with the reason and a description when a replica ends unexpectedly.
        """
        self._spawner = spawner
        self._dispatcher = dispatcher
        self._settings = settings
        self._on_death = on_death
        self._members: dict[int, Member] = {}
        self._workers = workers
        self._contents = contents
        self._failures = 0
        self._restart: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._applying = False
        self._closing = False
        self.deaths: deque[Death] = deque(maxlen=_RETAINED_DEATHS)
        self._deaths_of_leaving: list[Death] = []

    # Status

    @property
    def ready_count(self) -> int:
        """Number of replicas that accept batches."""
        return sum(member.state == "ready" for member in self._members.values())

    def states(self) -> dict[str, int]:
        """Return the number of replicas in each state."""
        counts = {"starting": 0, "ready": 0, "draining": 0}
        for member in self._members.values():
            counts[member.state] = counts.get(member.state, 0) + 1
        return counts

    def on_nodes(self) -> dict[str, int]:
        """Return the number of ready replicas on each other machine that has some."""
        ready = (
            m.replica.node_name for m in self._members.values() if m.replica and m.state == "ready"
        )
        return dict(collections.Counter(filter(None, ready)))

    def members(self) -> list[dict[str, Any]]:
        """Return each replica's worker, pid, state and usage."""
        return [member.facts() for member in self._members.values()]

    # Life

    async def open(self) -> None:
        """Start the replicas.

        Raises:
            ReplicaStartFailed, ModelLoadFailed: a replica did not become ready; all are ended.
        """
        self._watch = asyncio.create_task(self._watch_hangs(), name="watch replicas")
        await self._start_many(self._settings.replica.count, self._settings)

    async def close(self) -> None:
        """End all replicas, including busy ones."""
        self._closing = True
        await self._stop_restart()
        if self._watch is not None:
            self._watch.cancel()
        await asyncio.gather(*(self._retire(m, 0.0) for m in list(self._members.values())))
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        """Apply new settings while serving: new replicas are ready before old ones leave.

        `fresh` replaces every replica; otherwise limits are changed live where possible.
        `keep_learned` keeps the state of the scheduler and the back-off.

        Raises:
            ReplicaStartFailed, ModelLoadFailed: a replica did not become ready; the old settings
                stay in force.
        """
        self._applying = True
        try:
            await self._stop_restart()
            await self._apply(settings, fresh=fresh, keep_learned=keep_learned)
        finally:
            self._applying = False
            self._keep_count()

    async def _apply(self, settings: ServingSettings, *, fresh: bool, keep_learned: bool) -> None:
        wanted = settings.replica
        alive = [m for m in self._members.values() if m.state == "ready"]
        able = [m for m in alive if not (fresh or m.evicted) and m.can_change_to(settings)]
        kept = able[: wanted.count]
        leaving = [m for m in self._members.values() if m not in kept]
        before = list(self.deaths)
        self.deaths.clear()
        self._deaths_of_leaving.clear()
        for member in leaving:
            member.leaving = True
        changed: list[tuple[Member, ReplicaSettings]] = []
        started: list[Member] = []
        try:
            changed = [(member, member.limits) for member in kept]
            limited = await asyncio.gather(*(member.limit(wanted) for member in kept))
            for member, is_limited in zip(list(kept), limited, strict=True):
                if not is_limited or member.state != "ready":
                    kept.remove(member)
                    member.leaving = True
                    leaving.append(member)
            started = await self._start_many(wanted.count - len(kept), settings)
        except BaseException:
            self.deaths = deque([*before, *self._deaths_of_leaving], maxlen=_RETAINED_DEATHS)
            for member in leaving:
                member.leaving = False
            for member, limits in changed:
                if member.state != "ended" and not await member.limit(limits):
                    log.warning("limits cannot be restored", extra={"worker": member.worker})
            raise
        self._settings = settings
        if not keep_learned:
            self._failures = 0
        self._inform_scheduler(keep_learned=keep_learned)
        await asyncio.gather(*(self._retire(m, settings.replica.hang_timeout_s) for m in leaving))
        dead = [m for m in started if m.state == "ended"]
        if dead:
            log.warning("replicas ended while settings were applied", extra={"count": len(dead)})

    def _inform_scheduler(self, *, keep_learned: bool) -> None:
        possible = self._contents.achievable(self._settings)
        self._dispatcher.notify(SettingsChanged(possible, keep_learned))

    async def _watch_hangs(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_PERIOD_S)
            for member in list(self._members.values()):
                member.kill_if_hung(time.monotonic())

    # Starting

    async def _start_many(
        self, count: int, settings: ServingSettings, *, is_replacement: bool = False
    ) -> list[Member]:
        # A replacement warms up with single items: a large batch may have ended its predecessor.
        max_items = 1 if is_replacement else settings.batching.max_size
        members = []
        for _ in range(count):
            pages = self._contents.pages(settings)
            member = Member(next(self._workers), settings, max_items=max_items, pages=pages)
            self._members[member.worker] = member
            members.append(member)
        try:
            starts = (self._start(member, may_wait=is_replacement) for member in members)
            for outcome in await asyncio.gather(*starts, return_exceptions=True):
                if outcome is not None:
                    raise outcome
        except BaseException:
            await asyncio.gather(*(self._retire(member, 0.0) for member in members))
            raise
        return members

    async def _start(self, member: Member, *, may_wait: bool) -> None:
        timeout_s = member.limits.ready_timeout_s
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(None) as limit:
                replica = await self._spawner.start(
                    member.worker,
                    cpu=member.limits.cpu,
                    memory_mb=member.limits.memory_mb,
                    ready_timeout_s=timeout_s,
                    accelerator=member.accelerator,
                    spec=self._contents.spec,
                    may_wait=may_wait,
                )
                limit.reschedule(asyncio.get_running_loop().time() + timeout_s)
                member.replica = replica
                replica.leaving.add_done_callback(lambda told: self._evict(member, told.result()))
                follow = asyncio.create_task(
                    self._follow(member, replica), name=f"follow replica {member.worker}"
                )
                self._tasks.add(follow)
                follow.add_done_callback(self._tasks.discard)
                await self._connect(member, replica)
                await member.ready
        except TimeoutError:
            raise ReplicaStartFailed(
                "timeout",
                f"a replica was not ready after {timeout_s:g} s "
                "(replica.ready_timeout_s); raise it if the model loads slowly",
            ) from None
        except OSError as error:  # no descriptor or memory left
            raise ReplicaStartFailed("crash", f"a replica cannot be started: {error}") from error
        log.info(
            "replica ready",
            extra={"worker": member.worker, "seconds": round(time.monotonic() - began_s, 4)},
        )

    async def _connect(self, member: Member, replica: Replica) -> None:
        contents, reads_json = self._contents, "json" in replica.features
        max_response_bytes = self._settings.replica.max_response_mb << 20

        def wanted(model: ModelId) -> LoadSpec:
            spec = contents.make_load_spec(model, member)
            root = replica.root_of(spec.root)
            return spec._replace(root=root, max_response_bytes=max_response_bytes)

        def on_loaded(model: ModelId, outcome: LoadReport | ServingError) -> None:
            if member.ready.done() and not contents.is_shared:
                return
            if not isinstance(outcome, LoadReport):
                contents.on_load_failed(model, outcome)
                if not member.ready.done():
                    member.ready.set_exception(outcome)
                return
            if not member.ready.done():
                member.become_ready()
            signature = dataclasses.replace(outcome.signature, reads_json=reads_json)
            if contents.on_loaded(model, outcome._replace(signature=signature), member):
                self._inform_scheduler(keep_learned=True)

        connection = member.connection = ReplicaConnection(
            self._dispatcher,
            member.worker,
            wanted=wanted,
            on_loaded=on_loaded,
            on_lost=member.connection_lost,
            max_message_bytes=max_response_bytes,
            clock=replica.clock,
        )
        await replica.attach(lambda: connection)
        self._dispatcher.worker_up(connection, member.pages)
        if contents.is_shared and not member.ready.done():
            member.become_ready()

    async def _follow(self, member: Member, replica: Replica) -> None:
        ended = await asyncio.shield(replica.ended)
        if member.connection is not None and member.state == "ready" and not ended.together:
            with contextlib.suppress(TimeoutError):  # its last responses count
                await asyncio.wait_for(member.connection.ended.wait(), _LAST_WORDS_S)
        was = member.state
        member.state = "ended"
        self._members.pop(member.worker, None)
        reason, text = member.failure or (ended.reason, ended.text)
        if not member.ready.done():
            member.ready.set_exception(
                ReplicaStartFailed(reason, f"a replica ended before it was ready: {text}")
            )
            member.ready.exception()
        self._dispatcher.workers_down(ended.together or [member.worker], text)
        if was == "draining" or self._closing:
            return
        self._on_death(reason, text)
        death = Death(worker=member.worker, reason=reason, text=text, at_s=time.time())
        (self._deaths_of_leaving if member.leaving else self.deaths).append(death)
        log.warning(
            "replica ended", extra={"worker": member.worker, "reason": reason, "text": text}
        )
        if was == "ready" and not ended.together:
            has_answered = member.connection is not None and member.connection.has_answered
            self._failures = 0 if has_answered else self._failures + 1
        self._keep_count()

    # Replacement

    def _lacking(self) -> int:
        """Return how many replicas are to be started."""
        if self._closing or self._applying:
            return 0
        staying = sum(
            member.state in {"starting", "ready"} and not member.evicted
            for member in self._members.values()
        )
        return max(0, self._settings.replica.count - staying)

    def _evict(self, member: Member, reason: str) -> None:
        """Replace a replica whose machine is to be emptied; it leaves once there is another."""
        if member.state in {"starting", "ready"} and not self._closing:
            log.info("replica must leave", extra={"worker": member.worker, "reason": reason})
            member.evicted = True
            self._keep_count()

    def _keep_count(self) -> None:
        if (self._restart is None or self._restart.done()) and self._lacking():
            self._restart = asyncio.create_task(self._start_missing(), name="restart replicas")

    async def _start_missing(self) -> None:
        while count := self._lacking():
            if self._failures:
                delay_s = FIRST_BACKOFF_S * 2.0 ** min(self._failures - 1, 16)
                await asyncio.sleep(min(MAX_BACKOFF_S, delay_s))
            started = await asyncio.gather(*(self._replace() for _ in range(count)))
            self._failures += not all(started)

    async def _replace(self) -> bool:
        """Start a replica, for one that must leave if there is one; return whether it started."""
        try:
            await self._start_many(1, self._settings, is_replacement=True)
        except ServingError as error:
            log.warning("replica did not start", extra={"error": str(error)})
            return False
        except Exception:  # e.g. no descriptor left: restarts must go on
            log.exception("replica did not start")
            return False
        evicted = [m for m in self._members.values() if m.evicted and m.state != "draining"]
        if evicted:
            await self._retire(evicted[0], self._settings.replica.hang_timeout_s)
        return True

    async def _stop_restart(self) -> None:
        if self._restart is not None:
            self._restart.cancel()
            await asyncio.gather(self._restart, return_exceptions=True)

    async def _retire(self, member: Member, grace_s: float) -> None:
        replica = member.replica
        member.state = "draining" if replica is not None else "ended"
        if replica is None:
            self._members.pop(member.worker, None)
            return
        self._dispatcher.worker_draining(member.worker)
        until_s = time.monotonic() + grace_s
        while (
            (member.connection is not None and member.connection.sent)
            and not replica.ended.done()
            and time.monotonic() < until_s
        ):
            await asyncio.sleep(0.001)
        self._dispatcher.workers_down([member.worker], "retired")
        replica.kill()
        await asyncio.shield(replica.ended)
        self._members.pop(member.worker, None)
