"""Which knobs a search space may name: the serving core's, or another engine's."""

from __future__ import annotations

import pytest

from tuner.errors import InvalidSpace
from tuner.space import files, knob_schema
from tuner.space.environment import Environment, Machine

SMALL = Environment(concurrency=4, machine=Machine(cores=2, memory_mb=1024))
COMMAND = knob_schema.of_command(["batching.max_size", "mode"])
SPACE = """
knobs:
  batching.max_size: {type: int, choices: [1, 64], default: 64, unit: rows}
  mode: {type: choice, choices: [fast, safe], default: safe}
  engine.cpu: {type: float, choices: [1.0, 2.0, 4.0], default: 4.0, unit: cores}
"""


def test_nothing_is_assumed_of_another_engines_knobs() -> None:
    """Any type and unit, no equivalence: a batch above the concurrency may behave otherwise."""
    space = files.parse(SPACE, file="other.yaml", vocabulary=COMMAND)
    assert space.equivalence == ()
    assert len(space.candidates(SMALL)) == 2 * 2 * 2
    assert (
        files.parse(files.dump(space), file="again.yaml", vocabulary=COMMAND).knobs == space.knobs
    )


def test_the_limits_of_another_engine_are_cut_to_the_machine() -> None:
    """With a note, as those of a replica."""
    space = files.parse(SPACE, file="other.yaml", vocabulary=COMMAND).narrow(SMALL)
    assert space.default()["engine.cpu"] == 2.0
    assert any("engine.cpu: 4.0 cores left out" in note for note in space.notes)


@pytest.mark.parametrize(
    ("known", "name", "said"),
    [
        (COMMAND, "mod", "unknown knob 'mod', did you mean 'mode'"),
        (COMMAND, "replica.cpu", "the whole server is limited"),
        (knob_schema.SERVING, "engine.cpu", "this engine limits each replica"),
        (knob_schema.OF_URL, "engine.memory_mb", "the tuner does not limit servers that it does not start"),
        (knob_schema.OF_URL, "max-size", "expected a name such as"),
    ],
)  # fmt: skip
def test_a_name_that_cannot_be_meant_is_refused(
    known: knob_schema.KnobSchema, name: str, said: str
) -> None:
    """With what could be meant instead."""
    text = f"knobs:\n  {name}: {{type: float, choices: [0.5, 1.0], default: 1.0}}\n"
    with pytest.raises(InvalidSpace, match=said):
        files.parse(text, file="other.yaml", vocabulary=known)


def test_a_running_server_has_any_knob() -> None:
    """Whatever its hook understands."""
    text = "knobs:\n  anything: {type: int, range: [1, 3], default: 2}\n"
    space = files.parse(text, file="url.yaml", vocabulary=knob_schema.OF_URL)
    assert space.names == ("anything",)


def test_the_limits_keep_to_the_ranges_of_the_serving_core() -> None:
    """A limit that no replica could have is refused for a server as well."""
    text = "knobs:\n  engine.memory_mb: {type: int, choices: [1, 64], default: 64}\n"
    with pytest.raises(InvalidSpace, match="does not accept 1"):
        files.parse(text, file="other.yaml", vocabulary=COMMAND)
