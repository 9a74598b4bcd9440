"""The contract of a selection policy: laws that hold for every one, whatever it is told."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.selection import registry
from serving.selection.model_output import Label, ModelOutput, Number, Scores, Task, TrueLabel
from serving.selection.policy import Choice, Policy, Query, sample_index
from tests.fakes.selections import choice_of, decided, play

MODELS = ("a", "b", "c", "d")
LABELS = ("x", "y", "z")
CLASSES = Task()
NUMBERS = Task(kind="number", scale=10.0)
COSTS = {"a": 0.3, "b": 0.01}

draws = st.floats(0.0, 1.0, exclude_max=True)
numbers = st.one_of(st.floats(-1e3, 1e3), st.floats(allow_nan=False, allow_infinity=False)).map(
    Number
)
scores = (
    st.lists(st.floats(0.01, 1.0), min_size=3, max_size=3)
    .map(lambda parts: tuple(part / math.fsum(parts) for part in parts))
    .map(lambda parts: Scores(LABELS, parts))
)
classes: st.SearchStrategy[ModelOutput] = st.one_of(st.sampled_from(LABELS).map(Label), scores)


def rounds(task: Task) -> st.SearchStrategy[list[tuple[dict[str, ModelOutput], float, TrueLabel]]]:
    """Feedback for a policy: who says what (some say nothing), a draw, what was right."""
    answer: st.SearchStrategy[ModelOutput] = classes if task.kind == "classes" else numbers
    truth: st.SearchStrategy[Any] = (
        st.sampled_from(LABELS) if task.kind == "classes" else st.floats(-1e6, 1e6)
    )
    said = st.dictionaries(st.sampled_from(MODELS), answer)
    return st.lists(st.tuples(said, draws, truth), max_size=15)


def policies() -> list[Any]:
    """Each policy for classes, those that combine for numbers, and with costs who weighs them."""
    made = [pytest.param(registry.create(name), id=name) for name in registry.NAMES]
    for name in ("exp4", "per-user"):
        made += [
            pytest.param(registry.create(name, task=NUMBERS), id=f"{name}-numbers"),
            pytest.param(registry.create(name, costs=COSTS), id=f"{name}-costs"),
        ]
    return made + [
        pytest.param(registry.create(name, costs=COSTS), id=f"{name}-costs")
        for name in ("exp3", "epsilon-greedy", "thompson")
    ]


every_policy = pytest.mark.parametrize("policy", policies())
quick = settings(max_examples=20, deadline=None)


def taught(policy: Policy[Any], told: list[tuple[dict[str, ModelOutput], float, TrueLabel]]) -> Any:
    state = policy.initial(MODELS)
    for said, draw, truth in told:
        state = policy.observe(state, decided(policy, state, said, draw=draw), truth)
    return state


def task_of(policy: Any) -> Task:
    task: Task = policy.task
    return task


def numbers_of(value: Any) -> list[float]:
    """Every number in a piece of JSON."""
    if isinstance(value, Mapping):
        return [number for item in value.values() for number in numbers_of(item)]
    if isinstance(value, list | tuple):
        return [number for item in value for number in numbers_of(item)]
    return [value] if isinstance(value, int | float) else []


def weights_sum_to_one(policy: Policy[Any], state: Any) -> None:
    """Weights are a distribution over the linked models, and everything learnt is finite."""
    weights = policy.weights(state)
    assert tuple(weights) == MODELS
    assert all(weight >= 0 for weight in weights.values())
    assert math.fsum(weights.values()) == pytest.approx(1.0)
    assert all(math.isfinite(number) for number in numbers_of(dataclasses.asdict(state)))


def a_choice_is_of_linked_models_with_their_probability(
    policy: Policy[Any], state: Any, draw: float
) -> None:
    """Who is asked is linked, had a probability above 0, and equal calls choose alike."""
    choice = policy.select(state, Query(id=1, user="u"), draw)
    assert choice.models
    assert set(choice.models) <= set(MODELS)
    assert set(choice.probabilities) == set(MODELS)
    assert all(0 < choice.probabilities[model] <= 1 for model in choice.models)
    assert choice == policy.select(state, Query(id=2, user="u"), draw)


def how_often_a_model_is_asked_is_its_probability(policy: Policy[Any], state: Any) -> None:
    """Over evenly spaced draws each model is asked its probability's share of times."""
    choices = [policy.select(state, Query(id=1), (n + 0.5) / 200) for n in range(200)]
    for model in MODELS:
        share = sum(model in choice.models for choice in choices) / len(choices)
        assert share == pytest.approx(choices[0].probabilities[model], abs=0.01)


