"""Who does not take what is sent."""

from serving.protocol.stalls import LEAST_BYTES, Stalls


def test_who_takes_nothing_is_over():
    """After the time, and until nothing is held any more."""
    stalls = Stalls(30.0)
    assert [stalls.over({"a": 10**6}, now_s) for now_s in (0, 29, 30, 31)] == [[], [], ["a"], ["a"]]
    assert stalls.over({}, 32) == []
    assert stalls.over({"a": 10**6}, 33) == [], "it begins anew"


def test_who_takes_slowly_is_not():
    """A few kilobytes in the time are enough; fewer are not."""
    stalls = Stalls(30.0)
    held = [10**6 - n * LEAST_BYTES for n in range(5)]
    assert [stalls.over({"a": left}, 25 * n) for n, left in enumerate(held)] == [[]] * 5
    stalls = Stalls(30.0)
    assert [stalls.over({"a": 10**6 - n}, 10 * n) for n in range(4)] == [[], [], [], ["a"]]


def test_more_to_send_is_no_progress():
    """What is held may grow and fall again by that: only what was taken counts."""
    stalls = Stalls(30.0)
    held = [10**6, 2 * 10**6, 2 * 10**6 - 1, 2 * 10**6 - LEAST_BYTES]
    assert [stalls.over({"a": left}, 15 * n) for n, left in enumerate(held)] == [[], [], ["a"], []]
