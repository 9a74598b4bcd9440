"""The search space: cells, feasibility, representatives, and what is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import InvalidSpace
from tuner.space.environment import Environment, Machine
from tuner.space.equivalence import RULES
from tuner.space.knobs import ChoiceKnob, DeviceKnob, FloatKnob, IntKnob
from tuner.space.space import SearchSpace
from tuner.values.configuration import Configuration

COUNT = IntKnob(name="replica.count", low=1, high=4, default=1)
CPU = FloatKnob(
    name="replica.cpu", low=0.5, high=2.0, grid=(0.5, 1.0, 1.5, 2.0), default=1.0, scale="log"
)
MEMORY = IntKnob(
    name="replica.memory_mb", low=64, high=512, grid=(64, 128, 512), default=128, scale="log"
)
THREADS = IntKnob(name="replica.threads", low=1, high=2, default=1)
SIZE = IntKnob(name="batching.max_size", low=1, high=64, points=7, default=8, scale="log")
TIMEOUT = IntKnob(
    name="batching.timeout_us", low=100, high=10_000, points=3, default=0, scale="log", zero=True
)
ROUTING = ChoiceKnob(
    name="routing.policy", choices=("least-loaded", "round-robin"), default="least-loaded",
    condition="replica.count > 1",
)  # fmt: skip
CLOCK = DeviceKnob(name="accelerator.clock_mhz", unit="MHz", points=3)
FITS = "replica.count * replica.memory_mb <= machine.memory_mb"


def environment(concurrency=20, cores=2, memory_mb=1024, clocks=()):
    """A machine under load."""
    machine = Machine(cores=cores, memory_mb=memory_mb, gpu_clocks_mhz=clocks)
    return Environment(concurrency=concurrency, machine=machine)


def space_of(*knobs, **more):
    """A space with a short name."""
    return SearchSpace(name="toy", knobs=knobs, **more)


environments = st.builds(
    environment,
    concurrency=st.integers(1, 80),
    cores=st.integers(1, 8),
    memory_mb=st.integers(64, 4096),
    clocks=st.sampled_from([(), (900,), (300, 600, 900, 1200)]),
)


@st.composite
def spaces(draw):
    """Spaces with some of the engine's knobs, constraints and rules."""
    optional = draw(
        st.sets(st.sampled_from([CPU, THREADS, SIZE, TIMEOUT, ROUTING, CLOCK]), max_size=4)
    )
    knobs = [COUNT, MEMORY, *sorted(optional, key=lambda knob: knob.name)]
    constraints = [FITS]
    if SIZE in optional:
        constraints += draw(
            st.lists(
                st.sampled_from(
                    [
                        "batching.max_size <= 2 * concurrency",
                        "batching.max_size != 32",
                        "replica.count == 1 or batching.max_size > 1",
                    ]
                ),
                max_size=2,
                unique=True,
            )
        )
    if CPU in optional:
        constraints += draw(
            st.lists(st.sampled_from(["replica.cpu < 1.5", "replica.cpu != 1.0"]), max_size=1)
        )
    return space_of(
        *knobs,
        constraints=tuple(constraints),
        equivalence=tuple(sorted(draw(st.sets(st.sampled_from(RULES))))),
    )


def some_configuration(data, space):
    """Any assignment of grid values."""
    return Configuration(
        {knob.name: data.draw(st.sampled_from(knob.values())) for knob in space.searched_knobs}
    )


@settings(deadline=None, max_examples=50)
@given(space=spaces(), where=environments, data=st.data())
def test_a_representative_is_feasible_on_the_grid_and_its_own_representative(space, where, data):
    """For any configuration of the grid: idempotent, stays feasible, stays on the grid."""
    space = space.narrow(where)
    configuration = some_configuration(data, space)

    found = space.canonical(configuration, where)

    assert found == space.canonical(found, where)
    assert space.is_feasible(found) >= space.is_feasible(configuration)
    assert all(found[knob.name] in knob.values() for knob in space.searched_knobs)


