"""Components of a nested pilot, and variances drawn towards one another."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.measurement import nested
from tuner.measurement.nested import PilotLaunch

BLOCK_S = 0.5
SDS = {"block_sd": 0.08, "launch_sd": 0.06, "time_sd": 0.04}


def pilot(rng, *, configurations=8, turns=6, blocks=6, trend=0.0, missing=0.0, **sds):
    """One pilot of a known model; every configuration has a level of its own."""
    sds = {**SDS, **sds}
    levels = rng.normal(2, 1, configurations)
    launches = []
    for turn in range(turns):
        time = sds["time_sd"] * rng.standard_normal() + trend * turn / (turns - 1)
        for configuration in rng.permutation(configurations):
            if rng.random() < missing:
                continue
            middle = levels[configuration] + time + sds["launch_sd"] * rng.standard_normal()
            means = np.exp(middle + sds["block_sd"] * rng.standard_normal(blocks))
            launches.append(
                PilotLaunch(
                    configuration=int(configuration),
                    turn=turn,
                    started_at=float(len(launches)),
                    blocks=tuple(means.tolist()),
                )
            )
    return launches


def several(seed, times, **model):
    rng = np.random.default_rng(seed)
    return [nested.components(pilot(rng, **model), block_s=BLOCK_S) for _ in range(times)]


@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_known_components_are_found_whatever_is_missing(missing):
    """The variances are right in the mean of 400 pilots, within 5 standard errors (false alarm: 1e-6 each).

    Those that are cut at 0 are so rarely cut here that the mean does not show it.
    """
    found = several(1, 400, missing=missing, time_sd=0.08)
    for name, truth in (("block", 0.08), ("launch", 0.06), ("time", 0.08)):
        variances = np.array([getattr(one, name).sd ** 2 for one in found])
        error = variances.std() / math.sqrt(len(found))
        assert abs(variances.mean() - truth**2) < 5 * error, name


@pytest.mark.parametrize("time_sd", [0.0, 0.04, 0.2])
def test_the_intervals_cover(time_sd):
    """Each holds the truth in 95 % of 600 pilots, less 5 standard errors."""
    found = several(2, 600, time_sd=time_sd)
    least = 0.95 - 5 * math.sqrt(0.05 * 0.95 / 600)
    for name, truth in (("block", 0.08), ("launch", 0.06), ("time", time_sd)):
        ends = [getattr(one, name).interval for one in found]
        assert np.mean([end.low <= truth <= end.high for end in ends]) >= least, name


def test_degrees_are_those_of_the_design():
    found = several(3, 1, configurations=8, turns=6, blocks=6)[0]
    assert (found.block.degrees, found.launch.degrees, found.time.degrees) == (240, 35, 5)


def test_a_drift_is_found_and_its_interval_covers():
    """A machine that becomes 20 % slower over six rounds; 95 % of 400 intervals, less 5 standard errors."""
    found = several(4, 400, trend=math.log(1.2), time_sd=0.01, launch_sd=0.02, block_sd=0.02)
    # The line goes from the first launch to the last, so a little further than from round to round.
    truth = 1.2 ** (47 / 40) - 1
    covers = [one.drift.interval.low <= truth <= one.drift.interval.high for one in found]
    assert np.median([one.drift.change for one in found]) == pytest.approx(truth, abs=0.005)
    assert np.mean(covers) >= 0.95 - 5 * math.sqrt(0.05 * 0.95 / 400)


@given(
    seed=st.integers(0, 10_000),
    factors=st.lists(st.floats(0.01, 100), min_size=4, max_size=4),
    turns=st.lists(st.floats(0.5, 2), min_size=3, max_size=3),
)
def test_neither_units_nor_levels_nor_times_enter_the_noise_of_launches(seed, factors, turns):
    """A configuration that is slower throughout, or a round that is, changes no sd of blocks or launches."""
    launches = pilot(np.random.default_rng(seed), configurations=4, turns=3, blocks=3)
    scaled = [
        PilotLaunch(
            configuration=one.configuration,
            turn=one.turn,
            started_at=one.started_at,
            blocks=tuple(
                block * factors[one.configuration] * turns[one.turn] for block in one.blocks
            ),
        )
        for one in launches
    ]
    before, after = (nested.components(each, block_s=BLOCK_S) for each in (launches, scaled))
    assert after.block.sd == pytest.approx(before.block.sd, rel=1e-6)
    assert after.launch.sd**2 == pytest.approx(before.launch.sd**2, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        ("one round", lambda one: one.turn == 0),
        ("one configuration", lambda one: one.configuration == 0),
        ("nothing", lambda one: False),
    ],
)
def test_what_cannot_be_told_apart_is_not(why, kept):
    launches = [one for one in pilot(np.random.default_rng(5)) if kept(one)]
    usable = nested.usable(launches)
    assert not usable or nested.components(usable, block_s=BLOCK_S) is None, why


def test_launches_of_one_block_and_lone_ones_are_no_use():
    rng = np.random.default_rng(6)
    launches = pilot(rng, configurations=2, turns=2)
    lone = PilotLaunch(configuration=7, turn=0, started_at=0.0, blocks=(1.0, 1.1))
    short = PilotLaunch(configuration=0, turn=5, started_at=0.0, blocks=(1.0,))
    assert nested.usable([*launches, lone, short]) == tuple(launches)


def test_the_best_length_is_the_cheapest_way_to_an_error():
    """No other length gives a smaller error for the same time; a minute's error is that of its launches."""
    found = several(7, 1)[0]
    best = found.best_seconds(0.6)
    errors = [
        found.error_after(60.0, seconds=seconds, overhead_s=0.6)
        for seconds in best * np.geomspace(0.1, 10, 41)
    ]
    assert int(np.argmin(errors)) == 20
    assert errors[20] ** 2 == pytest.approx(
        found.launch_variance(best, over_time=True) * (0.6 + best) / 60
    )


