"""Exchange of feedback among gateways: what this one was told goes to the log, and the log is replayed.

    told here  -> counts at once -> written to the log -> replayed by all gateways in the log's order
    replayed   -> states saved with their place -> places that all states have learnt are dropped

One round (`sync`) writes what waits, reads what is new, and saves what has changed. A round that fails
is tried again with the same: the log takes each feedback once. Call from the event loop's thread only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from serving.errors import NotReady
from serving.selection import decision_json
from serving.selection.decision_json import Feedback, LogText
from serving.selection.decisions import DecisionLog, size_bytes
from serving.selection.policy import Decision
from serving.selection.query_ids import BLOCK, QueryIds, since_1970
from serving.selection.shared_states import SharedUserStates
from serving.selection.stores.shared_store import (
    KeptDecision,
    Page,
    Place,
    PlacedState,
    SharedStore,
    StateKey,
    Told,
)
from serving.selection.write_backlog import WriteBacklog

log = logging.getLogger(__name__)

ROUND_S = 0.03
"""Seconds between rounds while there is something to exchange."""
IDLE_S = 0.2
"""Seconds after which this gateway looks for what others were told, though it has nothing to write."""
_SAVE_S = 0.2
_MAX_EARLY = 1000
"""Maximum number of places of applications that are not known here yet."""
_EARLY_S = 60.0
"""Seconds for which they stay: an application that was deleted is never known again.

