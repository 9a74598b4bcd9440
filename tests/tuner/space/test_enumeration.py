"""All assignments that meet the constraints, and which constraint is to blame."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.space.enumeration import assignments, culprits
from tuner.space.expression import NUMBER, Expression
from tuner.space.knobs import ChoiceKnob, IntKnob

A = IntKnob(name="a", low=1, high=3, default=1)
B = IntKnob(name="b", low=1, high=3, default=2)
C = ChoiceKnob(name="c", choices=("x", "y"), default="y")
KINDS = {"a": NUMBER, "b": NUMBER, "c": ("x", "y"), "cores": NUMBER}


def expressions(*texts):
    """Texts as expressions over the knobs of this file."""
    return [Expression(text, KINDS) for text in texts]


def test_every_combination_comes_once_in_order_of_the_grids():
    """Without constraints the assignments are the product of the grids, the first knob slowest."""
    found = list(assignments([A, C], {}, [], {}))

    assert [{"a": a, "c": c} for a, c in itertools.product((1, 2, 3), ("x", "y"))] == found


def test_an_inactive_knob_appears_with_its_default_only():
    """Where its condition is false a knob does not multiply the assignments."""
    conditions = {"b": Expression("a > 1", KINDS)}

    found = [(values["a"], values["b"]) for values in assignments([B, A], conditions, [], {})]

    assert found == [(1, 2), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]


def test_a_fixed_knob_keeps_its_value():
    """A fixed value need not be on the grid."""
    found = list(assignments([A, B], {}, expressions("a <= b - 1"), {}, fixed={"a": 2}))

    assert found == [{"a": 2, "b": 3}]


@settings(deadline=None)
@given(
    bound=st.integers(0, 8),
    texts=st.lists(
        st.sampled_from(
            ["a < b", "a + b <= cores", "c == 'x' or a == 1", "cores > 2", "a * b != 4"]
        ),
        max_size=4,
    ),
)
def test_pruning_gives_what_filtering_gives(bound, texts):
    """Constraints tried early leave the same assignments as constraints tried at the end."""
    constraints = expressions(*texts)
    every = list(assignments([A, B, C], {}, [], {"cores": bound}))

    found = list(assignments([A, B, C], {}, constraints, {"cores": bound}))

    assert [v for v in every if all(c.holds({**v, "cores": bound}) for c in constraints)] == found
    assert (not found) == bool(culprits([A, B, C], {}, constraints, {"cores": bound}))


def test_one_impossible_constraint_is_blamed_alone():
    """The constraint that nothing meets is named, not those beside it."""
    constraints = expressions("a >= 1", "a + b > 6", "b > 2")

    assert (constraints[1],) == culprits([A, B, C], {}, constraints, {})


def test_constraints_that_contradict_each_other_are_blamed_together():
    """Only those that are needed for the contradiction are named."""
    constraints = expressions("c == 'x'", "a > b", "b > 1", "a < 3")

    assert tuple(constraints[1:]) == culprits([A, B, C], {}, constraints, {})


def test_a_condition_is_part_of_the_contradiction():
    """A knob that is inactive wherever a constraint needs another value makes it impossible."""
    conditions = {"b": Expression("a > 2", KINDS)}
    constraints = expressions("a < 3", "b == 3")

    assert tuple(constraints) == culprits([A, B], conditions, constraints, {})
