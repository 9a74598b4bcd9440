"""The states of one application: everybody's, and where it asks for them each user's.

In: queries and feedback by user. Out: the state to decide with. States in use are kept in memory,
the least recently used leave; all are in the store. With user contexts every feedback teaches twice:
the user's state, and everybody's, from which newcomers begin. No clock; it belongs to one thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from serving.selection.answering import Selector
from serving.selection.policy import Decision, State
from serving.selection.prediction import Truth
from serving.selection.state_store import StateStore

log = logging.getLogger(__name__)

EVERYBODY = ""


class Contexts:
    """States by user."""

    def __init__(self, selector: Selector, store: StateStore, *, capacity: int = 10_000) -> None:
        self._selector = selector
        self._store = store
        self._capacity = capacity
        self._states: OrderedDict[str, State] = OrderedDict()

    def state(self, user: str) -> State:
        """The state for a query of a user.

        Raises:
            NotReady: the store cannot be reached, and the state is not in memory.
        """
        user = self._context(user)
        state = self._states.get(user)
        if state is not None:
            self._states.move_to_end(user)
            return state
        return self._kept(user, self._loaded(user))

    def observe(self, decision: Decision, truth: Truth) -> None:
        """Learn from feedback.

        Raises:
            NotReady: as `state`.
        """
        user = self._context(decision.query.user)
        for context in dict.fromkeys((user, EVERYBODY)):
            state = self._selector.observe(self.state(context), decision, truth)
            self._kept(context, state)
            self._store.save(self._selector.application.name, context, self._selector.stored(state))

    def relink(self, selector: Selector) -> None:
        """Go on with the changed application; what was learnt of models that stay is kept."""
        self._selector = selector
        self._states.clear()

    def _context(self, user: str) -> str:
        return user if self._selector.application.contexts == "user" else EVERYBODY

    def _loaded(self, user: str) -> State:
        name = self._selector.application.name
        text = self._store.load(name, user)
        if text is not None:
            try:
                state = self._selector.restored(text)
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
        return self._selector.newcomer(self.state(EVERYBODY))

    def _kept(self, user: str, state: State) -> State:
        self._states[user] = state
        self._states.move_to_end(user)
        while len(self._states) > self._capacity:
            self._states.popitem(last=False)
        return state
