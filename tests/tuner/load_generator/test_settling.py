"""When the answers of a load have settled."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.load_generator.phase import BATCH, LOOK_S, MIN_BATCHES, Settling, beginning, has_settled


def decaying(count, *, slow, factor=3.0, seed=0):
    """Round trips that begin `factor` times as long, and settle after `slow` of them."""
    rng = np.random.default_rng(seed)
    level = np.where(np.arange(count) < slow, factor, 1.0)
    return (level * rng.lognormal(0, 0.3, count)).tolist()


@pytest.mark.parametrize("slow", [100, 400])
def test_a_slow_beginning_is_waited_for_and_no_longer_than_it_took_again(slow):
    """It has settled when the slow beginning is less than half of what was seen."""
    took = decaying(4 * slow, slow=slow)
    assert not has_settled(took[: int(1.5 * slow)])
    assert has_settled(took[: int(2.6 * slow)])


def test_what_is_steady_has_mostly_settled_at_once():
    """In nine of ten loads."""
    seen = [has_settled(decaying(200, slow=0, seed=seed)) for seed in range(200)]
    assert np.mean(seen) > 0.85


def test_a_few_answers_tell_nothing():
    """Eight batches at least."""
    assert not has_settled([1.0] * (BATCH * MIN_BATCHES - 1))
    assert has_settled([1.0] * (BATCH * MIN_BATCHES))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_the_beginning_is_the_one_of_the_least_error(means):
    """As by its definition, and never more than three quarters."""
    found = beginning(means)
    assert 0 <= found <= 0.75 * len(means)
    if len(means) > 1:
        errors = {
            place: float(np.var(means[place:])) / (len(means) - place)
            for place in range(len(means) - 1)
            if 4 * (len(means) - place) >= len(means)
        }
        assert errors[found] == pytest.approx(min(errors.values()), abs=1e-9)


def test_a_warm_up_waits_until_latencies_have_settled_but_not_for_ever() -> None:
    begun_s = [0.01 * place for place in range(60)]
    steady_s = [begin + 0.02 for begin in begun_s]
    late_s = [begin + (0.2 if place < 40 else 0.02) for place, begin in enumerate(begun_s)]
    settling = Settling(0.1, 2.0)
    assert settling.is_waiting(0.05, begun_s, steady_s)
    assert settling.is_waiting(0.6, begun_s, late_s)
    assert settling.is_waiting(0.6 + LOOK_S / 2, begun_s, steady_s)
    assert not settling.is_waiting(0.6 + LOOK_S, begun_s, steady_s)
    assert not Settling(0.1, 2.0).is_waiting(2.2, begun_s, late_s)
    assert not Settling(0.1, 0.0).is_waiting(0.05, begun_s, late_s)
