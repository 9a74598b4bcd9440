"""An application's decisions, of which feedback may come to any gateway."""

from __future__ import annotations

from typing import Protocol

from serving.selection.decisions import DecisionLog
from serving.selection.policy import Decision


class DecisionExchange(Protocol):
    """What the decisions need of `FeedbackExchange`."""

    def keep_decision(self, name: str, decision: Decision) -> None:
        """Have a decision written."""
        ...

    def find_decision(self, name: str, key: int) -> Decision | None:
        """Return any gateway's decision, or raise NotReady."""
        ...

    def find_by_input(self, name: str, user: str, input_hash: str) -> Decision | None:
        """Return any gateway's newest decision for an input, or raise NotReady."""
        ...


class SharedDecisions(DecisionLog):
    """A log of this gateway's decisions, with those of others behind it."""

    def __init__(self, name: str, exchange: DecisionExchange) -> None:
        super().__init__()
        self._name = name
        self._exchange = exchange

    def put(self, decision: Decision) -> None:
        """Add a decision here, and for all gateways."""
        super().put(decision)
        self._exchange.keep_decision(self._name, decision)

    def find(self, query_id: int) -> Decision | None:
        """Return a query's decision, whoever made it, or None, counted as unmatched.

        Raises:
            NotReady: it was not made here, and the store is unavailable.
        """
        decision = super().find(query_id)
        return decision or self._matched(self._exchange.find_decision(self._name, query_id))

    def find_by_input(self, user: str, hashed: str) -> Decision | None:
        """Return the newest decision for an input, this gateway's first, as `find`."""
        decision = super().find_by_input(user, hashed)
        return decision or self._matched(self._exchange.find_by_input(self._name, user, hashed))

    def _matched(self, decision: Decision | None) -> Decision | None:
        self.unmatched -= decision is not None
        return decision
