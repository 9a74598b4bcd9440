"""Knobs that are fixed: one value of theirs in every configuration, and one line for what cannot be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.errors import InvalidSpace, UsageError
from tuner.space import files, fixing
from tuner.space.environment import Environment, Machine
from tuner.space.space import SearchSpace

TEXT = """
name: toy
knobs:
  replica.count: {type: int, range: [1, 4], default: 1}
  clockwork.duration_margin: {type: float, choices: [0, 0.1, 0.4], default: 0.1}
  batching.timeout_us: {type: int, choices: [0, 100, 1000], scale: log, default: 100}
  routing.policy: {type: choice, choices: [round-robin, least-loaded], default: least-loaded}
constraints: ["replica.count < 3 or routing.policy == 'round-robin'"]
equivalence: []
"""
HERE = Environment(concurrency=4, machine=Machine(cores=8, memory_mb=4096))


def space(text: str = TEXT) -> SearchSpace:
    return files.parse(text, "toy.yaml")


@given(count=st.integers(1, 2), guard=st.floats(0, 0.4), wait=st.sampled_from([0, 300]))
def test_every_configuration_has_what_is_fixed(count: int, guard: float, wait: int) -> None:
    """Also between the values that would be searched, through the file that a study keeps."""
    asked = (
        f"replica.count={count}",
        f"clockwork.duration_margin={guard!r}",
        f"batching.timeout_us={wait}",
    )
    found = files.parse(files.dump(fixing.fix_knobs(space(), asked)), "kept.yaml")
    cells = found.candidates(HERE)
    assert len(cells) == 2, "the policy is searched"
    wanted = {
        "replica.count": count,
        "clockwork.duration_margin": guard,
        "batching.timeout_us": wait,
    }
    for cell in (*cells, found.default()):
        assert wanted.items() <= dict(cell).items()


def test_a_choice_that_a_constraint_names_can_be_fixed() -> None:
    """To the one that is named, and to the other one."""
    for policy in ("round-robin", "least-loaded"):
        found = fixing.fix_knobs(space(), (f"routing.policy={policy}",))
        cells = found.candidates(HERE)
        assert {cell["routing.policy"] for cell in cells} == {policy}
        assert {cell["replica.count"] for cell in cells} == (
            {1, 2, 3, 4} if policy == "round-robin" else {1, 2}
        )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("replica.cout=2", "has no knob 'replica.cout', did you mean 'replica.count'"),
        ("replica.count=9", "replica.count = 9, expected a whole number from 1 to 4"),
        ("replica.count=1.5", "'1.5' is not a whole number; expected one from 1 to 4"),
        ("clockwork.duration_margin=much", "'much' is not a number; expected one from 0 to 0.4"),
        ("routing.policy=random", "expected one of 'round-robin', 'least-loaded'"),
    ],
)
def test_what_cannot_be_fixed_is_one_line(asked: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"--fix {asked}: ") as caught:
        fixing.fix_knobs(space(), (asked,))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_something_must_be_left_to_search() -> None:
    asked = ("replica.count=1", "clockwork.duration_margin=0", "batching.timeout_us=0")
    only = TEXT.replace("round-robin, least-loaded", "least-loaded")
    only = only.replace("or routing.policy == 'round-robin'", "or replica.count < 4")
    with pytest.raises(UsageError, match="no knob is left to search"):
        fixing.fix_knobs(space(only), asked)


def test_values_that_a_constraint_rules_out_together_are_refused() -> None:
    with pytest.raises(InvalidSpace, match="together rule out every configuration"):
        fixing.fix_knobs(space(), ("replica.count=4", "routing.policy=least-loaded")).candidates(
            HERE
        )
