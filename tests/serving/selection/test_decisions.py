"""The bounded log that feedback joins."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from serving.selection.decisions import DecisionLog, size_bytes
from serving.selection.model_output import Label, Scores
from serving.selection.policy import Decision, Query
from tests.fakes.selections import choice_of


def joined(log: DecisionLog, found: Decision | None) -> Decision | None:
    """Join what was found, if anything."""
    if found is not None:
        log.join(found)
    return found


def decision(number: int, user: str = "", hashed: str = "") -> Decision:
    return Decision(
        query=Query(id=number, user=user, input_hash=hashed),
        choice=choice_of(("a",)),
        answers={"a": Label("x")},
        output="x",
    )


def test_feedback_joins_a_decision_once() -> None:
    """A second feedback for the same query finds nothing, and is counted."""
    log = DecisionLog()
    log.put(decision(7))
    assert joined(log, log.find(7)) == decision(7)
    assert joined(log, log.find(7)) is None
    assert (log.joined, log.unmatched, len(log), log.bytes) == (1, 1, 0, 0)


def test_feedback_by_user_and_input_joins_the_newest() -> None:
    """One input twice: the later decision first, then the earlier."""
    log = DecisionLog()
    for number in (1, 2):
        log.put(decision(number, "u", "h"))
    log.put(decision(3, "v", "h"))
    assert joined(log, log.find_by_input("u", "h")) == decision(2, "u", "h")
    assert joined(log, log.find_by_input("u", "h")) == decision(1, "u", "h")
    assert joined(log, log.find_by_input("u", "h")) is None
    assert log.find(3) == decision(3, "v", "h")


def test_a_decision_whose_feedback_was_not_applied_keeps_its_place() -> None:
    """Found but not joined, it stays the oldest: it is not taken for the newest, and leaves first."""
    log = DecisionLog(capacity=2)
    for number in (1, 2):
        log.put(decision(number, "u", "h"))
    assert log.find(1) == decision(1, "u", "h")
    assert log.find_by_input("u", "h") == decision(2, "u", "h")
    log.put(decision(3))
    assert (log.find(1), log.dropped, log.joined) == (None, 1, 0)


def test_the_oldest_leaves_and_is_counted() -> None:
    """Bounded in entries."""
    log = DecisionLog(capacity=2)
    for number in range(5):
        log.put(decision(number))
    assert (len(log), log.dropped) == (2, 3)
    assert log.find(2) is None
    assert log.find(3) == decision(3)


def test_the_log_is_bounded_in_bytes() -> None:
    """Room for three small ones; one with a million scores is dropped at once."""
    log = DecisionLog(capacity_bytes=3 * size_bytes(decision(1)))
    for number in range(5):
        log.put(decision(number))
    assert (len(log), log.dropped) == (3, 2)
    scores = Scores(("x",), (0.5,) * 1_000_000)
    log.put(
        Decision(query=Query(id=9), choice=choice_of(("a",)), answers={"a": scores}, output="x")
    )
    assert (len(log), log.dropped) == (3, 3)


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "find", "find_by_input"]), st.integers(0, 6)), max_size=60
    )
)
@settings(deadline=None)
def test_every_decision_is_in_the_log_joined_or_dropped(steps: list[tuple[str, int]]) -> None:
    """Nothing is lost or counted twice, and the bytes are those of the entries."""
    log, put = DecisionLog(capacity=3), 0
    replaced = 0
    for what, number in steps:
        if what == "put":
            before = len(log), log.dropped
            log.put(decision(number, "u", str(number % 3)))
            put += 1
            replaced += (len(log), log.dropped) == before
        elif what == "find":
            joined(log, log.find(number))
        else:
            joined(log, log.find_by_input("u", str(number % 3)))
        assert len(log) <= 3
        assert log.bytes == len(log) * size_bytes(decision(0, "u", "0"))
    assert put == len(log) + log.joined + log.dropped + replaced
