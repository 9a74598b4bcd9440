"""What a study asks of a scenario: what cannot be tuned is one line, and its own values are the default."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import textwrap
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.errors import UsageError
from tuner.evaluation.scenarios import files, tuning
from tuner.evaluation.scenarios.values import Scenario
from tuner.space import files as space_files
from tuner.space import fixing
from tuner.space.environment import Environment, Machine
from tuner.values.configuration import Value

TEXT = """
seconds: 10
workers: 2
memory_pages: 20
models: {few: {copies: 3, model: mnist}}
traffic:
  few: {rate: 60, deadline_ms: 50}
  more: {models: few, rate: 20, deadline_ms: 50, from_s: 1}
settings: {clockwork.page_mb: 0.5, clockwork.duration_margin: 0.2}
"""
ENVIRONMENT = Environment(concurrency=9, machine=Machine(cores=2, memory_mb=4096))


def scenario(tmp_path: pathlib.Path, text: str = TEXT) -> Scenario:
    """From a file."""
    path = tmp_path / "toy.yaml"
    path.write_text(textwrap.dedent(text), encoding="utf-8")
    return files.read(path)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate: 60", "clients: 1", "stream 'few' has clients, which send less the slower"),
        ("deadline_ms: 50}", "deadline_ms: {first: 9, factor: 2}}", "growing deadlines"),
        ("50, from", "80, from", "deadlines of 50, 80 ms; a study counts responses within one"),
        ("from_s: 1", "from_s: 6", "'more' begins after 6 s, but an evaluation lasts 5.5 s"),
        ("model: mnist", "profile: resnet50-v100", "has no model to serve"),
        ("duration_margin: 0.2", "duration_margn: 0.2", "clockwork.duration_margn"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(
    tmp_path: pathlib.Path, old: str, new: str, said: str
) -> None:
    assert old in TEXT
    with pytest.raises(UsageError, match=said) as caught:
        tuning.check(scenario(tmp_path, TEXT.replace(old, new, 1)), seconds=5.5)
    assert "\n" not in str(caught.value)


def test_a_trace_begins_with_its_first_request(tmp_path: pathlib.Path) -> None:
    """One that begins after a launch has ended is refused; its rate is that of the scenario's time."""
    (tmp_path / "late.csv").write_text("6,0\n7,1\n", encoding="utf-8")
    text = TEXT.replace("rate: 60", "arrivals: trace, file: late.csv")
    found = scenario(tmp_path, text)
    with pytest.raises(UsageError, match="'few' begins after 6 s"):
        tuning.check(found, seconds=5.5)
    tuning.check(found, seconds=7.0)
    assert tuning.rate_per_s(found) == pytest.approx(20 + 0.2)


def test_deadline_and_rate(tmp_path: pathlib.Path) -> None:
    found = scenario(tmp_path)
    tuning.check(found, seconds=5.5)
    assert (tuning.deadline_ms(found), tuning.rate_per_s(found)) == (50.0, 80.0)


def test_the_default_is_what_the_scenario_says(tmp_path: pathlib.Path) -> None:
    """Workers, memory in MiB and settings; what it leaves out is the serving core's own."""
    assert dict(tuning.default_space(scenario(tmp_path)).default()) == {
        "replica.count": 2,
        "clockwork.memory_mb": 10,
        "clockwork.page_mb": 0.5,
        "clockwork.duration_margin": 0.2,
        "clockwork.deadline_margin": 0.05,
        "clockwork.schedule_ahead_ms": 10.0,
        "clockwork.window_ms": 50.0,
        "clockwork.max_exec_ms": 25.0,
        "batching.max_size": 8,
    }


GIVEN = """
name: given
knobs:
  replica.count: {type: int, choices: [1, 4], default: 1}
  clockwork.memory_mb: {type: int, range: [20, 40], default: 40, step: 10}
  clockwork.duration_margin: {type: float, choices: [0.0, 0.4], default: 0.4}
  clockwork.deadline_margin: {type: float, choices: [0.0, 0.15], default: 0.15}
"""