@settings(deadline=None, max_examples=50)
@given(space=spaces(), where=environments, data=st.data())
def test_cells_are_the_representatives_of_all_feasible_configurations(space, where, data):
    """Every feasible configuration has its representative among the cells, each once, in a fixed order."""
    narrowed = space.narrow(where)
    cells = space.candidates(where)
    configuration = some_configuration(data, narrowed)

    assert len(set(cells)) == len(cells)
    assert cells == narrowed.candidates(where)
    if narrowed.is_feasible(configuration):
        assert narrowed.canonical(configuration, where) in cells
    cell = data.draw(st.sampled_from(cells))
    assert narrowed.is_feasible(cell)
    assert cell == narrowed.canonical(cell, where)


@settings(deadline=None, max_examples=50)
@given(space=spaces(), where=environments, data=st.data())
def test_representatives_are_a_partition(space, where, data):
    """Two configurations with the same representative stay together when one of them is replaced by it."""
    space = space.narrow(where)
    one, other = some_configuration(data, space), some_configuration(data, space)
    same = space.canonical(one, where) == space.canonical(other, where)

    assert same == (
        space.canonical(space.canonical(one, where), where) == space.canonical(other, where)
    )


@settings(deadline=None, max_examples=50)
@given(space=spaces(), where=environments, data=st.data())
def test_places_tell_cells_apart(space, where, data):
    """Each cell has a place of its own in the unit cube, one number for each knob."""
    space = space.narrow(where)
    cells = space.candidates(where)
    one, other = (data.draw(st.sampled_from(cells)) for _ in range(2))

    place = space.encode(one)

    assert (len(space.names),) == place.shape
    assert np.all((place >= 0) & (place <= 1))
    assert (one == other) == np.array_equal(place, space.encode(other))


@settings(deadline=None, max_examples=50)
@given(space=spaces(), where=environments)
def test_narrowing_twice_is_narrowing_once(space, where):
    """A narrowed space is bound: it stays what it is, and so do its notes."""
    narrowed = space.narrow(where)

    assert narrowed is narrowed.narrow(where)
    assert where == narrowed.environment


def test_the_smallest_twin_represents_a_cell():
    """The shortest timeout, the smallest batch and the cheapest quota stand for those like them."""
    space = space_of(COUNT, CPU, SIZE, TIMEOUT)
    given = Configuration(
        {
            "replica.count": 2,
            "replica.cpu": 2.0,
            "batching.max_size": 64,
            "batching.timeout_us": 1000,
        }
    )

    found = space.canonical(given, environment(concurrency=20))

    assert tuple(found[name] for name in space.names) == (2, 1.0, 32, 1000)
    assert (
        space.canonical({**given, "batching.max_size": 1}, environment())["batching.timeout_us"]
        == 0
    )


def test_the_representative_is_the_smallest_feasible_twin():
    """Where a constraint rules the smallest twin out, the next one stands for the cell."""
    space = space_of(SIZE, TIMEOUT, constraints=("batching.max_size != 32",))
    given = {"batching.max_size": 64, "batching.timeout_us": 1000}

    assert Configuration(given) == space.canonical(given, environment(concurrency=20))
    assert len(space.candidates(environment(concurrency=20))) == 7 * 4 - 4 - 3


def test_off_the_grid_a_twin_on_the_grid_is_found_or_nothing_changes():
    """A size between grid values above the concurrency has a twin; one below has none."""
    space = space_of(SIZE, TIMEOUT)

    above = space.canonical({"batching.max_size": 50, "batching.timeout_us": 100}, environment(20))
    below = space.canonical({"batching.max_size": 12, "batching.timeout_us": 100}, environment(20))

    assert (above["batching.max_size"], below["batching.max_size"]) == (32, 12)


