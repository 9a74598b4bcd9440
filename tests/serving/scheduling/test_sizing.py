"""Batching policies on models whose latency is known."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.scheduling.adaptive.sizing import (
    POLICIES,
    Aimd,
    Delayed,
    Quantile,
    budget_s,
    quantile_line,
)
from serving.settings.scheduling import BatchingSettings

SETTINGS = BatchingSettings(max_size=512, timeout_us=2000, slo_ms=30.0)  # 10 ms a batch


def run(policy, model, batches, seed=0):
    """Full batches on a model, as under overload; the sizes that were used."""
    rng = np.random.default_rng(seed)
    sizes = []
    for _ in range(batches):
        sizes.append(policy.size)
        policy.ran(policy.size, model(policy.size, rng), policy.size)
    return sizes


@pytest.mark.parametrize("base_ms", [0.2, 2.0])
@pytest.mark.parametrize("slope_ms", [0.05, 0.5])
@pytest.mark.parametrize("name", ["aimd", "quantile"])
def test_the_size_finds_the_objective(name, base_ms, slope_ms):
    """The size settles where a batch takes its time, within the back-off's tenth."""
    wanted = (10.0 - base_ms) / slope_ms

    def model(size, rng):
        return 1e-3 * (base_ms + slope_ms * size) * rng.uniform(0.98, 1.0)

    sizes = run(POLICIES[name](SETTINGS), model, 1500)[-300:]
    assert 0.85 * wanted <= np.median(sizes) <= 1.03 * wanted + 1
    assert max(sizes) <= 1.1 * wanted + 2


@pytest.mark.parametrize("name", ["aimd", "quantile"])
def test_a_model_that_becomes_slower_gets_smaller_batches(name):
    """What was learnt is unlearnt."""
    policy = POLICIES[name](SETTINGS)
    run(policy, lambda size, rng: 1e-4 * size, 800)
    assert policy.size > 80
    run(policy, lambda size, rng: 1e-3 * size, 800)
    assert policy.size <= 11


@pytest.mark.parametrize("name", ["aimd", "quantile"])
def test_a_model_that_is_too_slow_for_any_batch_runs_singly(name):
    """One item is the least."""
    policy = POLICIES[name](SETTINGS)
    run(policy, lambda size, rng: 0.05 * size, 100)
    assert policy.size == 1


def test_batches_that_are_not_full_say_nothing_about_larger_ones():
    """Without demand the size does not grow."""
    policy = Aimd(SETTINGS)
    run(policy, lambda size, rng: 1e-4 * size, 20)
    size = policy.size
    for _ in range(50):
        policy.ran(1, 1e-4, 1)
    assert policy.size == size


@pytest.mark.parametrize("items", [1, 8, 64])
def test_one_slow_batch_costs_aimd_a_tenth_however_small_it_was(items):
    """A stall under a single item says little of the sizes that were in time before it."""
    policy = Aimd(SETTINGS)
    run(policy, lambda size, rng: 1e-4 * size, 63)
    assert policy.size == 64
    policy.ran(items, 0.05, items)
    assert policy.size == int(0.9 * 64)


def test_the_regression_is_not_believed_far_from_what_was_seen():
    """From small batches the size grows step by step."""
    policy = Quantile(SETTINGS)
    for _ in range(16):
        policy.ran(1, 1e-5, 1)
    assert policy.size == 2


@pytest.mark.parametrize("factor", [1.5, 3.0, 10.0])
def test_the_regression_does_not_keep_a_slow_spell(factor):
    """Some fifty batches after it the size is what it was, whichever sizes the spell befell."""
    policy = Quantile(BatchingSettings(max_size=16, slo_ms=66.0))  # 22 ms a batch

    def model(size, rng):
        return 1e-3 * (10.0 + 0.625 * size)

    run(policy, model, 100)
    assert policy.size == 16
    run(policy, lambda size, rng: factor * model(size, rng), 60)
    assert policy.size < 16
    run(policy, model, 50)
    assert policy.size == 16


def test_a_size_that_is_too_long_is_tried_in_fewer_than_one_of_a_hundred_batches():
    """Where no line through smaller ones foretells it: one item is in time, two never are."""
    policy = Quantile(SETTINGS)
    run(policy, lambda size, rng: 0.009 if size == 1 else 0.011, 600)
    sizes = run(policy, lambda size, rng: 0.009 if size == 1 else 0.011, 2000)
    assert 0 < sum(size > 1 for size in sizes) < 20


def test_delayed_waits_only_where_company_is_expected():
    """Arrivals each 0.5 ms: worth waiting; each 10 ms: not; after a pause: not."""
    policy = Delayed(BatchingSettings(max_size=4, timeout_us=2000))
    assert policy.wait_s(1) == 0.0
    for i in range(50):
        policy.record_arrival(1.0 + 0.0005 * i)
    assert policy.wait_s(1) == pytest.approx(0.002)
    assert policy.wait_s(3) == pytest.approx(0.001)
    policy.record_arrival(9.0)
    assert policy.wait_s(1) == 0.0
    for i in range(50):
        policy.record_arrival(10.0 + 0.01 * i)
    assert policy.wait_s(1) == 0.0


@given(
    name=st.sampled_from(sorted(POLICIES)),
    ran=st.lists(st.tuples(st.integers(1, 600), st.floats(0, 10)), max_size=80),
    waiting=st.integers(1, 1000),
)
def test_every_policy_keeps_the_bounds(name, ran, waiting):
    """Sizes from 1 to max_size, waits from 0 to the timeout, whatever ran."""
    policy = POLICIES[name](SETTINGS)
    now_s = 0.0
    for items, took_s in ran:
        policy.ran(items, took_s, items)
        now_s += took_s
        policy.record_arrival(now_s)
        assert 1 <= policy.size <= SETTINGS.max_size
        assert 0.0 <= policy.wait_s(waiting) <= 0.002


@given(
    base=st.floats(0, 1), slope=st.floats(0, 1), seed=st.integers(0, 99), share=st.floats(0.5, 0.95)
)
def test_the_line_has_its_share_of_the_points_below(base, slope, seed, share):
    """Quantile regression: about the wanted share of the points lies under the line."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 50, 400).astype(float)
    seconds = 0.5 + base + slope * sizes + rng.uniform(0, 0.5, 400)
    found = quantile_line(sizes, seconds, share)
    under = np.mean(seconds <= found[0] + found[1] * sizes + 1e-6)
    assert under == pytest.approx(share, abs=0.05)


def test_the_time_of_a_batch_is_a_third_of_the_objective():
    """Running, buffered, own."""
    assert budget_s(SETTINGS) == pytest.approx(0.010)


def test_noise_is_no_stall():
    """Of batches whose time is noisy few are late, for what is rare is remembered."""
    late = 0
    for seed in range(4):
        rng = random.Random(seed)
        sizing = Quantile(SETTINGS)
        for number in range(3000):
            items = rng.randint(1, sizing.size) if rng.random() < 0.2 else sizing.size
            took_s = 1e-3 * (2.0 + 0.5 * items) * math.exp(rng.gauss(0.0, 0.2))
            late += number >= 1000 and took_s > 0.01
            sizing.ran(items, took_s, items)
    assert late < 0.015 * 8000
