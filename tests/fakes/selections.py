"""Synthetic models for selection policies: arms of known error, and a run over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serving.selection.model_output import Label, ModelOutput, TrueLabel
from serving.selection.policy import Choice, Decision, Policy, Query

RIGHT = "right"


def decided(
    policy: Policy[Any],
    state: Any,
    said: Mapping[str, ModelOutput],
    *,
    draw: float = 0.0,
    query: Query | None = None,
) -> Decision:
    """One query, of which the models in `said` have answered what they say there."""
    query = query or Query(id=1)
    choice = policy.select(state, query, draw)
    answers = {model: said[model] for model in choice.models if model in said}
    output = policy.combine(state, choice, answers).output
    return Decision(query=query, choice=choice, answers=answers, output=output)


def choice_of(models: Sequence[str]) -> Choice:
    """All of them."""
    return Choice(models=tuple(models), probabilities=dict.fromkeys(models, 1.0))


def play(
    policy: Policy[Any],
    errors: Callable[[int], Mapping[str, float]],
    rounds: int,
    *,
    seed: int,
    state: Any = None,
) -> tuple[Any, list[bool], list[dict[str, bool]]]:
    """Rounds with feedback; `errors` says how often each model errs in a round.

    Wrong answers of different models differ from one another in one of four ways.

    Returns:
        The last state; per round whether the policy was wrong; per round which models were.
    """
    rng = random.Random(seed)
    state = policy.initial(tuple(errors(0))) if state is None else state
    wrong, models_wrong = [], []
    truth: TrueLabel = RIGHT
    for number in range(rounds):
        missed = {model: rng.random() < error for model, error in errors(number).items()}
        said: dict[str, ModelOutput] = {
            model: Label(f"wrong {rng.randrange(4)}" if is_wrong else RIGHT)
            for model, is_wrong in missed.items()
        }
        decision = decided(policy, state, said, draw=rng.random(), query=Query(id=number))
        wrong.append(decision.output != truth)
        models_wrong.append(missed)
        state = policy.observe(state, decision, truth)
    return state, wrong, models_wrong
