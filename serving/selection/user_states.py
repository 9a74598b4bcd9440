"""An application's policy states: a shared one and, if configured, one per user.

Feedback updates both; new users start from the shared state.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from serving.errors import NotReady
from serving.selection.model_output import TrueLabel
from serving.selection.policy import Decision, PolicyState
from serving.selection.query_session import Selector
from serving.selection.stores.state_store import EVERYBODY, StateStore

log = logging.getLogger(__name__)


class UserStates:
    """An application's states by user."""

    def __init__(self, selector: Selector, store: StateStore, *, capacity: int = 10_000) -> None:
        self._selector = selector
        self._store = store
        self._capacity = capacity
        self._states: OrderedDict[str, PolicyState] = OrderedDict()
        self.state_misses = 0
        """Number of queries for which the state could not be read."""
        self._bound()

    def for_query(self, user: str) -> PolicyState:
        """Return the state for a query, or a substitute while the store is unavailable."""
        try:
            return self.state(user)
        except NotReady:  # the store logs it once
            self.state_misses += 1
        shared = self._states.get(EVERYBODY)
        if shared is None:
            shared = self._selector.initial()
        return (
            shared if self._context(user) == EVERYBODY else self._selector.initial_for_user(shared)
        )

    def state(self, user: str) -> PolicyState:
        """Return a user's state.

        Raises:
            NotReady: it is not cached, and the store is unavailable.
        """
        user = self._context(user)
        state = self._states.get(user)
        if state is not None:
            self._states.move_to_end(user)
            return state
        return self._cache_state(user, self._load_state(user))

    def observe(self, decision: Decision, truth: TrueLabel) -> None:
        """Learn from feedback.

        Raises:
            NotReady: a state cannot be read, or too many writes are waiting.
        """
        user = self._context(decision.query.user)
        selector = self._selector
        learnt = {
            context: selector.policy.observe(self.state(context), decision, truth)
            for context in (user, EVERYBODY)
        }
        texts = {context: selector.dump_state(state) for context, state in learnt.items()}
        self._store.save(selector.application.name, texts)
        for context, state in learnt.items():
            self._cache_state(context, state)

    def relink(self, selector: Selector) -> None:
        """Switch to the changed application, keeping what was learned."""
        self._selector = selector
        self._states.clear()
        self._bound()

    def _bound(self) -> None:
        application = self._selector.application
        if application.contexts == "user":
            self._store.keep_most(application.name, application.most_users)

    def _context(self, user: str) -> str:
        return user if self._selector.application.contexts == "user" else EVERYBODY

    def _load_state(self, user: str) -> PolicyState:
        name = self._selector.application.name
        text = self._store.load(name, user)
        if text is not None:
            try:
                state = self._selector.parse_state(text)
            except ValueError as error:
                log.error(
                    "state not readable",
                    extra={"application": name, "user": user, "reason": str(error)},
                )
            else:
                if state is not None:
                    return state
        if user == EVERYBODY:
            return self._selector.initial()
        return self._selector.initial_for_user(self.state(EVERYBODY))

    def _cache_state(self, user: str, state: PolicyState) -> PolicyState:
        self._states[user] = state
        self._states.move_to_end(user)
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return state
