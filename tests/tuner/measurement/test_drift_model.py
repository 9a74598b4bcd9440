"""The machine's speed, launches and blocks, told apart in courses whose parts are known."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from tuner.measurement import drift_model
from tuner.measurement.drift_model import Blocks, DriftModel, DriftProcess

BUSY = DriftModel(
    quick=DriftProcess(sd=0.07, forgets_s=6.0),
    slow=DriftProcess(sd=0.06, forgets_s=60.0),
    evaluation_sd=0.02,
    block_sd=0.05,
)
EVERY_S = 0.95
"""From one launch to the next."""


def lay_out(launches, configurations=3, blocks=3, seed=0):
    """Middles of blocks of 0.2 s, their launches, and a random configuration of each launch."""
    rng = np.random.default_rng(seed)
    launch = np.repeat(np.arange(launches), blocks)
    at_s = EVERY_S * launch + 0.2 * np.tile(np.arange(blocks), launches)
    return at_s, launch, rng.integers(configurations, size=launches)[launch]


def run(course, launches, seed=0):
    """A pilot of an emulated machine, whose configurations differ by far more than the noise."""
    at_s, launch, configuration = lay_out(launches, seed=seed)
    logs = drift_model.draw(course, at_s, launch, np.random.default_rng(seed)) + 1.5 * configuration
    return Blocks(at_s=at_s, logs=logs, evaluation=launch, configuration=configuration)


@pytest.mark.slow
def test_the_parts_of_a_course_are_found():
    """In some five minutes: the share of each in the variance within fifteen points."""
    found = drift_model.fit(run(BUSY, 300))

    def shares(course):
        time = course.quick.sd**2 + course.slow.sd**2
        return np.array([time, course.evaluation_sd**2, course.block_sd**2]) / course.variance

    assert shares(found) == pytest.approx(shares(BUSY), abs=0.15)
    assert found.block_sd == pytest.approx(BUSY.block_sd, rel=0.15)
    assert 1 < found.quick.forgets_s < 20


@pytest.mark.slow
def test_a_machine_that_does_not_move_has_no_moments():
    """Launches alone, beside blocks."""
    still = dataclasses.replace(
        BUSY,
        quick=DriftProcess(sd=1e-4, forgets_s=6.0),
        slow=DriftProcess(sd=1e-4, forgets_s=60.0),
        evaluation_sd=0.06,
    )
    found = drift_model.fit(run(still, 150))
    assert found.evaluation_sd == pytest.approx(0.06, rel=0.2)
    assert math.hypot(found.quick.sd, found.slow.sd) < 0.02


def test_the_filter_is_the_likelihood_of_the_whole_covariance():
    """Of one configuration whose mean is known: the same as of a normal vector, written out."""
    at_s, launch, _ = lay_out(12)
    logs = drift_model.draw(BUSY, at_s, launch, np.random.default_rng(1))
    covariance = BUSY.covariance(at_s[:, None] - at_s)
    covariance += BUSY.evaluation_sd**2 * (launch[:, None] == launch)
    covariance += BUSY.block_sd**2 * np.eye(len(at_s))
    expected = stats.multivariate_normal(np.zeros(len(at_s)), covariance).logpdf(logs)
    blocks = Blocks(at_s=at_s, logs=logs, evaluation=launch, configuration=np.zeros_like(launch))
    away, variances = drift_model._filter(BUSY, drift_model._steps(blocks), logs[:, None])
    found = -0.5 * (np.log(2 * np.pi * variances) + away[:, 0] ** 2 / variances).sum()
    assert found == pytest.approx(expected)


@pytest.mark.slow
def test_drawn_courses_have_the_covariance_that_they_are_drawn_from():
    """Over many machines: at no distance, within a launch, and between launches."""
    at_s, launch, _ = lay_out(8)
    rng = np.random.default_rng(0)
    drawn = np.array([drift_model.draw(BUSY, at_s, launch, rng) for _ in range(4000)])
    found = drawn.T @ drawn / len(drawn)
    assert found[0, 0] == pytest.approx(BUSY.variance, rel=0.06)
    within = float(BUSY.covariance(np.array(0.2))) + BUSY.evaluation_sd**2
    assert found[0, 1] == pytest.approx(within, rel=0.08)
    assert found[0, -1] == pytest.approx(float(BUSY.covariance(at_s[-1] - at_s[0])), rel=0.12)


def test_too_few_launches_tell_nothing():
    """As many launches as there are parts at least."""
    assert drift_model.fit(run(BUSY, 2)) is None
