"""The bounded log of decisions, which feedback joins.

In: decisions as they are made. Out: the decision that a feedback speaks of, by the query's id or
by user and input, once. Beyond its bounds, in entries and in bytes, the oldest leaves; what leaves
is counted, because its feedback will teach nothing. No clock, no locks: it belongs to one thread.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

from serving.selection.policy import Decision, require
from serving.selection.prediction import Scores
from serving.values import Buffer

_ENTRY_BYTES = 1200
"""What an entry costs beside its names and scores: objects and table slots, CPython 3.11."""
_SCORE_BYTES = 32
"""A float object and its place in a tuple."""


def input_hash(pieces: Iterable[Buffer]) -> str:
    """Hash of an input's bytes, given in pieces; 16 bytes, in hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


class DecisionLog:
    """Decisions that no feedback has joined yet, the oldest first."""

    def __init__(self, *, capacity: int = 10_000, capacity_bytes: int = 64 * 2**20) -> None:
        require(capacity >= 1, "decisions.capacity", capacity, "a whole number above 0")
        require(capacity_bytes >= 1, "decisions.capacity_bytes", capacity_bytes, "a number above 0")
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._entries: OrderedDict[int, Decision] = OrderedDict()
        self._by_input: dict[tuple[str, str], OrderedDict[int, None]] = {}
        self.bytes = 0
        """Bytes in use, estimated."""
        self.dropped = 0
        """Decisions that left for want of room."""
        self.joined = 0
        """Decisions that feedback has found."""
        self.unmatched = 0
        """Feedbacks that found none: too late, joined before, or never decided here."""

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, decision: Decision) -> None:
        """Keep a decision, at the cost of the oldest ones; one of the same id is replaced.

        One that is larger than the whole log is dropped at once.
        """
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

    def join(self, query_id: int) -> Decision | None:
        """The decision of a query, which leaves the log: a feedback sent twice teaches once."""
        return self._counted(self._remove(query_id))

    def join_input(self, user: str, hashed: str) -> Decision | None:
        """The newest decision for a user and an input, which leaves the log.

        Where there is none it is one that nobody's name stands on: Clipper's clients name the user in
        feedback alone.
        """
        ids = self._by_input.get((user, hashed)) or self._by_input.get(("", hashed))
        return self._counted(self._remove(next(reversed(ids))) if ids else None)

    def give_back(self, decision: Decision) -> None:
        """Feedback has found it and could not be learnt from: it may come once more."""
        self.joined -= 1
        self.put(decision)

    def clear(self) -> None:
        """Forget all decisions; the counters stay."""
        self._entries.clear()
        self._by_input.clear()
        self.bytes = 0

    def _counted(self, decision: Decision | None) -> Decision | None:
        if decision is None:
            self.unmatched += 1
        else:
            self.joined += 1
        return decision

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
    """About what a decision occupies. Names of models and labels are shared by all decisions."""
    scores = sum(
        len(answer.probabilities) if isinstance(answer, Scores) else 4
        for answer in decision.answers.values()
    )
    names = len(decision.query.user) + len(decision.query.input_hash)
    models = len(decision.choice.probabilities)
    return _ENTRY_BYTES + names + 200 * models + _SCORE_BYTES * scores
