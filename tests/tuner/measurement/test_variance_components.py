"""Components of noise, and the length of trials."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import variance_components
from tuner.values.measurement import Block


def draws(seed, times, **model):
    """Independent pilots of the same model; the configuration's own level is common to its launches."""
    rng = np.random.default_rng(seed)
    for _ in range(times):
        data = []
        for _ in range(model["configurations"]):
            level = rng.normal(2, 1)
            data.append(
                [
                    np.exp(
                        level + effect + model["block_sd"] * rng.standard_normal(model["blocks"])
                    )
                    for effect in model["evaluation_sd"] * rng.standard_normal(model["launches"])
                ]
            )
        yield variance_components.components(data)


def test_known_components_are_found():
    """The estimated variances are right in the mean of 400 pilots, within 5 standard errors."""
    found = list(
        draws(1, 400, configurations=3, launches=4, blocks=4, evaluation_sd=0.13, block_sd=0.08)
    )
    block = np.array([one.block_sd**2 for one in found])
    launch = np.array([one.evaluation_sd**2 for one in found])
    assert block.mean() == pytest.approx(0.08**2, abs=5 * block.std() / 20)
    assert launch.mean() == pytest.approx(0.13**2, abs=5 * launch.std() / 20)


def test_launches_alike_but_for_their_blocks_have_no_spread_of_their_own():
    """A negative estimate is zero."""
    found = variance_components.components([[[1.0, 1.2], [1.2, 1.0], [1.1, 1.1]]])
    assert found.evaluation_sd == 0
    assert found.trial_sd(4) == pytest.approx(found.block_sd / 2)


def test_without_repeats_launches_are_unknown():
    """One launch per configuration shows blocks only, and says so."""
    found = variance_components.components([[[1.0, 1.1, 1.0]], [[5.0, 5.5]]])
    assert found.evaluation_sd is None
    assert math.isinf(variance_components.useful_seconds(found, start_s=1.0, block_s=0.5))


def test_without_two_blocks_nothing_is_known():
    """No data, empty launches, single blocks."""
    for data in ([], [[]], [[[]]], [[[1.0], [2.0]]]):
        assert variance_components.components(data) is None


def test_unequal_numbers_of_blocks_are_weighed():
    """Leaving the last blocks out of some launches changes the estimate by chance, not by a factor."""
    rng = np.random.default_rng(4)
    whole, cut = [], []
    for _ in range(300):
        level = np.exp(rng.normal(2, 1) + 0.1 * rng.standard_normal(4))
        data = [value * np.exp(0.05 * rng.standard_normal(6)) for value in level]
        whole.append(variance_components.components([data]).evaluation_sd ** 2)
        cut.append(
            variance_components.components(
                [[data[0][:2], data[1], data[2][:3], data[3]]]
            ).evaluation_sd
            ** 2
        )
    assert np.mean(cut) == pytest.approx(0.1**2, abs=5 * np.std(cut) / 300**0.5)
    assert np.mean(whole) == pytest.approx(0.1**2, abs=5 * np.std(whole) / 300**0.5)


@given(factor=st.floats(0.01, 100), seed=st.integers(0, 1000))
def test_components_do_not_depend_on_the_unit(factor, seed):
    """They are relative: ms or seconds, the same."""
    rng = np.random.default_rng(seed)
    data = np.exp(rng.standard_normal((2, 3, 4)))
    first, second = (
        variance_components.components(data),
        variance_components.components(data * factor),
    )
    assert second.block_sd == pytest.approx(first.block_sd)
    assert second.evaluation_sd == pytest.approx(first.evaluation_sd, abs=1e-6)


def test_measurements_bring_their_blocks(measured):
    """The means of the blocks of each launch are taken."""

    def launch(*means):
        blocks = tuple(
            Block(
                start_s=0.0,
                seconds=0.5,
                requests=10,
                mean_ms=mean,
                p50_ms=mean,
                p99_ms=mean,
                throughput_per_s=20.0,
            )
            for mean in means
        )
        return measured(blocks=blocks)

    found = variance_components.components_of([[launch(1.0, 1.1), launch(1.3, 1.2)]])
    assert found == variance_components.components([[[1.0, 1.1], [1.3, 1.2]]])


def test_the_useful_length_is_the_best_one():
    """No other length has a smaller product of cost and variance; with a larger launch spread it is shorter."""
    found = variance_components.components([[[1.0, 1.1, 0.95], [1.3, 1.2, 1.35], [1.0, 1.2, 1.1]]])
    best = variance_components.useful_seconds(found, start_s=2.0, block_s=0.5)

    def product(seconds):
        return (2.0 + seconds) * (found.evaluation_sd**2 + found.block_sd**2 * 0.5 / seconds)

    for other in np.geomspace(0.01, 100, 200):
        assert product(best) <= product(other) * (1 + 1e-9)
