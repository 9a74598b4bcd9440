"""What gateways share of selection: ids, decisions, the log of feedback, and states of its places.

    ids        blocks that no two gateways get
    decisions  the newest of each application, so that any gateway can be told the true label
    log        feedback in one order, each decision's once; places are numbered from 1
    states     by application and user, each with the place of the log up to which it has learnt

Places up to `base` are learnt by the states in the store; the log keeps some of them for gateways that
are behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

KEPT_PLACES = 20_000
"""Places of the log that stay after all states have learnt from them."""
KEPT_KEYS = 10 * KEPT_PLACES
"""Keys of the log that are remembered, so that none is taken twice."""
KEPT_DECISIONS = 100_000
"""Decisions that stay for each application; the oldest are dropped."""
KEPT_BYTES = 256 * 2**20
"""Bytes of decisions' texts that stay for each application; the oldest are dropped."""

StateKey = tuple[str, str]
"""Application and user; an empty user means the shared state."""


class PlacedState(NamedTuple):
    """A serialized state, and the place of the log up to which it has learnt."""

    place: int
    text: str


class Told(NamedTuple):
    """What is to be written to the log."""

    key: int
    """Unique number; for feedback the query's id."""
    application: str
    text: str


class Place(NamedTuple):
    """One place of the log."""

    number: int
    told: Told


class Page(NamedTuple):
    """A part of the log."""

    base: int
    """Place up to which the store's states have learnt."""
    trimmed: int
    """Place up to which the log is gone; at most `base`."""
    last: int
    """The log's last place."""
    places: Sequence[Place]


class KeptDecision(NamedTuple):
    """A decision that waits for feedback."""

    key: int
    application: str
    user: str
    input_hash: str
    text: str


class SharedStore(Protocol):
    """What gateways share; methods block, may be called from any thread, and raise NotReady."""

    def reserve_ids(self, count: int, *, at_least: int) -> int:
        """Return the first of `count` ids that nobody else gets."""
        ...

    def append(self, told: Sequence[Told]) -> list[int]:
        """Write to the log, each key once, drop the decisions with these keys; return their places.

        After a failure, it can be called again with the same.
        """
        ...

    def read(self, after: int, most: int) -> Page:
        """Return at most so many places of the log behind one."""
        ...

    def load(self, keys: Sequence[StateKey]) -> dict[StateKey, PlacedState]:
        """Return the states that there are."""
        ...

    def save(
        self,
        states: Mapping[StateKey, PlacedState],
        *,
        base: int,
        deleted: Mapping[str, int],
        most_users: Mapping[str, int],
    ) -> None:
        """Replace states that have learnt less, and trim the log.

        Nothing is done if the log does not reach `base`: it has lost its end since it was replayed.

        Args:
            states: all that learnt from places up to `base` and are not in the store.
            base: the place up to which the writer has replayed the log.
            deleted: place at which an application was deleted; its older states and decisions go.
            most_users: maximum number of users of an application, beyond which those with the
                oldest feedback are dropped.
        """
        ...

    def keep_decisions(self, decisions: Sequence[KeptDecision]) -> None:
        """Add decisions whose keys the log has not taken, and drop the oldest beyond the bounds."""
        ...

    def find_decision(self, application: str, key: int) -> str | None:
        """Return a decision without feedback, at once: NotReady while the store is away."""
        ...

    def find_by_input(self, application: str, user: str, input_hash: str) -> str | None:
        """Return a user's newest decision for an input, or else that without a user, as above."""
        ...

    def load_now(self, key: StateKey) -> PlacedState | None:
        """Return a state, at once: NotReady while the store is away."""
        ...

    def close(self) -> None:
        """Close the store."""
        ...
