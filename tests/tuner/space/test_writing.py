"""A space as text: what survives, and how it looks."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.space import files
from tuner.space.environment import Environment, Machine
from tuner.space.equivalence import RULES
from tuner.space.knobs import ChoiceKnob, FloatKnob, IntKnob
from tuner.space.space import SearchSpace

floats = st.floats(0.05, 200)


@st.composite
def spaces(draw):
    """Spaces whose names, numbers and conditions try the writer."""
    low, high = sorted((draw(floats), draw(floats)))
    zero = draw(st.booleans())
    points = {"points": draw(st.integers(2, 9))} if draw(st.booleans()) else {}
    grid = {} if points else {"grid": tuple(sorted({100, draw(st.integers(100, 5000)), 5000}))}
    return SearchSpace(
        name=draw(st.text(min_size=1).filter(lambda text: text.strip() and text.isprintable())),
        knobs=(
            FloatKnob(name="replica.cpu", unit="cores", low=low, high=high, default=low),
            IntKnob(
                name="batching.timeout_us",
                unit="us",
                low=100,
                high=5000,
                default=100,
                role=draw(st.sampled_from([None, "batch", "wait"])),
                scale="log",
                zero=zero,
                condition=draw(st.sampled_from(["", "routing.policy == 'round-robin'"])),
                **points,
                **grid,
            ),
            ChoiceKnob(
                name="routing.policy",
                choices=("least-loaded", "round-robin"),
                default="round-robin",
            ),
        ),
        constraints=tuple(
            draw(
                st.lists(
                    st.sampled_from(
                        [
                            "replica.cpu <= 1000",
                            'routing.policy != "least-loaded"',
                            "-replica.cpu < 1",
                            "not replica.cpu > 1e3",
                            "max(replica.cpu, 1) > 0.5",
                        ]
                    ),
                    unique=True,
                )
            )
        ),
        equivalence=tuple(sorted(draw(st.sets(st.sampled_from(RULES))))),
        source="x.yaml",
    )


@settings(deadline=None, max_examples=50)
@given(space=spaces(), comment=st.text("ab #:-\n", max_size=200) | st.text())
def test_what_is_written_reads_back(space, comment):
    """Any space, with any comment, is the same after writing and reading."""
    text = files.dump(space, {"replica.cpu": comment, "head": comment, "constraints": comment})

    assert space == files.parse(text, "x.yaml")


def test_the_text_of_a_space():
    """The order is that of the space; comments stand above what they explain; numbers stay short."""
    space = SearchSpace(
        name="toy",
        knobs=(
            IntKnob(name="replica.count", unit="replicas", low=1, high=4, step=1, default=1),
            FloatKnob(
                name="replica.cpu", unit="cores", low=0.5, high=4.0, points=3, scale="log",
                default=1.0,
            ),
        ),
        constraints=("replica.count * replica.cpu <= 2 * machine.cores",),
        equivalence=(),
    )  # fmt: skip
    machine = Machine(cores=2, memory_mb=64)

    text = files.dump(
        space.narrow(Environment(concurrency=1, machine=machine)), {"replica.count": "Few."}
    )

    assert (
        text
        == """\
# replica.cpu: 4.0 cores left out: the machine has 2 cores
# replica.count * replica.cpu <= 2 * machine.cores: leaves 10 of 12 combinations of replica.count
# and replica.cpu (machine.cores = 2)
name: toy

knobs:
  # Few.
  replica.count:
    type: int
    range: [1, 4]
    step: 1
    default: 1
    unit: replicas

  replica.cpu:
    type: float
    choices: [0.5, 1.0, 1.414213562]
    scale: log
    default: 1.0
    unit: cores

constraints:
  - replica.count * replica.cpu <= 2 * machine.cores

equivalence: []
"""
    )
