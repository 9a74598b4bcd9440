"""JSON of decisions and of feedback, for gateways that learn from one another's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from serving.selection.model_output import Label, ModelOutput, Number, Scores, TrueLabel
from serving.selection.policy import Choice, Decision, Query


class Feedback(NamedTuple):
    """A true label for a decision; a decision gets one at most, so its query's id names both."""

    decision: Decision
    truth: TrueLabel

    @property
    def key(self) -> int:
        """The query's id."""
        return self.decision.query.id


class LogText(NamedTuple):
    """What one place of the log says: feedback, new models, or that an application was deleted."""

    feedback: Feedback | None = None
    initial: str | None = None
    """State from which a user starts who is new to the gateway that was told."""
    models: tuple[str, ...] | None = None
    """Models that are linked from this place on."""


def write_decision(decision: Decision) -> str:
    """Return a decision as JSON."""
    return json.dumps(_as_json(decision), separators=(",", ":"))


def read_decision(text: str) -> Decision:
    """Return the decision that `write_decision` wrote; raises ValueError for another text."""
    try:
        return _from_json(json.loads(text))
    except (KeyError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"not a decision: {error!r}") from error


def write_log(said: LogText) -> str:
    """Return what a place of the log says as JSON."""
    if said.feedback is None:
        return "{}" if said.models is None else json.dumps({"models": said.models})
    data = {"decision": _as_json(said.feedback.decision), "truth": said.feedback.truth}
    if said.initial is not None:
        data["initial"] = said.initial
    return json.dumps(data, separators=(",", ":"))


def read_log(text: str) -> LogText:
    """Return what `write_log` wrote; raises ValueError for another text."""
    try:
        data = json.loads(text)
        if "decision" not in data:
            return LogText(models=tuple(data["models"]) if data else None)
        feedback = Feedback(_from_json(data["decision"]), data["truth"])
        return LogText(feedback, data.get("initial"))
    except (AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"no feedback: {error!r}") from error


def _as_json(decision: Decision) -> dict[str, Any]:
    query, choice = decision.query, decision.choice
    return {
        "query": [query.id, query.user, query.input_hash],
        "models": choice.models,
        "probabilities": dict(choice.probabilities),
        "answers": {
            model: [type(answer).__name__, *answer] for model, answer in decision.answers.items()
        },
        "output": decision.output,
        "is_default": decision.is_default,
    }


def _from_json(data: Mapping[str, Any]) -> Decision:
    id_, user, input_hash = data["query"]
    return Decision(
        query=Query(id=id_, user=user, input_hash=input_hash),
        choice=Choice(models=tuple(data["models"]), probabilities=data["probabilities"]),
        answers={model: _answer(*parts) for model, parts in data["answers"].items()},
        output=data["output"],
        is_default=data["is_default"],
    )


def _answer(kind: str, *parts: Any) -> ModelOutput:
    if kind == "Scores":
        labels, probabilities = parts
        return Scores(tuple(labels), tuple(probabilities))
    if kind == "Number":
        return Number(*parts)
    if kind == "Label":
        return Label(*parts)
    raise KeyError(kind)