def a_state_survives_json(policy: Policy[Any], state: Any) -> None:
    """What is restored from the JSON text of a state is equal to it."""
    assert policy.parse_state(json.loads(json.dumps(dataclasses.asdict(state)))) == state


def a_newcomer_begins_with_the_same_models(policy: Policy[Any], state: Any) -> None:
    """A new user's state fits the models, and is one that the policy goes on with."""
    began = policy.initial_for_user(state)
    assert began.models == MODELS
    assert math.fsum(policy.weights(began).values()) == pytest.approx(1.0)
    assert policy.initial_for_user(policy.initial(MODELS)) == policy.initial(MODELS)


def relinking_keeps_what_was_learnt_of_those_that_stay(
    policy: Policy[Any], state: Any, models: list[str]
) -> None:
    """Other models, the same state machine: a distribution again; the same models: no change."""
    assert policy.relink(state, MODELS) == state
    other = policy.relink(state, models)
    assert other.models == tuple(models)
    assert math.fsum(policy.weights(other).values()) == pytest.approx(1.0)
    assert policy.parse_state(json.loads(json.dumps(dataclasses.asdict(other)))) == other
    emptied = policy.relink(state, ())
    assert emptied.models == ()
    assert policy.relink(emptied, MODELS).models == MODELS


def the_order_of_answers_does_not_matter(
    policy: Policy[Any], state: Any, said: dict[str, ModelOutput], order: list[str]
) -> None:
    """Combining the same answers in another order gives the same output and confidence."""
    choice = choice_of(MODELS)
    one = policy.combine(state, choice, said)
    turned = Choice(models=tuple(order), probabilities=choice.probabilities)
    other = policy.combine(state, turned, {model: said[model] for model in order})
    if isinstance(one.output, float):
        largest = max(abs(given.value) for given in said.values())  # type: ignore[union-attr]
        assert other.output == pytest.approx(one.output, abs=1e-9 * largest)  # a sum is rounded
    else:
        assert other.output == one.output
    assert (other.confidence, other.agreement) == (one.confidence, one.agreement)
    assert set(other.used) == set(one.used)


def a_missing_answer_never_raises_the_confidence(
    policy: Policy[Any], state: Any, said: dict[str, ModelOutput], left: set[str]
) -> None:
    """Confidence lies in [0, 1], and what did not arrive can only lower it."""
    choice = choice_of(MODELS)
    full = policy.combine(state, choice, said)
    part = policy.combine(state, choice, {model: said[model] for model in left})
    assert 0.0 <= part.confidence <= full.confidence <= 1.0
    assert 0.0 <= part.agreement <= 1.0
    assert 0.0 <= full.agreement <= 1.0
    assert set(part.missing) == set(MODELS) - left
    assert set(part.used) <= left
    assert (part.output is None) == (not left)
    if not left:
        assert part.confidence == 0.0


def feedback_for_a_model_that_was_unlinked_meanwhile_is_borne(
    policy: Policy[Any], told: list[tuple[dict[str, ModelOutput], float, TrueLabel]]
) -> None:
    """A decision with models of yesterday is combined and observed without an error."""
    state = policy.initial(MODELS)
    other = policy.relink(state, ("b", "new"))
    for said, draw, truth in told:
        decision = decided(policy, state, said, draw=draw)
        policy.combine(other, decision.choice, decision.answers)
        other = policy.observe(other, decision, truth)
    assert other.models == ("b", "new")
    assert math.fsum(policy.weights(other).values()) == pytest.approx(1.0)


