"""Who does not take what is sent."""

from serving.api.transport.slow_clients import MIN_BYTES, SlowClientDetector


def test_who_takes_nothing_is_over():
    """After the time, and until nothing waits any more."""
    stalls = SlowClientDetector()
    assert [stalls.find_stalled({"a": 7}, now_s) for now_s in (0, 29, 30, 31)] == [
        [],
        [],
        ["a"],
        ["a"],
    ]
    assert stalls.find_stalled({}, 32) == []
    assert stalls.find_stalled({"a": 7}, 33) == [], "it begins anew"


def test_who_takes_slowly_is_not():
    """A few kilobytes in the time are enough; fewer are not."""
    stalls = SlowClientDetector()
    assert [stalls.find_stalled({"a": n * MIN_BYTES}, 25 * n) for n in range(5)] == [[]] * 5
    stalls = SlowClientDetector()
    assert [stalls.find_stalled({"a": n}, 10 * n) for n in range(4)] == [[], [], [], ["a"]]
