"""Bounded log of decisions; feedback matches each once, by query id or by user and input."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from serving.selection.model_output import Scores
from serving.selection.policy import Decision

_ENTRY_BYTES = 1200
"""Bytes of an entry in CPython 3.11, without names and scores."""
_SCORE_BYTES = 32


def input_hash(data: bytes) -> str:
    """Return the hash of an input: 16 bytes in hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class DecisionLog:
    """Decisions awaiting feedback, oldest first."""

    def __init__(self, *, capacity: int = 10_000, capacity_bytes: int = 64 * 2**20) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[int, Decision] = OrderedDict()
        self._by_input: dict[tuple[str, str], OrderedDict[int, None]] = {}
        self.bytes = 0
        self.dropped = 0
        self.joined = 0
        self.unmatched = 0
        """Number of times that feedback was late, repeated or unknown and matched no decision."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, decision: Decision) -> None:
        """Add or replace a decision, dropping the oldest ones as needed."""
        self._remove(decision.query.id)
        cost = size_bytes(decision)
        if cost > self._capacity_bytes:
            self.dropped += 1
            return
        while len(self) >= self._capacity or self.bytes + cost > self._capacity_bytes:
            self._remove(next(iter(self._entries)))
            self.dropped += 1
        query = decision.query
        self._entries[query.id] = decision
        self._by_input.setdefault((query.user, query.input_hash), OrderedDict())[query.id] = None
        self.bytes += cost

    def find(self, query_id: int) -> Decision | None:
        """Return a query's decision, or None, counted as unmatched."""
        decision = self._entries.get(query_id)
        self.unmatched += decision is None
        return decision

    def find_by_input(self, user: str, hashed: str) -> Decision | None:
        """Return a user's newest decision for an input, or else that without a user, as `find`.

        Clipper's clients name the user only in feedback.
        """
        ids = self._by_input.get((user, hashed)) or self._by_input.get(("", hashed))
        if ids:
            return self._entries[next(reversed(ids))]
        self.unmatched += 1
        return None

    def join(self, decision: Decision) -> None:
        """Remove a decision whose feedback was applied."""
        self._remove(decision.query.id)
        self.joined += 1

    def discard(self, query_id: int) -> None:
        """Remove a decision, if it is there, whose feedback another gateway got."""
        self._remove(query_id)

    def _remove(self, query_id: int) -> Decision | None:
        decision = self._entries.pop(query_id, None)
        if decision is None:
            return None
        key = (decision.query.user, decision.query.input_hash)
        ids = self._by_input[key]
        del ids[query_id]
        if not ids:
            del self._by_input[key]
        self.bytes -= size_bytes(decision)
        return decision


def size_bytes(decision: Decision) -> int:
    """Estimate the memory that a decision takes."""
    scores = sum(
        len(answer.probabilities) if isinstance(answer, Scores) else 4
        for answer in decision.answers.values()
    )
    names = len(decision.query.user) + len(decision.query.input_hash)
    models = len(decision.choice.probabilities)
    return _ENTRY_BYTES + names + 200 * models + _SCORE_BYTES * scores
