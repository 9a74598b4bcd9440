"""The states of one application: everybody's, and where it asks for them each user's.

In: queries and feedback by user. Out: the state to decide with. States in use are kept in memory,
the least recently used leave; all are in the store. With user contexts every feedback teaches twice:
the user's state, and everybody's, from which newcomers begin. No clock; it belongs to one thread.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

from serving.errors import NotReady
from serving.selection.answering import Selector
from serving.selection.policy import Decision, State
from serving.selection.prediction import Truth
from serving.selection.state_store import EVERYBODY, StateStore

log = logging.getLogger(__name__)


class Contexts:
    """States by user."""

    def __init__(self, selector: Selector, store: StateStore, *, capacity: int = 10_000) -> None:
        self._selector = selector
        self._store = store
        self._capacity = capacity
        self._states: OrderedDict[str, State] = OrderedDict()
        self.fresh = 0
        """Queries that were decided by a state which has learnt nothing, as theirs could not be read."""
        self._bound()

    def for_query(self, user: str) -> State:
        """The state to decide with; where it cannot be read, one that has learnt nothing of the user.

        Such a state is not kept: when the store is back, what was learnt counts again.
        """
        try:
            return self.state(user)
        except NotReady:  # the store tells it, once
            self.fresh += 1
        shared = self._states.get(EVERYBODY)
        if shared is None:
            shared = self._selector.initial()
        return shared if self._context(user) == EVERYBODY else self._selector.newcomer(shared)

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
            NotReady: as `state`, or too much waits to be written; nothing was learnt then.
        """
        user = self._context(decision.query.user)
        learnt = {
            context: self._selector.observe(self.state(context), decision, truth)
            for context in (user, EVERYBODY)
        }
        name = self._selector.application.name
        for context, state in learnt.items():
            self._store.save(name, context, self._selector.stored(state))
        for context, state in learnt.items():
            self._kept(context, state)

    def relink(self, selector: Selector) -> None:
        """Go on with the changed application; what was learnt of models that stay is kept."""
        self._selector = selector
        self._states.clear()
        self._bound()

    def _bound(self) -> None:
        """Users are whoever a request names: their states are bounded in the store, as they are in memory."""
        application = self._selector.application
        if application.contexts == "user":
            self._store.keep_most(application.name, application.most_users)

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