def test_the_baseline_of_a_space_that_is_given_is_what_the_scenario_says(
    tmp_path: pathlib.Path,
) -> None:
    """Its values come beside those of the file; what it leaves out is the file's default."""
    given_space = space_files.parse(GIVEN, "given.yaml")
    found = tuning.with_baseline(given_space, scenario(tmp_path))
    assert dict(found.default()) == {
        "replica.count": 2,
        "clockwork.memory_mb": 10,
        "clockwork.duration_margin": 0.2,
        "clockwork.deadline_margin": 0.15,
    }
    values = {knob.name: knob.values() for knob in found.searched_knobs}
    assert values == {
        "replica.count": (1, 2, 4),
        "clockwork.memory_mb": (10, 20, 30, 40),
        "clockwork.duration_margin": (0.0, 0.2, 0.4),
        "clockwork.deadline_margin": (0.0, 0.15),
    }
    again = space_files.parse(space_files.dump(found), "kept.yaml")
    assert again.knobs == found.knobs
    assert tuning.with_baseline(again, scenario(tmp_path)).knobs == found.knobs


@settings(max_examples=60)
@given(largest_mb=st.floats(0.01, 60), pages=st.integers(1, 60))
def test_no_budget_is_tried_that_cannot_hold_the_largest_model(
    tmp_path_factory: pytest.TempPathFactory, largest_mb: float, pages: int
) -> None:
    """In whole pages, whatever their size is; every budget that can is, and the note names the others."""
    found = scenario(tmp_path_factory.mktemp("any"))
    found = dataclasses.replace(found, pages=pages, settings={})
    before = tuning.default_space(found)
    space, note = tuning.with_room(before, found, max_model_mb=largest_mb)
    if pages < math.ceil(largest_mb):
        return  # the server refuses the scenario itself
    again = space_files.parse(space_files.dump(space), "any.yaml")

    def holds(cell: Mapping[str, Value]) -> bool:
        page_mb, memory_mb = cell[tuning.PAGE], cell[tuning.MEMORY]
        assert isinstance(page_mb, float)
        assert isinstance(memory_mb, int)
        return math.floor(memory_mb / page_mb) >= math.ceil(largest_mb / page_mb)

    few = [knob.name for knob in before.knobs if knob.name not in {tuning.MEMORY, tuning.PAGE}]
    pinned = tuple(f"{name}={before.default()[name]}" for name in few)
    cells = fixing.fix_knobs(again, pinned).candidates(ENVIRONMENT)
    offered = fixing.fix_knobs(before, pinned).candidates(ENVIRONMENT)
    assert set(cells) == {cell for cell in offered if holds(cell)}
    lost = {cell[tuning.MEMORY] for cell in offered} - {cell[tuning.MEMORY] for cell in cells}
    assert (note is None) == (not lost)
    assert all(str(value) in (note or "") for value in lost)


def test_without_a_budget_memory_is_no_knob(tmp_path: pathlib.Path) -> None:
    space = tuning.default_space(scenario(tmp_path, TEXT.replace("memory_pages: 20\n", "")))
    text = space_files.dump(space)
    assert tuning.MEMORY not in text
    assert space_files.parse(text, "toy.yaml").candidates(ENVIRONMENT) == space.candidates(
        ENVIRONMENT
    )


@settings(max_examples=25)
@given(
    workers=st.integers(1, 64),
    pages=st.integers(1, 5000),
    guard=st.floats(0, 10, allow_nan=False),
    most=st.integers(1, 4096),
)
def test_the_space_is_as_large_around_any_values(
    tmp_path_factory: pytest.TempPathFactory, workers: int, pages: int, guard: float, most: int
) -> None:
    """No knob gets a value more, and the scenario's own is always one: a GP has to look at every cell."""
    found = scenario(tmp_path_factory.mktemp("any"))
    own = {"clockwork.duration_margin": guard, "batching.max_size": most}
    found = dataclasses.replace(found, workers=workers, pages=pages, settings=own)
    space = tuning.default_space(found)
    default = space.default()
    assert default["replica.count"] == workers
    assert default["clockwork.memory_mb"] == pages
    assert (default["clockwork.duration_margin"], default["batching.max_size"]) == (guard, most)
    bundled = space_files.load_bundled(tuning.SPACE)
    assert bundled is not None
    for knob, before in zip(space.searched_knobs, bundled.searched_knobs, strict=True):
        assert len(knob.values()) <= len(before.values())
        assert knob.default in knob.values()
