"""Samplers compared: curves, what counts as one unit, and what is said of a difference."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import studies
from tuner.measurement.search_comparison import best_so_far, differences
from tuner.metrics.objective import OBJECTIVES, find_objective
from tuner.values.sampler_comparison import SamplerRun

VALUES = st.lists(st.none() | st.floats(0.1, 1e3), max_size=20)


@given(values=VALUES, name=st.sampled_from(["mean", "throughput"]))
def test_the_best_so_far_never_gets_worse(values: list[float | None], name: str) -> None:
    """As long as the values, none before the first, then the best of what came."""
    found = best_so_far(values, OBJECTIVES[name])
    assert len(found) == len(values)
    choose = max if name == "throughput" else min
    for index, best in enumerate(found):
        known = [value for value in values[: index + 1] if value is not None]
        assert best == (choose(known) if known else None)


def run(sampler: str, repeat: int, means: list[float], seed: int = 0) -> SamplerRun:
    """A run whose winner was re-measured in rounds with these true means."""
    rng = np.random.default_rng([seed, repeat])
    return SamplerRun(
        sampler=sampler,
        repeat=repeat,
        seed=repeat,
        study=f"{sampler}-{repeat}",
        objectives=(means[0],),
        best_so_far=(means[0],),
        wall_s=1.0,
        winner=studies.default(),
        remeasured=tuple(studies.measurement(mean, rng) for mean in means),
    )


def test_one_repeat_compares_two_winners_by_rounds() -> None:
    """A winner twice as slow in each of eight rounds is worse, by a ratio near two."""
    found = differences(
        [run("random", 0, [20.0] * 8), run("gp", 0, [10.0] * 8, seed=9)], find_objective("mean")
    )
    assert len(found) == 1
    assert (found[0].first, found[0].second, found[0].outcome) == ("random", "gp", "worse")
    assert found[0].ratio == pytest.approx(2, rel=0.1)
    assert "8 pairs" in found[0].text


def test_with_repeats_a_repeat_is_the_unit() -> None:
    """Many launches of the winners of two searches are two pairs, not sixteen."""
    runs = [run("random", r, [20.0] * 8) for r in range(2)]
    runs += [run("gp", r, [10.0] * 8, seed=9) for r in range(2)]
    assert "2 pairs" in differences(runs, find_objective("mean"))[0].text


def test_equal_winners_are_not_told_apart() -> None:
    """The same launches on both sides have the ratio 1 and no shown difference."""
    one = run("random", 0, [10.0] * 6)
    found = differences([one, dataclasses.replace(one, sampler="gp")], find_objective("throughput"))
    assert found[0].outcome == "no difference shown"
    assert found[0].ratio == pytest.approx(1)
    assert found[0].text.startswith("No difference shown")


def without_winner(sampler: str, repeat: int) -> SamplerRun:
    """A run in which nothing worked, or whose winner was not measured again."""
    return dataclasses.replace(run(sampler, repeat, [1.0]), winner=None, remeasured=())


def test_a_search_without_a_winner_costs_its_own_repeat_alone() -> None:
    """The other repeats, and the other samplers, are compared."""
    alone = [without_winner("random", 0), run("gp", 0, [10.0] * 3)]
    assert differences(alone, find_objective("mean")) == ()
    runs = [without_winner("random", 0), *(run("random", r, [20.0] * 8) for r in (1, 2))]
    runs += [run("gp", r, [10.0] * 8, seed=9) for r in range(3)]
    runs += [run("tpe", r, [10.0] * 8, seed=9) for r in range(3)]
    found = differences(runs, find_objective("mean"))
    assert ["2 pairs" in one.text for one in found] == [True, True, False]
    assert "3 pairs" in found[2].text


def test_without_measurements_there_is_no_difference() -> None:
    """Winners that could not be measured again are not compared."""
    assert differences([run("random", 0, [10.0])], find_objective("mean")) == ()
    assert (
        differences([run("random", 0, [10.0]), run("gp", 0, [10.0])], find_objective("mean")) == ()
    )
