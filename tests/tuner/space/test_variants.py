"""The model's form as a knob: a constraint on its accuracy, and what is refused."""

import pytest

from tuner.errors import InvalidSpace
from tuner.space import files, knob_schema
from tuner.space.environment import Environment, Machine
from tuner.space.expression import ByChoice, Expression, ExpressionError

MACHINE = Machine(cores=2, memory_mb=8192)
MEASURED = (("small", 0.85), ("middle", 0.9), ("large", 0.93))
TEXT = """
name: toy
knobs:
  replica.count: {type: int, range: [1, 4], default: 1, unit: replicas}
  model.variant: {type: choice, choices: [small, middle, large], default: large}
constraints:
  - model.accuracy >= 0.9
"""


def environment(variants=MEASURED):
    """A small machine and a model with forms."""
    return Environment(concurrency=20, machine=MACHINE, variants=variants)


def test_the_constraint_leaves_out_what_is_not_accurate_enough():
    """The other variants are all there, with every count."""
    space = files.parse(TEXT, file="toy.yaml").narrow(environment())
    cells = space.candidates(environment())
    assert {cell["model.variant"] for cell in cells} == {"middle", "large"}
    assert len(cells) == 8
    default = space.default()
    assert space.is_feasible(default)
    assert not space.is_feasible({**default, "model.variant": "small"})
    assert space.canonical(default, environment()) == default


def test_accuracy_mixes_with_other_symbols():
    """It is a number like any other."""
    text = TEXT.replace("model.accuracy >= 0.9", "model.accuracy * replica.count > 3.5")
    space = files.parse(text, file="toy.yaml").narrow(environment())
    cells = space.candidates(environment())
    assert {cell["model.variant"] for cell in cells} == {"middle", "large"}
    assert {cell["replica.count"] for cell in cells} == {4}


def test_accuracy_needs_the_knob():
    """Without it nothing is to be chosen."""
    text = TEXT.replace("  model.variant: {type: choice", "  routing.policy: {type: choice")
    text = text.replace(
        "[small, middle, large], default: large", "[round-robin], default: round-robin"
    )
    with pytest.raises(InvalidSpace, match=r"'model\.accuracy' is not known"):
        files.parse(text, file="toy.yaml")


@pytest.mark.parametrize(
    ("variants", "complaint"),
    [
        ((), "the model has no 'small'; it has no variants"),
        (MEASURED[:2], "the model has no 'large'; its variants are small, middle"),
        ((*MEASURED[:2], ("large", None)), "the variant 'large' has no measured accuracy"),
        ((("small", 0.1), ("middle", 0.2), ("large", 0.3)), "rules out every configuration"),
    ],
    ids=["no variants", "one is missing", "not measured", "none is good enough"],
)
def test_a_model_that_does_not_fit_is_refused(variants, complaint):
    with pytest.raises(InvalidSpace, match=complaint):
        files.parse(TEXT, file="toy.yaml").narrow(environment(variants))


def test_without_a_constraint_nothing_needs_to_be_measured():
    text = TEXT.replace("model.accuracy >= 0.9", "replica.count > 0")
    unmeasured = tuple((name, None) for name, _ in MEASURED)
    space = files.parse(text, file="toy.yaml").narrow(environment(unmeasured))
    assert len(space.candidates(environment(unmeasured))) == 12


def test_a_space_that_is_bound_to_no_model_cannot_decide():
    space = files.parse(TEXT, file="toy.yaml")
    with pytest.raises(ValueError, match="depends on the model: narrow the space first"):
        space.is_feasible(space.default(), environment())


def test_an_expression_that_names_it_depends_on_the_knob():
    accuracy = ByChoice("model.variant", (("a", 0.5), ("b", 1.0)))
    expression = Expression("model.accuracy > 0.7", {"model.accuracy": accuracy})
    assert expression.names == {"model.variant"}
    assert expression.holds({"model.variant": "b"})
    assert not expression.holds({"model.variant": "a"})
    with pytest.raises(ExpressionError, match="a number cannot be compared with 'a'"):
        Expression("model.accuracy == 'a'", {"model.accuracy": accuracy})


def test_what_a_constraint_leaves_of_one_knob_is_told_once():
    """Its values; of several knobs together the combinations, too."""
    text = TEXT.replace("model.accuracy >= 0.9", "replica.count <= machine.cores")
    notes = files.parse(text, file="toy.yaml").narrow(environment()).notes
    assert notes == (
        "replica.count: 3, 4 replicas left out: replica.count <= machine.cores (machine.cores = 2)",
    )


def test_another_engine_may_call_a_knob_so():
    """Nothing is assumed of it; its accuracy is nobody's to know."""
    known = knob_schema.of_command(["replica.count", "model.variant"])
    text = TEXT.replace("model.accuracy >= 0.9", "replica.count < 3")
    space = files.parse(text, file="toy.yaml", vocabulary=known).narrow(environment(None))
    assert len(space.candidates(environment(None))) == 6
    asked = files.parse(TEXT, file="toy.yaml", vocabulary=known)
    with pytest.raises(InvalidSpace, match=r"model\.accuracy is unknown for another engine"):
        asked.narrow(environment(None))
