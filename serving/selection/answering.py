"""One query, from the choice of models to its answer; driven by a hub that asks the models.

    selector.begin(query, state, draw, now_s) -> Pending
      pending.models        whom to ask
      pending.deadline_s    when to stop waiting
      pending.arrived(model, answer) / pending.failed(model) -> True when nothing is awaited any more
      pending.finish() -> Finished     the result for the client, the decision for the log

A hub calls `finish` when `arrived` or `failed` says so, or at the deadline, whichever comes first;
then what has arrived is combined, and what has not lowers the confidence. It must not wait, nor
read a clock: times are arguments.
"""

from __future__ import annotations

import dataclasses
import json
from typing import NamedTuple

from serving.selection.application import Application
from serving.selection.policy import Choice, Combined, Decision, Query, State
from serving.selection.prediction import Answer, Truth

NO_MODELS = "No connected models found for query"
TOO_LATE = "Failed to retrieve a prediction response within the specified latency SLO"
"""These two are Clipper's words, which its clients look for."""
ALL_FAILED = "No model gave an answer"


NOBODY = Choice(models=(), probabilities={})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What the client gets."""

    query_id: int
    output: str | float
    """A label or a number; the application's default where `is_default`."""
    is_default: bool
    explanation: str | None
    """Why the default was given."""
    confidence: float
    is_suspicious: bool
    """The models disagree so much that the input may be broken, or made to deceive."""
    used: tuple[str, ...]
    """Models that stand behind the combined answer, given or not."""
    missing: tuple[str, ...]
    """Models that were asked and did not answer in time."""


class Finished(NamedTuple):
    """Both ends of a query."""

    result: Result
    decision: Decision


class Selector:
    """An application's policy, ready to be asked."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.policy = application.selection_policy()

    def initial(self) -> State:
        """The state that has learnt nothing."""
        state: State = self.policy.initial(self.application.models)
        return state

    def newcomer(self, shared: State) -> State:
        """Where a user begins of whom nothing is known."""
        state: State = self.policy.newcomer(shared)
        return state

    def stored(self, state: State) -> str:
        """A state as text, which names its policy."""
        return json.dumps(
            {"policy": self.application.policy, "state": state.as_json()}, separators=(",", ":")
        )

    def restored(self, text: str) -> State | None:
        """The state of a text, for the models that are linked now.

        None where it is another policy's: what that one learnt has no meaning here.

        Raises:
            ValueError: it is not the text of a state.
        """
        try:
            data = json.loads(text)
            if data["policy"] != self.application.policy:
                return None
            state: State = self.policy.restored(data["state"])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            raise ValueError(f"not the text of a state: {error!r}") from error
        if state.models != self.application.models:
            state = self.policy.relinked(state, self.application.models)
        return state

    def begin(self, query: Query, state: State, *, draw: float, now_s: float) -> Pending:
        """Choose whom to ask; `draw` is in [0, 1)."""
        choice = self.policy.select(state, query, draw) if state.models else NOBODY
        return Pending(self, query, state, choice, now_s + self.application.latency_slo_s)

    def observe(self, state: State, decision: Decision, truth: Truth) -> State:
        """The state after feedback."""
        observed: State = self.policy.observe(state, decision, truth)
        return observed


class Pending:
    """A query under way."""

    __slots__ = (
        "_answers",
        "_awaited",
        "_finished",
        "_selector",
        "_state",
        "choice",
        "deadline_s",
        "query",
    )

    def __init__(
        self, selector: Selector, query: Query, state: State, choice: Choice, deadline_s: float
    ) -> None:
        self.query = query
        self.choice = choice
        self.deadline_s = deadline_s
        self._selector = selector
        self._state = state
        self._answers: dict[str, Answer] = {}
        self._awaited = set(choice.models)
        self._finished: Finished | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Whom to ask; none where no model is linked: then `finish` at once."""
        return self.choice.models

    @property
    def is_complete(self) -> bool:
        """Nothing is awaited any more."""
        return not self._awaited

    def arrived(self, model: str, answer: Answer) -> bool:
        """A model has answered; True when nothing is awaited any more.

        An answer after `finish`, or a second one, changes nothing.
        """
        if self._finished is None and model in self._awaited:
            self._answers[model] = answer
        return self.failed(model)

    def failed(self, model: str) -> bool:
        """A model will not answer; True when nothing is awaited any more."""
        self._awaited.discard(model)
        return not self._awaited

    def finish(self) -> Finished:
        """Combine what has arrived; a second call returns the same."""
        if self._finished is None:
            self._finished = self._combined()
        return self._finished

    def _combined(self) -> Finished:
        application = self._selector.application
        found = self._selector.policy.combine(self._state, self.choice, self._answers)
        explanation = self._why_default(application, found)
        is_default = explanation is not None
        result = Result(
            query_id=self.query.id,
            output=application.default_output
            if is_default or found.output is None
            else found.output,
            is_default=is_default,
            explanation=explanation,
            confidence=found.confidence,
            is_suspicious=found.agreement < application.suspicious_threshold,
            used=found.used,
            missing=found.missing,
        )
        decision = Decision(
            query=self.query,
            choice=self.choice,
            answers=self._answers,
            output=found.output,
            is_default=is_default,
        )
        return Finished(result, decision)

    def _why_default(self, application: Application, found: Combined) -> str | None:
        if not self.choice.models:
            return NO_MODELS
        if found.output is None:
            return TOO_LATE if self._awaited else ALL_FAILED
        if found.confidence < application.confidence_threshold:
            return (
                f"The confidence {found.confidence:.3g} is below the application's threshold "
                f"{application.confidence_threshold:g}"
            )
        return None
