"""A policy's state on one of several gateways that replay one log of feedback.

All gateways replay the log in its order, so all have the same state at the same place. What this one
was told counts at once: on top of the replayed state, until it comes back from the log. Source:
docs/decisions/0028-gateways-replay-one-log-of-feedback.md.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Generic, NamedTuple

from serving.selection.model_output import TrueLabel
from serving.selection.policy import Decision, Policy, S


class Feedback(NamedTuple):
    """A true label for a decision, as one gateway was told."""

    gateway: int
    number: int
    """Number of this feedback among those of the gateway, from 1."""
    decision: Decision
    truth: TrueLabel


class ReplayedState(Generic[S]):
    """State of one user, or of everybody."""

    def __init__(self, policy: Policy[Any], state: S, *, gateway: int, place: int = 0) -> None:
        """Begin with the state at a place of the log; 0 is before its first feedback."""
        self._policy = policy
        self._gateway = gateway
        self._replayed = state
        self._own: OrderedDict[int, Feedback] = OrderedDict()
        self.place = place
        self.live = state
        """What decides: the replayed state, and this gateway's feedback that the log lacks."""

    def tell(self, feedback: Feedback) -> None:
        """Learn from feedback that this gateway was told, and that is to be written to the log."""
        self._own[feedback.number] = feedback
        self.live = self._policy.observe(self.live, feedback.decision, feedback.truth)

    def replay(self, place: int, feedback: Feedback) -> None:
        """Learn from the log's feedback at a place; those at earlier places are known."""
        if place <= self.place:
            return
        self.place = place
        self._replayed = self._policy.observe(self._replayed, feedback.decision, feedback.truth)
        is_own = feedback.gateway == self._gateway
        if is_own and next(iter(self._own), 0) == feedback.number:
            del self._own[feedback.number]  # the live state has it, in the same order
        else:
            if is_own:
                self._own.pop(feedback.number, None)
            self.live = self._with_own()

    def _with_own(self) -> S:
        state = self._replayed
        for feedback in self._own.values():
            state = self._policy.observe(state, feedback.decision, feedback.truth)
        return state
