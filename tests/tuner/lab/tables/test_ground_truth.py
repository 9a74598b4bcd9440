"""The truth of a table: near what is true, its errors honest, and its lowest value not too low."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

from tests.fakes import benches, recorded, studies
from tuner.lab.tables.ground_truth import GroundTruth, ground_truth
from tuner.metrics import objective as objectives
from tuner.sampling.candidates import CandidateSet
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.slow


@functools.cache
def found(seed: int) -> tuple[GroundTruth, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The truth of a toy table, and the errors of its means; made once."""
    table = recorded.table(passes=4, every=6, seed=seed)
    candidates = CandidateSet.of(tuple(table.by_cell), benches.arena().space.encode)
    known = ground_truth(table, objectives.find_objective("mean"), candidates)
    true = [
        math.log(studies.mean_ms(Configuration({**studies.default(), **cell}), benches.CONCURRENCY))
        for cell in known.candidates
    ]
    return known, known.log_mean - np.array(true)


def test_means_are_closer_to_the_truth_than_single_launches() -> None:
    _, errors = found(0)
    assert np.sqrt(np.mean(errors**2)) < recorded.LAUNCH_SD / math.sqrt(2)


def test_standard_errors_are_honest() -> None:
    known, errors = found(1)
    inside = np.mean(np.abs(errors) < 2 * known.se)
    assert inside > 0.85


def test_the_optimum_is_not_the_luckiest_launch() -> None:
    errors = []
    for seed in range(6):
        known, off = found(seed)
        errors.append(off[known.best])
    assert np.mean(errors) == pytest.approx(0.0, abs=0.015)


def test_cells_that_fail_are_no_part_of_it() -> None:
    known, _ = found(0)
    assert known.unsuccessful
    assert not known.unsuccessful & set(known.candidates)
