"""Cells that may be proposed: listed, drawn, found again."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from tuner.errors import UsageError
from tuner.sampling.candidates import CandidateSet, sobol
from tuner.sampling.encoding import Cube
from tuner.values.configuration import Configuration

GRID = Cube.of(
    {
        "count": IntDistribution(1, 4),
        "policy": CategoricalDistribution(("a", "b", "c")),
        "share": FloatDistribution(0.1, 0.7, step=0.1),
    }
)
ENDLESS = Cube.of({"x": FloatDistribution(0, 1), "y": FloatDistribution(1e-3, 1, log=True)})
NO_CENTRES = np.empty((0, 2))


def test_a_finite_grid_is_listed_whole() -> None:
    """Every combination is there once, and its vector is its own."""
    candidates = CandidateSet.enumerate_cube(GRID)
    assert (
        len(set(candidates.configurations))
        == len(candidates.configurations)
        == 4 * 3 * 7
        == GRID.size
    )
    for index in (0, 17, 83):
        assert np.allclose(candidates.vectors[index], GRID.encode(candidates.configurations[index]))
    assert candidates.is_complete
    assert candidates.width == 1 + 3 + 1


def test_a_cell_is_found_again_after_arithmetic() -> None:
    """0.1 + 0.2 is the grid's 0.3, and other knobs do not matter."""
    candidates = CandidateSet.enumerate_cube(GRID)
    index = candidates.index_of({"count": 2, "policy": "b", "share": 0.1 + 0.2, "other": 1})
    assert index is not None
    assert candidates.configurations[index]["share"] == pytest.approx(0.3)
    assert candidates.index_of({"count": 2, "policy": "b"}) is None


def test_only_cells_that_were_not_seen_are_left() -> None:
    """Seen configurations are taken out; those of another space take nothing."""
    candidates = CandidateSet.enumerate_cube(GRID)
    seen = [
        candidates.configurations[3],
        candidates.configurations[5],
        Configuration({"count": 99}),
    ]
    left = candidates.untried(seen)
    assert set(range(len(candidates.configurations))) - set(left.tolist()) == {3, 5}
    assert len(candidates.untried([])) == len(candidates.configurations)


def test_fixed_values_narrow_the_cells() -> None:
    """What a trial has fixed decides which cells remain; what fits no cell is ignored."""
    candidates = CandidateSet.enumerate_cube(GRID)
    assert {cell["policy"] for cell in candidates.agreeing({"policy": "b"}).configurations} == {"b"}
    assert candidates.agreeing({"policy": "unknown"}) is candidates
    assert candidates.agreeing({"other": 1}) is candidates
    drawn = CandidateSet.sample_cube(ENDLESS, np.random.default_rng(0), around=NO_CENTRES, count=64)
    assert {cell["x"] for cell in drawn.agreeing({"x": 0.25}).configurations} == {0.25}


def test_an_endless_space_is_drawn_over_all_and_near_the_best() -> None:
    """Points cover the cube, more of them lie around the centres, and all are legal."""
    centre = np.array([[0.2, 0.9]])
    drawn = CandidateSet.sample_cube(ENDLESS, np.random.default_rng(1), around=centre, count=1024)
    plain = CandidateSet.sample_cube(
        ENDLESS, np.random.default_rng(1), around=NO_CENTRES, count=1024
    )
    near = [np.linalg.norm(c.vectors - centre, axis=1) < 0.05 for c in (drawn, plain)]
    assert near[0].sum() > 10 * near[1].sum()
    assert np.histogram2d(*plain.vectors.T, bins=4)[0].min() > 60  # 64 each, but for rounding
    axes = ENDLESS.axes
    assert all(axes[name].contains(cell[name]) for cell in drawn.configurations for name in cell)
    assert not drawn.is_complete


def test_an_endless_space_realises_a_point_itself() -> None:
    """Where cells are only a sample, a model's point becomes its own legal configuration."""
    drawn = CandidateSet.sample_cube(ENDLESS, np.random.default_rng(0), around=NO_CENTRES, count=16)
    made = drawn.realise(np.array([0.5, 0.0]), np.arange(16))
    assert made == Configuration({"x": 0.5, "y": 1e-3})


@pytest.mark.parametrize("count", [1, 2, 3, 8, 100])
def test_a_sobol_start_is_the_start_of_the_longer_one(count: int) -> None:
    """A design does not change when it is asked for one more point."""
    few, many = (sobol(3, n, np.random.default_rng(7)) for n in (count, 2 * count + 1))
    assert few.shape == (count, 3)
    assert np.array_equal(few, many[:count])


def test_a_knob_that_is_held_is_no_dimension() -> None:
    """Entries in which the cells do not differ are dropped, for other configurations too."""
    cells = [
        cell for cell in CandidateSet.enumerate_cube(GRID).configurations if cell["count"] == 2
    ]
    held = CandidateSet.of(cells, GRID.encode)
    assert held.width == GRID.width - 1
    vector = held.vector_of({**cells[0], "count": 3})
    assert vector is not None
    assert np.allclose(vector, held.vectors[0])
    assert CandidateSet.of(cells[:1], GRID.encode).width == GRID.width


def test_no_cell_is_wrong_use() -> None:
    """An empty space is refused with what to try."""
    with pytest.raises(UsageError, match="widen a knob"):
        CandidateSet.of([], lambda _: np.zeros(1))
