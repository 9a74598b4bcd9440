"""Weighted votes over classes and over numbers that agree."""

from __future__ import annotations

import pytest

from serving.selection.model_output import Label, ModelOutput, Number, Scores, Task
from serving.selection.policies.voting import Vote, combine, vote
from tests.fakes.selections import choice_of

NUMBER = Task(kind="number", scale=10.0, tolerance=1.0)
THREE = ("a", "b", "c")


def test_the_heaviest_label_wins() -> None:
    """Weight counts, not heads."""
    said: dict[str, ModelOutput] = {"a": Label("x"), "b": Label("y"), "c": Label("y")}
    assert vote(Task(), said, {"a": 0.6, "b": 0.2, "c": 0.2}) == Vote("x", 0.6, ("a",))


def test_a_tie_goes_to_the_first_label_by_name() -> None:
    """Not to whoever answered first."""
    said: dict[str, ModelOutput] = {"a": Label("y"), "b": Label("x")}
    assert vote(Task(), said, {"a": 1.0, "b": 1.0}).output == "x"


def test_by_scores_doubt_counts() -> None:
    """Two that lean to x slightly are outvoted by one that is sure of y."""
    lean, sure = Scores(("x", "y"), (0.55, 0.45)), Scores(("x", "y"), (0.05, 0.95))
    said: dict[str, ModelOutput] = {"a": lean, "b": lean, "c": sure}
    weights = dict.fromkeys(THREE, 1.0)
    assert vote(Task(), said, weights, "majority").output == "x"
    assert vote(Task(), said, weights, "scores").output == "y"


def test_one_broken_number_does_not_move_the_others() -> None:
    """The mean is of the group that agrees."""
    said: dict[str, ModelOutput] = {"a": Number(1.0), "b": Number(2.0), "c": Number(1e9)}
    found = vote(NUMBER, said, dict.fromkeys(THREE, 1.0))
    assert found.output == pytest.approx(1.5)
    assert found.supporters == ("a", "b")


def test_huge_numbers_do_not_overflow() -> None:
    """The ends of the range of a float are numbers too."""
    said: dict[str, ModelOutput] = dict.fromkeys(THREE, Number(1.7e308))
    assert vote(NUMBER, said, dict.fromkeys(THREE, 1.0)).output == 1.7e308


def test_what_is_missing_counts_in_the_confidence_only() -> None:
    """Two of three agree on all they know: confidence 2/3, agreement 1."""
    equal = dict.fromkeys(THREE, 1.0)
    said: dict[str, ModelOutput] = {"a": Label("x"), "c": Label("x")}
    found = combine(Task(), choice_of(THREE), said, weights=equal, standings=equal, by="majority")
    assert found.confidence == pytest.approx(2 / 3)
    assert found.agreement == 1.0
    assert found.missing == ("b",)


def test_a_model_that_has_won_all_weight_does_not_agree_for_the_others() -> None:
    """Confidence follows the weights; agreement hears that the others contradict."""
    said: dict[str, ModelOutput] = {"a": Label("x"), "b": Label("y"), "c": Label("z")}
    weights = {"a": 1.0, "b": 1e-6, "c": 1e-6}
    standings = {"a": 0.9, "b": 0.8, "c": 0.8}
    found = combine(
        Task(), choice_of(THREE), said, weights=weights, standings=standings, by="majority"
    )
    assert found.output == "x"
    assert found.confidence > 0.99
    assert found.agreement == pytest.approx(0.9 / 2.5)


def test_without_any_weight_all_count_alike() -> None:
    """Zero weights, as of models linked a moment ago, are equal weights."""
    nothing = dict.fromkeys(THREE, 0.0)
    said: dict[str, ModelOutput] = {"a": Label("y"), "b": Label("x"), "c": Label("x")}
    found = combine(
        Task(), choice_of(THREE), said, weights=nothing, standings=nothing, by="majority"
    )
    assert (found.output, found.confidence) == ("x", pytest.approx(2 / 3))