def test_alike_launches_have_no_best_length():
    """Where nothing but blocks differs, longer trials are as good as more of them, and no time is best."""
    launches = [
        PilotLaunch(
            configuration=c,
            turn=t,
            started_at=c + 2.0 * t,
            blocks=tuple(block * 1.01 ** (1 if c == t else -1) for block in (1.0, 1.2, 1.1)),
        )
        for t in range(2)
        for c in range(2)
    ]
    found = nested.components(launches, block_s=BLOCK_S)
    assert (found.launch.sd, found.time.sd) == (0.0, 0.0)
    assert math.isinf(found.best_seconds(1.0))


def test_configurations_alike_are_drawn_wholly_together():
    """Variances that differ by chance alone become nearly the same in most of 200 pilots of 8 configurations."""
    rng = np.random.default_rng(8)
    weights = []
    for _ in range(200):
        degrees = np.full(8, 5.0)
        variances = 0.01 * rng.chisquare(5, 8) / 5
        drawn, weight = nested.shrunken(variances, degrees)
        weights.append(weight)
        if math.isinf(weight):
            assert np.ptp(drawn) == 0
            assert drawn[0] == pytest.approx(float(variances.mean()))
    assert np.median(weights) > 20


def test_shrunken_variances_are_nearer_to_the_truth():
    """Over 300 pilots the squared error of the logarithms is less than half of that of the raw ones."""
    rng = np.random.default_rng(9)
    raw, pooled = 0.0, 0.0
    for _ in range(300):
        truth = 0.01 * np.exp(0.4 * rng.standard_normal(8))
        variances = truth * rng.chisquare(5, 8) / 5
        drawn, _ = nested.shrunken(variances, np.full(8, 5.0))
        raw += float(((np.log(variances) - np.log(truth)) ** 2).sum())
        pooled += float(((np.log(drawn) - np.log(truth)) ** 2).sum())
    assert pooled < raw / 2


@given(
    variances=st.lists(st.floats(0, 10), min_size=1, max_size=12),
    degrees=st.floats(1, 40),
)
def test_shrunken_variances_lie_between_their_own_and_a_common_one(variances, degrees):
    """Each moves towards one value that is the same for all, none beyond it; order is kept."""
    given_ = np.array(variances)
    drawn, weight = nested.shrunken(given_, np.full(len(given_), degrees))
    assert np.isfinite(drawn).all()
    assert (drawn >= 0).all()
    assert weight >= 0
    order = np.argsort(given_, kind="stable")
    assert (np.diff(drawn[order]) >= -1e-12).all()
    assert np.ptp(drawn) <= np.ptp(given_) + 1e-12


def test_a_configuration_that_is_noisier_stays_so():
    """Of eight, one with four times the spread of launches keeps the largest pooled one."""
    rng = np.random.default_rng(10)
    launches = [
        one
        if one.configuration
        else PilotLaunch(
            configuration=0,
            turn=one.turn,
            started_at=one.started_at,
            blocks=tuple(block * factor for block in one.blocks),
        )
        for one in pilot(rng, launch_sd=0.02, block_sd=0.02)
        for factor in [math.exp(0.2 * rng.standard_normal())]
    ]
    own = nested.pooled(launches).own
    assert len(own) == 8
    assert max(own, key=lambda one: one.pooled_launch_sd) is own[0]
    assert all(one.launches == 6 for one in own)
