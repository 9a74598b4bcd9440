"""Policies that do not learn: fixed, and split for an A/B comparison."""

from __future__ import annotations

import pytest

from serving.selection import registry
from serving.selection.policy import Query
from tests.fakes.selections import play


def test_the_first_linked_model_answers_unless_another_is_named() -> None:
    """`fixed` needs no option; a named model that is not linked leaves the first one."""
    for options, linked, asked in (
        ({}, ("a", "b"), "a"),
        ({"model": "b"}, ("a", "b"), "b"),
        ({"model": "b"}, ("a",), "a"),
    ):
        policy = registry.create("fixed", options=options)
        state = policy.initial(linked)
        assert policy.select(state, Query(id=1), 0.99).models == (asked,)


def test_a_user_always_meets_the_same_model() -> None:
    """The draw does not matter for a user; another salt deals users anew."""
    policy = registry.create("split", options={"shares": {"a": 1, "b": 1}})
    other = registry.create("split", options={"shares": {"a": 1, "b": 1}, "salt": "2"})
    state = policy.initial(("a", "b"))
    moved = 0
    for number in range(400):
        query = Query(id=number, user=f"user {number}")
        met = {policy.select(state, query, draw).models for draw in (0.0, 0.3, 0.7, 0.99)}
        assert len(met) == 1
        moved += met != {other.select(state, query, 0.0).models}
    assert 150 < moved < 250  # half of 400, sd 10: chance 6e-7


def test_users_are_split_by_the_shares() -> None:
    """One in four where the shares are 1 and 3; a model without a share is not asked."""
    policy = registry.create("split", options={"shares": {"a": 1, "b": 3}})
    state = policy.initial(("a", "b", "c"))
    assert policy.weights(state) == {"a": 0.25, "b": 0.75, "c": 0.0}
    asked = [policy.select(state, Query(id=n, user=str(n)), 0.0).models[0] for n in range(2000)]
    assert asked.count("a") == pytest.approx(500, abs=100)  # sd 19: chance below 1e-6
    assert asked.count("c") == 0


def test_the_state_of_a_split_is_the_result_of_the_comparison() -> None:
    """Queries and losses of each side are counted."""
    policy = registry.create("split", options={"by": "query"})
    state, _, _ = play(policy, lambda _: {"a": 0.1, "b": 0.3}, 1000, seed=1)
    assert sum(state.counts) == 1000
    means = state.means(0.0, 1e-9)
    assert means[0] < means[1]