So do those after the deletion of one that is here, and its states are not saved: it may have been
added again with another policy, which is not known here yet.
"""
_PAGE = 500
_T = TypeVar("_T")


class _Early(NamedTuple):
    place: Place
    since_s: float


class FeedbackExchange:
    """One gateway's end of what the gateways share of selection."""

    def __init__(self, store: SharedStore) -> None:
        """Begin behind what the store's states have learnt; `close` also closes the store.

        Raises:
            NotReady: the store is unavailable.
        """
        self._store = store
        self.ids = QueryIds(store.reserve_ids(BLOCK, at_least=since_1970()), BLOCK)
        self.place = store.read(0, 1).base
        """Place of the log up to which this gateway has replayed it."""
        self._base = self.place  # what this gateway saved last
        # The key that the log has at that place, by which a log is known; None: it has none there.
        at = store.read(self.place - 1, 1).places
        self._key = at[0].told.key if at and at[0].number == self.place else None
        self._states: dict[str, SharedUserStates] = {}
        self._logs: dict[str, DecisionLog] = {}
        self._waiting: WriteBacklog[Told] = WriteBacklog()
        self._decisions: WriteBacklog[tuple[str, Decision]] = WriteBacklog()
        self._early: deque[_Early] = deque(maxlen=_MAX_EARLY)
        self._again: list[Place] = []
        self._deleted: dict[str, int] = {}  # whose deletion is to be saved
        self._deletions: dict[str, int] = {}  # place of each application's last deletion
        self._forgotten_s: dict[str, float] = {}  # when another gateway deleted one that is here
        self._saved_s = time.monotonic()
        self._turn = asyncio.Lock()
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "feedback")
        self._has_work = asyncio.Event()
        self._is_away = False

    # What is told here

    def attach(self, name: str, states: SharedUserStates, decisions: DecisionLog) -> None:
        """Add an application; what the log said of it before is replayed in the next round."""
        self._states[name] = states
        self._logs[name] = decisions
        self._again += self._take_early(name)

    def _take_early(self, name: str) -> list[Place]:
        early, others = [], deque[_Early](maxlen=_MAX_EARLY)
        for one in self._early:
            if one.place.told.application == name:
                early.append(one.place)
            else:
                others.append(one)
        self._early = others
        return early

    def detach(self, name: str) -> None:
        """Remove an application that another gateway deleted."""
        self._states.pop(name, None)
        self._logs.pop(name, None)
        self._forgotten_s.pop(name, None)
        self._decisions.discard(
            [
                key
                for piece in self._decisions.pieces()
                for key, (application, _) in piece.items()
                if application == name
            ]
        )

    def delete(self, name: str) -> None:
        """Remove an application, and have all gateways forget its states.

        Raises:
            NotReady: no id is left for it, because the store is away.
        """
        self._put(Told(self.next_id(), name, decision_json.write_log(LogText())))
        self._deletions[name] = sys.maxsize  # until it has its place
        self.detach(name)

    def relink(self, name: str, models: Sequence[str]) -> None:
        """Have the states of all gateways go over to other models, at one place of the log.

        Raises:
            NotReady: no id is left for it, because the store is away.
        """
        text = decision_json.write_log(LogText(models=tuple(models)))
        self._put(Told(self.next_id(), name, text))

    def tell(self, name: str, feedback: Feedback, initial: str | None) -> None:
        """Have feedback written to the log.

        Raises:
            NotReady: too much waits to be written.
        """
        told = Told(feedback.key, name, decision_json.write_log(LogText(feedback, initial)))
        if not self._waiting.fits(len(told.text)):
            count, size = len(self._waiting), self._waiting.bytes
            text = f"{count} feedbacks ({size} bytes) are already waiting to be written"
            raise NotReady(text)
        self._put(told)

    def _put(self, told: Told) -> None:
        self._waiting.put(told.key, told, len(told.text))
        self._has_work.set()

    def next_id(self) -> int:
        """Return an id that no other gateway has.

        Raises:
            NotReady: all reserved ones are used, because the store has been away for long.
        """
        taken = self.ids.take()
        if taken is None:
            raise NotReady("no query id is left, and the store of the states is away")
        return taken

    def keep_decision(self, name: str, decision: Decision) -> None:
        """Have a decision written, so that feedback on it may come to any gateway."""
        self._decisions.put(decision.query.id, (name, decision), size_bytes(decision))
        while not self._decisions.fits(0):
            self._decisions.drop_oldest()
        self._has_work.set()

    def find_decision(self, name: str, key: int) -> Decision | None:
        """Return a decision that any gateway made and that has no feedback yet.

        Raises:
            NotReady: the store is away; the feedback may be repeated.
        """
        return self._untold(self._store.find_decision(name, key))

    def find_by_input(self, name: str, user: str, input_hash: str) -> Decision | None:
        """Return the newest decision for an input, as `find_decision`."""
        return self._untold(self._store.find_by_input(name, user, input_hash))

    def _untold(self, text: str | None) -> Decision | None:
        """Return the decision in a text, unless its feedback is on the way to the log."""
        decision = _read(text)
        return None if decision is None or decision.query.id in self._waiting else decision

    def load_now(self, name: str, user: str) -> PlacedState | None:
        """Return a state in the store, while the event loop waits.

        Raises:
            NotReady: the store is away.
        """
        found = self._store.load_now((name, user))
        return None if found is None or self._is_deleted(name, found) else found

    def _is_deleted(self, name: str, state: PlacedState) -> bool:
        return state.place < self._deletions.get(name, 0)

    # Rounds

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_work.wait(), IDLE_S)
            if not self._states and not self._waiting and not self._deleted:
                continue
            try:
                await self.sync()
            except NotReady as error:
                if not self._is_away:
                    text = "feedback is not exchanged; it is kept for another try"
                    log.error(text, extra={"reason": str(error)})
                self._is_away = True
            except Exception:  # a fault of one round must not end this
                log.exception("feedback is not exchanged")
            else:
                if self._is_away:
                    log.info("feedback is exchanged again")
                self._is_away = False

    async def sync(self, *, save: bool = False) -> None:
        """Write what waits, replay what is new, and save what has changed, now or when it is due.

        Raises:
            NotReady: the store is unavailable; nothing is lost.
        """
        async with self._turn:
            self._has_work.clear()
            try:
                await self._write()
            except BaseException:
                self._has_work.set()
                raise
            await self._replay()
            if self.ids.wants_block:
                reserve = lambda: self._store.reserve_ids(BLOCK, at_least=since_1970())  # noqa: E731
                self.ids.add_block(await self._call(reserve))
            if save or time.monotonic() - self._saved_s >= _SAVE_S:
                await self._save()

    async def _write(self) -> None:
        for decisions in self._decisions.pieces():
            keep = lambda decisions=decisions: self._store.keep_decisions(  # noqa: E731
                [_kept(*one) for one in decisions.values()]
            )
            await self._call(keep)
            self._decisions.discard(decisions)
        for piece in self._waiting.pieces():
            told = list(piece.values())
            places = await self._call(self._store.append, told)
            self._waiting.discard(piece)
            for one, place in zip(told, places, strict=True):
                states = self._states.get(one.application)
                if place <= self.place and states is not None:  # another gateway was told before
                    states.settle(one.key)

    async def _replay(self) -> None:
        is_restarted = False
        while True:
            # With the last place that is known here: the log may have lost its end and got another.
            page = await self._call(self._store.read, self.place - 1, _PAGE)
            if not is_restarted and not self._goes_on(page):
                await self._restart(page)
                is_restarted = True
                continue
            known = [place for place in page.places if place.number <= self.place]
            new = page.places[len(known) :]
            self._key = known[-1].told.key if known else self._key
            again = list(self._again)
            await self._replay_places([*again, *new])
            del self._again[: len(again)]
            if len(page.places) < _PAGE:
                return

    def _goes_on(self, page: Page) -> bool:
        """Return whether a page from `place` is of the log that was replayed here."""
        if self._key is None or self.place == page.trimmed:
            return page.trimmed <= self.place <= page.last
        first = [(place.number, place.told.key) for place in page.places[:1]]
        return first == [(self.place, self._key)]

    async def _replay_places(self, places: list[Place]) -> None:
        said = [(place, _read_log(place.told)) for place in places]
        attached = dict(self._states)
        loaded = await self._load(self._to_load(said))
        for place, text in said:
            name = place.told.application
            states = self._states.get(name)
            if text == LogText():
                loaded = self._forget(place, loaded)
            elif text is not None and place.number >= self._deletions.get(name, 0):
                if states is None or name in self._forgotten_s:
                    self._early.append(_Early(place, time.monotonic()))
                if states is None:
                    pass
                elif states is not attached.get(name):  # since then; none of its states is loaded
                    self._again.append(place)
                elif text.models is not None:
                    states.relink_at(place.number, text.models)
                else:
                    states.replay(place.number, text, loaded)
                    self._logs[name].discard(place.told.key)
            elif states is not None:
                states.settle(place.told.key)  # told here for what comes after the deletion
            if place.number > self.place:
                self.place, self._key = place.number, place.told.key

    def _to_load(self, said: Sequence[tuple[Place, LogText | None]]) -> list[StateKey]:
        keys: dict[StateKey, None] = {}
        for place, text in said:
            name = place.told.application
            if text is not None and text.feedback is not None and name in self._states:
                for user in self._states[name].to_load(text.feedback):
                    keys[name, user] = None
        return list(keys)

    def _forget(
        self, place: Place, loaded: Mapping[StateKey, PlacedState]
    ) -> dict[StateKey, PlacedState]:
        """Delete an application, and return those states of all that were loaded and are left."""
        name = place.told.application
        if name in self._states and self._deletions.get(name) != sys.maxsize:
            self._forgotten_s[name] = time.monotonic()
        self._deleted[name] = self._deletions[name] = place.number
        self._take_early(name)
        if name in self._states:
            self._states[name].forget(place.number)
        return self._undeleted(loaded)

    def _undeleted(self, loaded: Mapping[StateKey, PlacedState]) -> dict[StateKey, PlacedState]:
        return {key: state for key, state in loaded.items() if not self._is_deleted(key[0], state)}

    async def _load(self, keys: Sequence[StateKey]) -> dict[StateKey, PlacedState]:
        return self._undeleted(await self._call(self._store.load, keys)) if keys else {}

    async def _restart(self, page: Page) -> None:
        """The log went on too far without this gateway, or has lost its end: start from the store."""
        log.error(
            "the log of feedback is not as it was; states are loaded again",
            extra={"here": self.place, "from": page.trimmed, "to": page.last},
        )
        self._deleted.clear()
        self._deletions.clear()
        for name, states in list(self._states.items()):
            self.relink(name, states.models)  # the log may have lost that, too
            users = states.users()
            loaded = await self._load([(name, user) for user in users])
            states.restart(users, loaded, self._waiting.keys())
        self.place, self._key = min(page.base, page.last), None
        self._base = self.place
        self._early.clear()
        self._forgotten_s.clear()
        self._again.clear()

    async def _save(self) -> None:
        self._saved_s = time.monotonic()
        while self._early and self._saved_s - self._early[0].since_s >= _EARLY_S:
            self._early.popleft()
        for name in [n for n, s in self._forgotten_s.items() if self._saved_s - s >= _EARLY_S]:
            del self._forgotten_s[name]
        unsaved = {
            (name, user): state
            for name, states in self._states.items()
            if name not in self._forgotten_s
            for user, state in states.unsaved().items()
        }
        deleted, self._deleted = self._deleted, {}
        names = {name for name, _ in unsaved}
        most = {name: self._states[name].most_users for name in names}
        later = [*self._again, *(one.place for one in self._early)]
        forgotten = [self._deletions[name] for name in self._forgotten_s]
        base = min([self.place, *forgotten, *(place.number - 1 for place in later)])
        if not unsaved and not deleted and base <= self._base:
            return
        save = lambda: self._store.save(  # noqa: E731
            unsaved,
            base=base,
            deleted=deleted,
            most_users={name: count for name, count in most.items() if count is not None},
        )
        try:
            await self._call(save)
        except BaseException:
            self._deleted = deleted | self._deleted
            raise
        self._base = base
        for (name, user), state in unsaved.items():
            if name in self._states:
                self._states[name].saved(user, state.place)

    async def _call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, function, *arguments)

    def flush(self) -> None:
        """Write what waits to the log; may be called from any thread.

        Raises:
            NotReady: the store is unavailable.
        """
        for piece in self._waiting.pieces():
            self._store.append(list(piece.values()))

    def close(self) -> None:
        """Write what waits, and close the store; what another gateway lacks is logged."""
        self._thread.shutdown()
        try:
            for piece in self._decisions.pieces():
                self._store.keep_decisions([_kept(*one) for one in piece.values()])
            self.flush()
        except NotReady as error:
            facts = {"feedbacks": len(self._waiting), "reason": str(error)}
            log.error("feedback lost", extra=facts)
        self._store.close()


def _kept(name: str, decision: Decision) -> KeptDecision:
    query = decision.query
    text = decision_json.write_decision(decision)
    return KeptDecision(query.id, name, query.user, query.input_hash, text)


def _read(text: str | None) -> Decision | None:
    if text is None:
        return None
    try:
        return decision_json.read_decision(text)
    except ValueError as error:
        log.error("a decision cannot be read", extra={"reason": str(error)})
        return None


def _read_log(told: Told) -> LogText | None:
    try:
        return decision_json.read_log(told.text)
    except ValueError as error:
        facts = {"application": told.application, "reason": str(error)}
        log.error("feedback in the log cannot be read", extra=facts)
        return None
