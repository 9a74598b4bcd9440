"""What searches come to: regrets that are always there, and times that never run back."""

from __future__ import annotations

import math

import numpy as np

from tests.fakes import recorded
from tuner.lab import prepared_table, replay, replay_search
from tuner.lab.tables import sampler_results
from tuner.lab.tables.scoring import ReplayRun

GROUND = prepared_table.prepare_table(recorded.table(passes=4, every=4))
TRUTH, DEFAULT = GROUND.truth, GROUND.problem.default
BEST = TRUTH.candidates[TRUTH.best]
WORST = TRUTH.candidates[int(np.argmax(TRUTH.log_mean))]


def run(recommended: list, *, seed: int = 0) -> ReplayRun:
    """A search that recommends these, 10 s a trial and 1 s of the sampler's own."""
    count = len(recommended)
    return ReplayRun(
        seed=seed,
        cells=(BEST,) * count,
        recommended=tuple(recommended),
        seconds=tuple(10.0 * n for n in range(1, count + 1)),
        own_s=tuple(1.0 * n for n in range(1, count + 1)),
    )


def contestant(*runs: ReplayRun):
    return sampler_results.sampler_result("gp", runs, TRUTH, default=DEFAULT)


def test_who_recommends_nothing_has_the_regret_of_the_default() -> None:
    found = sampler_results.finite_regrets([run([None, BEST])], TRUTH, DEFAULT)
    assert found[0].tolist() == [TRUTH.regret(DEFAULT), 0.0]


def test_who_recommends_what_does_not_work_has_the_regret_of_the_worst() -> None:
    (lost, *_) = sorted(TRUTH.unsuccessful, key=str)
    found = sampler_results.finite_regrets([run([lost, WORST])], TRUTH, DEFAULT)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found[0, 0], found[0, 1])


def test_seconds_are_those_of_launches_and_sampler_together() -> None:
    found = contestant(run([WORST, WORST, BEST]), run([BEST, BEST, BEST], seed=1))
    assert found.seconds[0] == (11.0, 22.0, 33.0)
    reached = found.time_to_tolerance(0.05)
    assert reached.trials == (3.0, 1.0)
    assert reached.seconds == (33.0, 11.0)
    assert (reached.median, reached.median_s, reached.p90_s) == (1.0, 11.0, 33.0)


def test_who_never_gets_there_has_no_median() -> None:
    found = contestant(run([BEST, WORST]), run([WORST, WORST], seed=1)).time_to_tolerance(0.03)
    assert found.trials == (None, None)
    assert (found.median, found.reached) == (None, 0.0)


def test_differences_are_paired_by_seed() -> None:
    good = contestant(run([BEST, BEST]), run([WORST, BEST], seed=1))
    bad = contestant(run([WORST, BEST]), run([WORST, BEST], seed=1))
    gap = TRUTH.regret(WORST)
    np.testing.assert_allclose(sampler_results.differences(good, bad, 1), [-gap, 0.0], rtol=1e-4)
    np.testing.assert_allclose(sampler_results.differences(good, bad, 2), [0.0, 0.0])


def test_quartiles_agree_with_the_regrets() -> None:
    order = replay_search.ReplaySpec(sampler="random", trials=12, seeds=tuple(range(6)))
    found = replay.replay(GROUND, order, workers=1)
    one = sampler_results.sampler_result("random", found.runs, TRUTH, default=DEFAULT)
    regrets = np.array(one.regrets)
    np.testing.assert_allclose(np.median(regrets, axis=0), one.regret.median, rtol=1e-3)
    told = [
        [math.inf if cell is None else TRUTH.regret(cell) for cell in one.recommended]
        for one in found.runs
    ]
    np.testing.assert_allclose(told, regrets, rtol=1e-4)
    assert np.all(np.diff(np.array(one.seconds), axis=1) > 0)
