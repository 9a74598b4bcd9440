"""A policy's state on one of several gateways that replay one log of feedback.

All gateways replay the log in its order, so all have the same state at the same place. What this one
was told counts at once: on top of the replayed state, until it comes back from the log. Source:
docs/decisions/0028-gateways-replay-one-log-of-feedback.md.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Generic

from serving.selection.decision_json import Feedback
from serving.selection.policy import Policy, S


class ReplayedState(Generic[S]):
    """State of one user, or of everybody."""

    __slots__ = ("_live", "_own", "_policy", "is_new", "place", "replayed")

    def __init__(
        self, policy: Policy[Any], state: S, *, place: int = 0, is_new: bool = False
    ) -> None:
        """Begin with the state at a place of the log; 0 is before its first feedback.

        `is_new` says that no gateway is known to have a state of this user: the log's first
        feedback of the user then says from which state it starts.
        """
        self._policy = policy
        self._own: dict[int, Feedback] = {}
        self.is_new = is_new
        self.place = place
        self.replayed = state
        """The state at `place`."""
        self._live: S | None = state  # None: to be made

    @property
    def live(self) -> S:
        """What decides: the replayed state, and this gateway's feedback that the log lacks."""
        if self._live is None:  # made when it is needed: the log is replayed in long pieces
            self._live = self.replayed
            for feedback in self._own.values():
                self._live = self._policy.observe(self._live, feedback.decision, feedback.truth)
        return self._live

    @property
    def is_settled(self) -> bool:
        """Whether the log has all that this gateway was told."""
        return not self._own

    @property
    def own(self) -> Collection[Feedback]:
        """Feedback that this gateway was told and the log is not known to have."""
        return self._own.values()

    def tell(self, feedback: Feedback) -> None:
        """Learn from feedback that this gateway was told, and that is to be written to the log."""
        live = self.live
        self._own[feedback.key] = feedback
        self._live = self._policy.observe(live, feedback.decision, feedback.truth)

    def replay(self, place: int, feedback: Feedback, initial: S | None = None) -> None:
        """Learn from the log's feedback at a place; those at earlier places are known.

        Another gateway may have been told of the same decision first: then that is what counts.
        """
        if place <= self.place:
            self.settle(feedback.key)
            return
        self.place = place
        is_first = next(iter(self._own.values()), None) == feedback
        self._own.pop(feedback.key, None)
        if self.is_new and initial is not None and initial != self.replayed:
            is_first = False
            self.replayed = initial
        self.is_new = False
        self.replayed = self._policy.observe(self.replayed, feedback.decision, feedback.truth)
        if not is_first:  # else the live state has it, in the same order
            self._live = None

    def restart(self, place: int, state: S, *, is_new: bool = False) -> None:
        """Begin anew with a state, but for what this gateway was told and the log lacks."""
        if place > self.place:
            self.place, self.replayed, self.is_new = place, state, is_new
            self._live = None

    def settle(self, key: int) -> None:
        """Drop feedback that this gateway was told, since the replayed state has that of the log."""
        if self._own.pop(key, None) is not None:
            self._live = None

    def relink(self, place: int, policy: Policy[Any], state: S) -> None:
        """Go on with another policy, and what it makes of the replayed state at a place."""
        self.place, self._policy, self.replayed, self._live = place, policy, state, None
