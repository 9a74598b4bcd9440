"""A query, from the selection of models to the response."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, NamedTuple

from serving.selection.application import Application
from serving.selection.model_output import ModelOutput
from serving.selection.policy import Choice, Combined, Decision, PolicyState, Query

NO_MODELS = "No connected models found for query"
TOO_LATE = "Failed to retrieve a prediction response within the specified latency SLO"
"""Clipper's message, like the one above; its clients match them."""
ALL_FAILED = "No model gave an answer"


NOBODY = Choice(models=(), probabilities={})


class QueryResponse(NamedTuple):
    """The response to a query."""

    query_id: int
    output: memoryview | str | float | None
    """Label or number; for clients, a tensors frame borrowed for the call, or None if default."""
    is_default: bool = False
    explanation: str | None = None
    confidence: float | None = None
    """Confidence; for clients, None if only one model was queried."""
    is_suspicious: bool = False
    """Whether models disagree so much that the input may be broken or adversarial."""
    used: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class QueryOutcome(NamedTuple):
    """A query's response and decision."""

    result: QueryResponse
    decision: Decision


class Selector:
    """An application's policy, with serialization of its states."""

    def __init__(self, application: Application) -> None:
        self.application = application
        self.policy = application.selection_policy()

    def initial(self) -> PolicyState:
        """Return the initial state."""
        state: PolicyState = self.policy.initial(self.application.models)
        return state

    def initial_for_user(self, shared: PolicyState) -> PolicyState:
        """Return a new user's initial state."""
        state: PolicyState = self.policy.initial_for_user(shared)
        return state

    def dump_state(self, state: PolicyState) -> str:
        """Serialize a state together with the policy's name."""
        data = {"policy": self.application.policy, "state": state}
        return json.dumps(data, separators=(",", ":"), default=_fields)

    def parse_state(self, text: str) -> PolicyState | None:
        """Parse a state for the linked models; return None if it belongs to another policy.

        Raises:
            ValueError: `text` is not a serialized state.
        """
        try:
            data = json.loads(text)
            if data["policy"] != self.application.policy:
                return None
            state: PolicyState = self.policy.parse_state(data["state"])
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
            raise ValueError(f"not a serialized state: {error!r}") from error
        if state.models != self.application.models:
            state = self.policy.relink(state, self.application.models)
        return state

    def begin(self, query: Query, state: PolicyState, *, draw: float, now_s: float) -> QuerySession:
        """Select models; `draw` is in [0, 1)."""
        choice = self.policy.select(state, query, draw) if state.models else NOBODY
        return QuerySession(self, query, state, choice, now_s + self.application.latency_slo_s)


class QuerySession:
    """A query in progress."""

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
        self,
        selector: Selector,
        query: Query,
        state: PolicyState,
        choice: Choice,
        deadline_s: float,
    ) -> None:
        self.query = query
        self.choice = choice
        self.deadline_s = deadline_s
        self._selector = selector
        self._state = state
        self._answers: dict[str, ModelOutput] = {}
        self._awaited = set(choice.models)
        self._finished: QueryOutcome | None = None

    @property
    def models(self) -> tuple[str, ...]:
        """Models to query; if there are none, call `finish` at once."""
        return self.choice.models

    @property
    def is_complete(self) -> bool:
        """Whether all queried models have responded or failed."""
        return not self._awaited

    def record_output(self, model: str, response: ModelOutput) -> bool:
        """Record a model's output; return whether it was the last one."""
        if self._finished is None and model in self._awaited:
            self._answers[model] = response
        return self.record_failure(model)

    def record_failure(self, model: str) -> bool:
        """Record a model's failure; return whether all models have now responded or failed."""
        self._awaited.discard(model)
        return not self._awaited

    def finish(self) -> QueryOutcome:
        """Combine the outputs that have arrived; call this once."""
        if self._finished is None:
            self._finished = self._combine_outputs()
        return self._finished

    def _combine_outputs(self) -> QueryOutcome:
        application = self._selector.application
        found = self._selector.policy.combine(self._state, self.choice, self._answers)
        explanation = self._why_default(application, found)
        is_default = explanation is not None
        result = QueryResponse(
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
        return QueryOutcome(result, decision)

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


def _fields(state: Any) -> dict[str, Any]:
    """Return a state's fields; `dataclasses.asdict` would copy every number in them."""
    return {field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