@every_policy
@given(data=st.data())
@quick
def test_the_laws_of_a_policy_hold_after_any_feedback(
    policy: Policy[Any], data: st.DataObject
) -> None:
    """Each in a function above; they share the feedback, as drawing it costs most."""
    told = data.draw(rounds(task_of(policy)))
    feedback_for_a_model_that_was_unlinked_meanwhile_is_borne(policy, told)
    state = taught(policy, told)
    weights_sum_to_one(policy, state)
    a_choice_is_of_linked_models_with_their_probability(policy, state, data.draw(draws))
    how_often_a_model_is_asked_is_its_probability(policy, state)
    a_state_survives_json(policy, state)
    a_newcomer_begins_with_the_same_models(policy, state)
    models = data.draw(st.permutations([*MODELS, "new"]))[: data.draw(st.integers(1, 5))]
    relinking_keeps_what_was_learnt_of_those_that_stay(policy, state, models)
    answer = classes if task_of(policy).kind == "classes" else numbers
    said = data.draw(st.fixed_dictionaries(dict.fromkeys(MODELS, answer)))
    the_order_of_answers_does_not_matter(policy, state, said, data.draw(st.permutations(MODELS)))
    left = data.draw(st.sets(st.sampled_from(MODELS)))
    a_missing_answer_never_raises_the_confidence(policy, state, said, left)


ORDERLESS = [
    ("fixed", {}),
    ("split", {}),
    ("epsilon-greedy", {"memory": None}),
    ("thompson", {"memory": None}),
    ("exp3", {"sharing": 0.0}),
    ("exp4", {"sharing": 0.0, "memory": None}),
    ("per-user", {"memory": None}),
]


@pytest.mark.parametrize(("name", "options"), ORDERLESS)
@given(told=rounds(CLASSES), data=st.data())
@quick
def test_without_forgetting_the_order_of_feedback_does_not_matter(
    name: str,
    options: dict[str, Any],
    told: list[tuple[dict[str, ModelOutput], float, TrueLabel]],
    data: st.DataObject,
) -> None:
    """The same decisions, observed in any order, teach the same."""
    policy = registry.create(name, options=options)
    state = policy.initial(MODELS)
    seen = [(decided(policy, state, said, draw=draw), truth) for said, draw, truth in told]
    one = other = state
    for decision, truth in seen:
        one = policy.observe(one, decision, truth)
    for decision, truth in data.draw(st.permutations(seen)):
        other = policy.observe(other, decision, truth)
    assert numbers_of(dataclasses.asdict(other)) == pytest.approx(
        numbers_of(dataclasses.asdict(one)), abs=1e-7
    )


@pytest.mark.parametrize(
    "name", [name for name in registry.NAMES if name not in {"fixed", "split"}]
)
def test_a_learning_policy_prefers_the_model_that_is_right(name: str) -> None:
    """After 400 rounds the one good model of four weighs most."""
    errors = {"a": 0.6, "b": 0.05, "c": 0.6, "d": 0.6}
    state, _, _ = play(registry.create(name), lambda _: errors, 400, seed=3)
    weights = registry.create(name).weights(state)
    assert max(weights, key=weights.__getitem__) == "b"


@pytest.mark.parametrize(
    "name", [name for name in registry.NAMES if name not in {"fixed", "split"}]
)
def test_a_model_that_never_answers_loses_its_weight(name: str) -> None:
    """Silence counts as wrong: a dead model does not keep the confidence down for ever."""
    policy = registry.create(name)
    state = policy.initial(MODELS)
    said: dict[str, ModelOutput] = {model: Label("x") for model in "bcd"}
    for number in range(600):
        decision = decided(policy, state, said, draw=(number * 0.618) % 1)
        state = policy.observe(state, decision, "x")
    weights = policy.weights(state)
    assert weights["a"] == min(weights.values())
    assert weights["a"] < 0.05


@given(parts=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), draw=draws)
def test_a_draw_never_falls_on_probability_zero(parts: list[float], draw: float) -> None:
    """Rounding at the upper end does not choose what could not be chosen."""
    total = math.fsum(parts)
    if total > 0:
        assert parts[sample_index([part / total for part in parts], draw)] > 0