def test_without_rules_every_feasible_configuration_is_a_cell():
    """`equivalence: []` tells everything apart."""
    space = space_of(COUNT, SIZE, TIMEOUT, equivalence=())

    assert len(space.candidates(environment())) == 4 * 7 * 4


def test_an_inactive_knob_is_its_default():
    """A knob whose condition is false does nothing, in cells, feasibility and places alike."""
    space = space_of(COUNT, ROUTING, constraints=("routing.policy == 'least-loaded'",))
    lone = {"replica.count": 1, "routing.policy": "round-robin"}

    assert len(space.candidates(environment())) == 4
    assert space.is_feasible(lone)
    assert not space.is_feasible({**lone, "replica.count": 2})
    assert space.canonical(lone, environment())["routing.policy"] == "least-loaded"
    assert space.encode(lone)[1] == 0.0


def test_default_has_every_knob():
    """The default configuration holds the default of each knob that has values."""
    assert (
        Configuration({"replica.count": 1, "batching.max_size": 8})
        == space_of(COUNT, SIZE, CLOCK).default()
    )


def test_feasibility_needs_range_and_constraints():
    """A value out of its range is as infeasible as one that breaks a constraint."""
    space = space_of(COUNT, MEMORY, constraints=(FITS,))

    assert space.is_feasible({"replica.count": 2, "replica.memory_mb": 512}, environment())
    assert not space.is_feasible({"replica.count": 3, "replica.memory_mb": 512}, environment())
    assert not space.is_feasible({"replica.count": 9, "replica.memory_mb": 64}, environment())
    assert space.narrow(environment()).is_feasible({"replica.count": 4, "replica.memory_mb": 200})


def test_a_constraint_on_the_machine_cannot_be_decided_without_it():
    """Nobody is told that a configuration fits a machine that is not known."""
    with pytest.raises(ValueError, match="depends on the machine"):
        space_of(COUNT, MEMORY, constraints=(FITS,)).is_feasible(
            {"replica.count": 1, "replica.memory_mb": 64}
        )


@pytest.mark.parametrize("values", [{}, {"replica.count": 1, "replica.cpu": 1.0}])
def test_a_configuration_has_exactly_the_knobs(values):
    """Missing and unknown knobs are errors, not guesses."""
    with pytest.raises(ValueError, match=r"missing .*unknown"):
        space_of(COUNT).is_feasible(values)


def test_narrowing_leaves_out_what_the_machine_lacks_and_says_so():
    """Values, the clock, and the constraint that names it go, each with a note."""
    constraint = "accelerator.clock_mhz > 300 or replica.count < 3"
    space = space_of(COUNT, CPU, CLOCK, constraints=(constraint,))

    small = space.narrow(environment(cores=1))
    large = space.narrow(environment(cores=2, clocks=(300, 600, 900)))

    assert small.names == ("replica.count", "replica.cpu")
    assert small.constraints == ()
    assert (
        "replica.cpu: 1.5, 2.0 left out: the machine has 1 core",
        "accelerator.clock_mhz left out: no GPU of this machine offers clocks to lock",
        f"constraint left out with its knob: {constraint}",
    ) == small.notes
    assert (constraint,) == large.constraints
    assert large.notes == ()
    assert large.searched_knobs[2].values() == (300, 600, 900)
    assert not large.is_feasible(
        {"replica.count": 3, "replica.cpu": 1.0, "accelerator.clock_mhz": 300}
    )


def test_a_default_that_breaks_a_constraint_here_is_noted():
    """The untuned server is measured all the same, so a reader must know that it is no cell."""
    space = space_of(SIZE, constraints=("batching.max_size <= concurrency",))

    notes = space.narrow(environment(concurrency=4)).notes

    assert notes == ("the default configuration violates a constraint here; it is never proposed",)


