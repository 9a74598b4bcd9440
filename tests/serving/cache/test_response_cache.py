"""Laws of the prediction cache."""

import hypothesis.strategies as st
from hypothesis import given

from serving.cache.response_cache import CacheKey, ResponseCache
from serving.values import ModelId

MODEL = ModelId("m", "1")
keys = st.binary(max_size=3).map(lambda data: CacheKey(MODEL, 0, data))
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), keys, st.binary(max_size=400)),
        st.tuples(st.just("get"), keys, st.just(b"")),
        st.tuples(st.just("discard"), keys, st.just(b"")),
    ),
    max_size=60,
)


@given(steps, st.integers(0, 3000))
def test_never_over_capacity_and_never_another_answer(steps, capacity):
    """Bytes stay within the capacity, and a hit is what was put last for that very key."""
    cache = ResponseCache(capacity)
    truth = {}
    for what, key, value in steps:
        if what == "put":
            cache.put(key, value)
            truth[key] = value
        elif what == "discard":
            cache.discard(key)
            truth.pop(key, None)
        else:
            found = cache.get(key)
            assert found is None or found == truth[key]
        assert 0 <= cache.bytes <= capacity
    cache.clear()
    assert cache.bytes == 0
    assert len(cache) == 0


def test_least_recently_used_leaves_first():
    """A look-up keeps an entry; the one that nobody asked for goes."""
    cache = ResponseCache(3 * (1 + 100 + 200))
    first, second, third, fourth = (CacheKey(MODEL, 0, bytes([n])) for n in range(4))
    for key in (first, second, third):
        cache.put(key, b"x" * 100)
    assert cache.get(first)
    cache.put(fourth, b"x" * 100)
    assert cache.get(second) is None
    assert cache.get(first)
    assert cache.get(third)


def test_model_and_encoding_are_part_of_the_key():
    """Equal bytes of another version or another form are another input."""
    cache = ResponseCache(10_000)
    cache.put(CacheKey(MODEL, 0, b"a"), b"1")
    assert cache.get(CacheKey(ModelId("m", "2"), 0, b"a")) is None
    assert cache.get(CacheKey(MODEL, 1, b"a")) is None


def test_zero_capacity_keeps_nothing():
    """Capacity 0 is off."""
    cache = ResponseCache(0)
    cache.put(CacheKey(MODEL, 0, b""), b"")
    assert cache.get(CacheKey(MODEL, 0, b"")) is None
