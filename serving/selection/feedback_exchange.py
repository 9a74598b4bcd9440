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
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from serving.errors import NotReady
from serving.selection import decision_json
from serving.selection.decision_json import Feedback, LogText
from serving.selection.decisions import DecisionLog
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

log = logging.getLogger(__name__)

ROUND_S = 0.03
"""Seconds between rounds while there is something to exchange."""
IDLE_S = 0.2
"""Seconds after which this gateway looks for what others were told, though it has nothing to write."""
_SAVE_S = 0.2
_MAX_WAITING = 65_536
"""Maximum number of feedbacks, and of decisions, that wait to be written."""
_MAX_EARLY = 1000
"""Maximum number of places of applications that are not known here yet."""
_PAGE = 2000
_T = TypeVar("_T")


class _Waiting(NamedTuple):
    told: Told
    feedback: Feedback | None


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
        self._states: dict[str, SharedUserStates] = {}
        self._logs: dict[str, DecisionLog] = {}
        self._waiting: dict[int, _Waiting] = {}
        self._decisions: deque[tuple[str, Decision]] = deque(maxlen=_MAX_WAITING)
        self._early: deque[Place] = deque(maxlen=_MAX_EARLY)
        self._again: list[Place] = []
        self._deleted: dict[str, int] = {}
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
        self._again += [place for place in self._early if place.told.application == name]
        self._early = deque(
            (place for place in self._early if place.told.application != name), _MAX_EARLY
        )

    def detach(self, name: str) -> None:
        """Remove an application that another gateway deleted."""
        self._states.pop(name, None)
        self._logs.pop(name, None)

    def delete(self, name: str) -> None:
        """Remove an application, and have all gateways forget its states.

        Raises:
            NotReady: no id is left for it, because the store is away.
        """
        self._put(Told(self.next_id(), name, decision_json.write_log(LogText())), None)
        self.detach(name)

    def relink(self, name: str, models: Sequence[str]) -> None:
        """Have the states of all gateways go over to other models, at one place of the log.

        Raises:
            NotReady: no id is left for it, because the store is away.
        """
        text = decision_json.write_log(LogText(models=tuple(models)))
        self._put(Told(self.next_id(), name, text), None)

    def tell(self, name: str, feedback: Feedback, initial: str | None) -> None:
        """Have feedback written to the log.

        Raises:
            NotReady: too much waits to be written.
        """
        if len(self._waiting) >= _MAX_WAITING:
            raise NotReady(f"{_MAX_WAITING} feedbacks are already waiting to be written")
        text = decision_json.write_log(LogText(feedback, initial))
        self._put(Told(feedback.key, name, text), feedback)

    def _put(self, told: Told, feedback: Feedback | None) -> None:
        self._waiting[told.key] = _Waiting(told, feedback)
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
        self._decisions.append((name, decision))
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
        return self._store.load_now((name, user))

    # Rounds

    async def run(self) -> None:
        """Exchange until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_work.wait(), IDLE_S)
            if not self._states and not self._waiting:
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
            decisions, told = list(self._decisions), [one.told for one in self._waiting.values()]
            self._decisions.clear()
            try:
                page = await self._call(self._write_and_read, decisions, told)
            except BaseException:
                self._decisions.extendleft(reversed(decisions))
                self._has_work.set()
                raise
            for one in told:
                del self._waiting[one.key]
            await self._replay(page)
            if self.ids.wants_block:
                reserve = lambda: self._store.reserve_ids(BLOCK, at_least=since_1970())  # noqa: E731
                self.ids.add_block(await self._call(reserve))
            if save or time.monotonic() - self._saved_s >= _SAVE_S:
                await self._save()

    def _write_and_read(self, decisions: list[tuple[str, Decision]], told: list[Told]) -> Page:
        self._store.keep_decisions([_kept(name, decision) for name, decision in decisions])
        self._store.append(told)
        return self._store.read(self.place, _PAGE)

    async def _replay(self, page: Page) -> None:
        while True:
            if not page.trimmed <= self.place <= page.last:
                await self._restart(page)
                page = await self._call(self._store.read, self.place, _PAGE)
            await self._replay_places([*self._again, *page.places])
            self._again.clear()
            if len(page.places) < _PAGE:
                return
            page = await self._call(self._store.read, self.place, _PAGE)

    async def _replay_places(self, places: list[Place]) -> None:
        said = [(place, _read_log(place.told)) for place in places]
        keys: dict[StateKey, None] = {}
        for place, text in said:
            states = self._states.get(place.told.application)
            if states is not None and text is not None and text.feedback is not None:
                for user in states.to_load(text.feedback):
                    keys[place.told.application, user] = None
        loaded = await self._call(self._store.load, list(keys)) if keys else {}
        for place, text in said:
            states = self._states.get(place.told.application)
            if text is None:
                pass
            elif text.models is not None:
                if states is None:
                    self._early.append(place)
                else:
                    states.relink_at(place.number, text.models)
            elif text.feedback is None:
                self._deleted[place.told.application] = place.number
                self._early = deque(
                    (one for one in self._early if one.told.application != place.told.application),
                    _MAX_EARLY,
                )
                if states is not None:
                    states.forget(place.number)
            elif states is None:
                self._early.append(place)
            else:
                states.replay(place.number, text, loaded)
                self._logs[place.told.application].discard(place.told.key)
            self.place = max(self.place, place.number)

    async def _restart(self, page: Page) -> None:
        """The log went on too far without this gateway, or has lost its end: start from the store."""
        log.error(
            "the log of feedback is not as it was; states are loaded again",
            extra={"here": self.place, "from": page.trimmed, "to": page.last},
        )
        for name, states in self._states.items():
            keys = [(name, user) for user in states.users()]
            loaded = await self._call(self._store.load, keys)
            states.restart(page.base, loaded, self._waiting.keys())
        self.place = page.base
        self._early.clear()

    async def _save(self) -> None:
        self._saved_s = time.monotonic()
        unsaved = {
            (name, user): state
            for name, states in self._states.items()
            for user, state in states.unsaved().items()
        }
        deleted, self._deleted = self._deleted, {}
        if not unsaved and not deleted:
            return
        names = {name for name, _ in unsaved}
        most = {name: self._states[name].most_users for name in names}
        base = min([self.place, *(place.number - 1 for place in self._early)])
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
        self._store.append([one.told for one in list(self._waiting.values())])

    def close(self) -> None:
        """Write what waits, and close the store; what another gateway lacks is logged."""
        self._thread.shutdown()
        try:
            self._store.keep_decisions([_kept(*one) for one in self._decisions])
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
