"""An application's policy states on a gateway that shares them with others, as `UserStates`.

A state is in memory while it has learnt what the store's has not: so for every other one, the store's
has learnt all that this gateway has replayed.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from typing import Any, Protocol

from serving.errors import NotReady
from serving.selection.decision_json import Feedback, LogText
from serving.selection.model_output import TrueLabel
from serving.selection.policy import Decision, PolicyState
from serving.selection.query_session import Selector
from serving.selection.replayed_state import ReplayedState
from serving.selection.stores.shared_store import PlacedState, StateKey
from serving.selection.stores.state_store import EVERYBODY

log = logging.getLogger(__name__)


class StateExchange(Protocol):
    """What the states need of `FeedbackExchange`."""

    def load_now(self, name: str, user: str) -> PlacedState | None:
        """Return a state in the store, or raise NotReady."""
        ...

    def tell(self, name: str, feedback: Feedback, initial: str | None) -> None:
        """Have feedback written to the log, or raise NotReady."""
        ...


class SharedUserStates:
    """An application's states by user."""

    def __init__(
        self, selector: Selector, exchange: StateExchange, *, capacity: int = 10_000
    ) -> None:
        self._selector = selector
        self._exchange = exchange
        self._capacity = capacity
        self._states: OrderedDict[str, ReplayedState[Any]] = OrderedDict()
        self._unsaved: set[str] = set()
        self.state_misses = 0
        """Number of queries for which the state could not be read."""

    @property
    def most_users(self) -> int | None:
        """Maximum number of users' states, or None if there is only the shared one."""
        application = self._selector.application
        return application.most_users if application.contexts == "user" else None

    @property
    def models(self) -> tuple[str, ...]:
        """Models that are linked now."""
        return self._selector.application.models

    # Queries and feedback

    def for_query(self, user: str) -> PolicyState:
        """Return the state for a query, or a substitute while the store is unavailable."""
        try:
            return self.state(user)
        except NotReady:
            self.state_misses += 1
        shared = self._states.get(EVERYBODY)
        live = self._selector.initial() if shared is None else shared.live
        return live if self._context(user) == EVERYBODY else self._selector.initial_for_user(live)

    def state(self, user: str) -> PolicyState:
        """Return a user's state.

        Raises:
            NotReady: it is not in memory, and the store is unavailable.
        """
        live: PolicyState = self._replayed(self._context(user)).live
        return live

    def observe(self, decision: Decision, truth: TrueLabel) -> None:
        """Learn from feedback, and have it written to the log.

        Raises:
            NotReady: a state cannot be read, or too much waits to be written.
        """
        user = self._context(decision.query.user)
        states = [self._replayed(one) for one in dict.fromkeys((user, EVERYBODY))]
        initial = None
        if states[0].is_new and user != EVERYBODY:
            initial = self._selector.dump_state(states[0].replayed)
        feedback = Feedback(decision, truth)
        self._exchange.tell(self._selector.application.name, feedback, initial)
        for state in states:
            state.tell(feedback)

    def relink(self, selector: Selector) -> None:
        """Switch to the changed application; its states follow at a place of the log."""
        self._selector = selector

    # Replay

    def to_load(self, feedback: Feedback) -> list[str]:
        """Return whose states feedback concerns that may not be in memory when it is replayed.

        A user's may be dropped until then; it is saved then, so what is loaded now is as good.
        """
        user = self._context(feedback.decision.query.user)
        return [
            one
            for one in dict.fromkeys((user, EVERYBODY))
            if one != EVERYBODY or one not in self._states
        ]

    def replay(self, place: int, said: LogText, loaded: Mapping[StateKey, PlacedState]) -> None:
        """Learn from a place of the log, with the states loaded of which `to_load` spoke."""
        feedback = said.feedback
        assert feedback is not None
        name = self._selector.application.name
        shared = self._states.get(EVERYBODY) or self._add(EVERYBODY, loaded.get((name, EVERYBODY)))
        user = self._context(feedback.decision.query.user)
        if user != EVERYBODY:
            mine = self._states.get(user) or self._add(user, loaded.get((name, user)))
            initial = None if said.initial is None else self._parsed(said.initial, user)
            if initial is None and mine.is_new:  # as all gateways have it at this place
                initial = self._selector.initial_for_user(shared.replayed)
            self._learn(user, mine, place, feedback, initial)
        self._learn(EVERYBODY, shared, place, feedback, None)
        self._drop_settled()

    def _learn(
        self,
        user: str,
        state: ReplayedState[Any],
        place: int,
        feedback: Feedback,
        initial: PolicyState | None,
    ) -> None:
        if place > state.place:
            self._unsaved.add(user)
        state.replay(place, feedback, initial)

    def settle(self, key: int) -> None:
        """Drop feedback that was told here, as the log had it before from another gateway."""
        for state in self._states.values():
            state.settle(key)

    def relink_at(self, place: int, models: tuple[str, ...]) -> None:
        """Go over to other models at a place of the log, keeping what was learned."""
        for user, state in self._states.items():
            if place > state.place:
                policy = self._selector.policy
                if state.replayed.models != models:
                    state.relink(place, policy, policy.relink(state.replayed, models))
                    self._unsaved.add(user)

    def forget(self, place: int) -> None:
        """Begin anew at a place of the log, at which the application was deleted."""
        shared = self._selector.initial()
        for user, state in list(self._states.items()):
            if user == EVERYBODY:
                state.restart(place, shared)
            elif state.is_settled:
                del self._states[user]
            else:
                state.restart(place, self._selector.initial_for_user(shared), is_new=True)
            self._unsaved.discard(user)

    def users(self) -> list[str]:
        """Return whose states are in memory."""
        return list(self._states)

    def restart(
        self,
        users: Sequence[str],
        loaded: Mapping[StateKey, PlacedState],
        unwritten: Container[int],
    ) -> None:
        """Go on from the store's states of users, and with what was told here and is not in the log."""
        name = self._selector.application.name
        for user in sorted(users):  # everybody's first, from which new users start
            old = self._states.get(user)
            if old is not None:
                state = self._add(user, loaded.get((name, user)))
                for feedback in old.own:
                    if feedback.key in unwritten:
                        state.tell(feedback)
        self._unsaved.difference_update(users)

    def unsaved(self) -> dict[str, PlacedState]:
        """Return the states by user that have learnt what the store's have not."""
        return {
            user: PlacedState(state.place, self._selector.dump_state(state.replayed))
            for user, state in ((user, self._states[user]) for user in self._unsaved)
        }

    def saved(self, user: str, place: int) -> None:
        """Note that a user's state is in the store as of a place."""
        state = self._states.get(user)
        if state is not None and state.place <= place:
            self._unsaved.discard(user)

    # Memory

    def _context(self, user: str) -> str:
        return user if self._selector.application.contexts == "user" else EVERYBODY

    def _replayed(self, user: str) -> ReplayedState[Any]:
        state = self._states.get(user)
        if state is not None:
            self._states.move_to_end(user)
            return state
        if user != EVERYBODY:
            self._replayed(EVERYBODY)
        found = self._exchange.load_now(self._selector.application.name, user)
        state = self._add(user, found)
        self._drop_settled()
        return state

    def _add(self, user: str, found: PlacedState | None) -> ReplayedState[Any]:
        policy = self._selector.policy
        parsed = None if found is None else self._parsed(found.text, user)
        if found is not None and parsed is not None:
            state = ReplayedState(policy, parsed, place=found.place)
        elif user == EVERYBODY:
            state = ReplayedState(policy, self._selector.initial())
        else:
            shared = self._states[EVERYBODY].live
            state = ReplayedState(policy, self._selector.initial_for_user(shared), is_new=True)
        self._states[user] = state
        return state

    def _parsed(self, text: str, user: str) -> PolicyState | None:
        try:
            return self._selector.parse_state(text)
        except ValueError as error:
            name = self._selector.application.name
            facts = {"application": name, "user": user, "reason": str(error)}
            log.error("state not readable", extra=facts)
            return None

    def _drop_settled(self) -> None:
        if len(self._states) <= self._capacity:
            return
        for user in list(self._states):
            if user != EVERYBODY and user not in self._unsaved and self._states[user].is_settled:
                del self._states[user]
            if len(self._states) <= self._capacity:
                return