REFUSED = [
    ("no knobs", "knobs", "there is none", {"knobs": ()}),
    ("a wrong constraint", "constraints[0]", "at character 1: 'replica.cout' is not known",
     {"knobs": (COUNT,), "constraints": ("replica.cout > 1",)}),
    ("a wrong condition", "knobs.k.condition", "at character 1",
     {"knobs": (COUNT, IntKnob(name="k", low=1, high=2, default=1, condition="x > 1"))}),
    ("a condition on a conditional knob", "knobs.k.condition", "'routing.policy' cannot decide",
     {"knobs": (COUNT, ROUTING, IntKnob(name="k", low=1, high=2, default=1,
                                         condition="routing.policy == 'round-robin'"))}),
    ("a condition on the load", "knobs.k.condition", "'concurrency' cannot decide",
     {"knobs": (COUNT, IntKnob(name="k", low=1, high=2, default=1, condition="concurrency > 1"))}),
    ("a condition on the clock", "knobs.k.condition", "cannot decide",
     {"knobs": (CLOCK, IntKnob(name="k", low=1, high=2, default=1,
                                condition="accelerator.clock_mhz > 1"))}),
    ("an impossible constraint", "constraints[1]",
     "rules out every configuration: relax it, or change the values of replica.count",
     {"knobs": (COUNT,), "constraints": ("replica.count > 0", "replica.count > 4")}),
    ("a contradiction", "constraints[0]",
     "'replica.count > 2' and 'replica.count < 2' together rule out every configuration: relax one, ",
     {"knobs": (COUNT,), "constraints": ("replica.count > 2", "replica.count < 2")}),
    ("a division by 0", "constraints", "divides by 0",
     {"knobs": (COUNT,), "constraints": ("1 / (replica.count - 1) > 0",)}),
    ("too fine a grid", "knobs", "more than 5,000,000",
     {"knobs": tuple(IntKnob(name=name, low=1, high=900, default=1) for name in "abc")}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("phrase", "key", "text", "fields"), REFUSED, ids=[row[0] for row in REFUSED]
)
def test_a_wrong_space_is_refused_with_its_key(phrase, key, text, fields):
    """The error names the source, the key, and what is wrong."""
    with pytest.raises(InvalidSpace) as caught:
        SearchSpace(name="toy", source="toy.yaml", **fields)

    assert ("toy.yaml", key) == (caught.value.file, caught.value.key)
    assert text in caught.value.text


def test_a_space_that_does_not_fit_the_machine_names_the_constraint_and_the_machine():
    """On too small a machine the constraint to blame is named, with the figures."""
    space = space_of(
        IntKnob(name="replica.count", low=4, high=8, default=4), MEMORY, constraints=(FITS,)
    )

    with pytest.raises(InvalidSpace, match=r"rules out every configuration.*memory_mb = 200"):
        space.narrow(environment(memory_mb=200))
    with pytest.raises(InvalidSpace, match=r"knobs.replica.memory_mb: none of its values"):
        space.narrow(environment(memory_mb=32))


def test_more_cells_than_the_limit_are_refused():
    """A space that is too fine to be searched says so instead of filling the memory."""
    with pytest.raises(
        InvalidSpace, match="more than 10 configurations; use fewer points or choices"
    ):
        space_of(COUNT, SIZE, TIMEOUT).candidates(environment(), limit=10)


def test_what_a_constraint_on_the_machine_leaves_out_is_noted():
    """Values that no configuration can have, and how many values together; nothing where all fit."""
    space = space_of(COUNT, MEMORY, constraints=(FITS,))
    assert space.narrow(environment(memory_mb=2048)).notes == ()
    assert space.narrow(environment(memory_mb=1024)).notes == (
        f"{FITS}: leaves 10 of 12 combinations of replica.count and replica.memory_mb (machine.memory_mb = 1024)",
    )
    small = space.narrow(environment(memory_mb=150))
    assert small.notes[:2] == (
        "replica.memory_mb: 512 left out: the machine has 150 MiB",
        f"replica.count: 3, 4 left out: {FITS} (machine.memory_mb = 150)",
    )
