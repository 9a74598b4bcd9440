import dataclasses

import numpy as np
import pytest

from tests.fakes import studies
from tuner.report import importance
from tuner.values.configuration import Configuration
from tuner.values.study_record import KnobInfo

STRONG = KnobInfo(
    name="batching.max_size", unit="items", scale="log", values=(1, 2, 4, 8), default=1
)
IDLE = KnobInfo(name="replica.threads", unit="threads", scale="linear", values=(1, 2, 3), default=1)


def planted(rng, *, trials=40, effect=0.5, noise=0.1, origin="initial"):
    """A study in which only one of two knobs changes the objective, by `effect` per doubling."""
    base = studies.study(trials=1)
    first = base.trials[0]
    made = []
    for number in range(trials):
        size = int(rng.choice(STRONG.values))
        values = {"batching.max_size": size, "replica.threads": int(rng.choice(IDLE.values))}
        mean_ms = 20 * size**-effect * float(np.exp(rng.normal(0, noise)))
        made.append(
            dataclasses.replace(
                first,
                number=number,
                origin=origin,
                configuration=Configuration(values),
                measurement=dataclasses.replace(first.measurement, mean_ms=mean_ms),
            )
        )
    return dataclasses.replace(base, knobs=(STRONG, IDLE), trials=tuple(made))


def test_the_knob_with_an_effect_explains_the_variance():
    """A planted effect is found, above chance; the idle knob's interval reaches zero."""
    found = importance.main_effects(planted(np.random.default_rng(1)), np.random.default_rng(0))
    strong, idle = found.shares
    assert (strong.knob.name, idle.knob.name) == ("batching.max_size", "replica.threads")
    assert strong.share > 0.8 > strong.chance
    assert idle.interval.low == 0
    assert strong.interval.low <= strong.share <= strong.interval.high


def test_idle_knobs_rarely_pass_the_level_of_chance():
    """Of 200 idle knobs about 10 pass (5 %); more than 23 do in one of 10,000 such tests."""
    passed = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        found = importance.main_effects(planted(rng, effect=0.0), rng, resamples=100)
        passed += sum(share.share > share.chance for share in found.shares)
    assert passed <= 23


def test_an_idle_knob_explains_nothing_on_average():
    """The correction for levels works: shares of noise average to zero within four standard errors."""
    rng = np.random.default_rng(7)
    groups = rng.integers(4, size=30)
    groups[:4] = range(4)
    shares = [importance.epsilon_squared(groups, rng.normal(size=30)) for _ in range(2000)]
    assert abs(np.mean(shares)) < 4 * np.std(shares) / np.sqrt(len(shares))


def test_a_perfect_knob_explains_everything():
    """Without any noise within the levels the share is one; without any difference it is zero."""
    groups = np.repeat([0, 1, 2], 5)
    assert importance.epsilon_squared(groups, groups.astype(float)) == pytest.approx(1.0)
    assert importance.epsilon_squared(groups, np.ones(15)) == 0.0


def test_too_few_trials_are_not_judged():
    """Below a dozen trials, or without any difference, there is no importance."""
    rng = np.random.default_rng(0)
    assert importance.main_effects(planted(rng, trials=11), rng) is None
    assert importance.main_effects(planted(rng, effect=0.0, noise=0.0), rng) is None
    assert importance.main_effects(studies.all_failed(), rng) is None


def test_the_initial_design_is_used_alone_when_it_is_large_enough():
    """Guided trials are left out beside 20 initial ones, used otherwise; random search is used whole."""
    rng = np.random.default_rng(0)
    study = planted(rng, trials=40)
    guided = tuple(dataclasses.replace(trial, origin="guided") for trial in study.trials[25:])
    mixed = dataclasses.replace(study, trials=(*study.trials[:25], *guided))
    assert len(importance.basis(mixed)[0]) == 25
    assert len(importance.basis(dataclasses.replace(mixed, sampler="random"))[0]) == 40
    few = dataclasses.replace(study, trials=(*study.trials[:10], *guided))
    assert len(importance.basis(few)[0]) == 25


def test_levels_hold_enough_trials():
    """Values with few trials join their neighbours; every level has at least three trials."""
    study = studies.study(trials=40)
    trials = tuple(trial for trial in study.trials if trial.measurement)
    for knob in study.knobs:
        counts = np.bincount(importance.levels(knob, trials))
        assert counts.sum() == len(trials)
        assert len(counts) == 1 or counts.min() >= importance.LEVEL_TRIALS
