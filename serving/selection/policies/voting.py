"""Weighted votes of several models over classes, or over numbers that agree.

For classes, the label with the most weight wins; for numbers, the weighted mean of the group with
the most weight within the tolerance of one of its members. The order of models does not matter, and
a missing output never raises the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from serving.selection.model_output import ModelOutput, Number, Scores, Task, top_class
from serving.selection.policy import Choice, Combined

By = Literal["majority", "scores"]
"""Whether a model's weight goes to its label (`majority`) or is spread by probability."""


class Vote(NamedTuple):
    """The outcome of a vote."""

    output: str | float | None
    mass: float
    supporters: tuple[str, ...]


def vote(
    task: Task,
    responses: Mapping[str, ModelOutput],
    weights: Mapping[str, float],
    by: By = "majority",
) -> Vote:
    """Vote on one output by non-negative weights."""
    if not responses:
        return Vote(None, 0.0, ())
    if task.kind == "number":
        return _numbers(task, responses, weights)
    return _classes(responses, weights, by)


def combine(
    task: Task,
    choice: Choice,
    responses: Mapping[str, ModelOutput],
    *,
    weights: Mapping[str, float],
    standings: Mapping[str, float],
    by: By,
) -> Combined:
    """Combine outputs; `weights` give the confidence, `standings` (accuracies) the agreement.

    A model that was queried alone votes by scores.
    """
    there = {model: responses[model] for model in choice.models if model in responses}
    missing = tuple(model for model in choice.models if model not in there)
    alone = len(choice.models) == 1
    weights = _usable(choice.models, weights)
    found = vote(task, there, weights, "scores" if alone else by)
    total = math.fsum(weights[model] for model in choice.models)
    return Combined(
        output=found.output,
        confidence=_share(found.mass, total),
        agreement=_agreement(found, there, _usable(there, standings)),
        used=found.supporters,
        missing=missing,
    )


def _agreement(
    found: Vote, responses: Mapping[str, ModelOutput], standings: Mapping[str, float]
) -> float:
    if len(responses) < 2:
        return 1.0
    support = []
    for model, answer in responses.items():
        if isinstance(answer, Scores):
            spread = dict(zip(answer.labels, answer.probabilities, strict=True))
            support.append(standings[model] * spread.get(str(found.output), 0.0))
        else:
            support.append(standings[model] * (model in found.supporters))
    return _share(math.fsum(support), math.fsum(standings.values()))


def _usable(models: Iterable[str], weights: Mapping[str, float]) -> dict[str, float]:
    own = {model: weights[model] for model in models}
    return own if any(weight > 0 for weight in own.values()) else dict.fromkeys(own, 1.0)


def _share(part: float, total: float) -> float:
    return min(1.0, part / total) if total > 0 else 0.0


def _classes(responses: Mapping[str, ModelOutput], weights: Mapping[str, float], by: By) -> Vote:
    votes: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for model, answer in responses.items():
        assert not isinstance(answer, Number)
        labels[model] = top_class(answer)
        weight = weights[model]
        if by == "scores" and isinstance(answer, Scores):
            for label, probability in zip(answer.labels, answer.probabilities, strict=True):
                votes.setdefault(label, []).append(weight * probability)
        else:
            votes.setdefault(labels[model], []).append(weight)
    masses = {label: math.fsum(parts) for label, parts in votes.items()}
    output = min(masses, key=lambda label: (-masses[label], label))
    supporters = tuple(model for model in responses if labels[model] == output)
    return Vote(output, masses[output], supporters)


def _numbers(
    task: Task, responses: Mapping[str, ModelOutput], weights: Mapping[str, float]
) -> Vote:
    values: dict[str, float] = {}
    for model, answer in responses.items():
        assert isinstance(answer, Number)
        values[model] = answer.value
    best, centre = Vote(None, -1.0, ()), 0.0
    for middle in sorted(set(values.values())):
        group = tuple(m for m, value in values.items() if abs(value - middle) <= task.agreeing)
        mass = math.fsum(weights[model] for model in group)
        if mass > best.mass:
            best, centre = Vote(middle, mass, group), middle
    if best.mass > 0:
        away = math.fsum(
            weights[model] / best.mass * (values[model] - centre) for model in best.supporters
        )
        low = min(values[model] for model in best.supporters)
        high = max(values[model] for model in best.supporters)
        # The sum of the largest numbers overflows, and rounded shares may not sum to exactly 1.
        best = best._replace(output=min(max(centre + away, low), high))
    return best
