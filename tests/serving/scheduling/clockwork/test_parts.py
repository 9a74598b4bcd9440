"""The parts of the clockwork scheduler: durations, timelines, promises, and the batches that can still be made."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.scheduling.clockwork.backlog import Backlog
from serving.scheduling.clockwork.durations import WINDOW, Durations, SlidingMaximum
from serving.scheduling.clockwork.model_queue import ModelQueue, PendingRequest
from serving.scheduling.clockwork.timeline import Timeline

RESNET = {1: 0.00273, 2: 0.00405, 4: 0.00588, 8: 0.00993, 16: 0.01733}


def test_a_window_is_worth_its_longest_measurement_and_forgets_the_eleventh_last() -> None:
    window = SlidingMaximum(1.0, 0.1)
    assert window.estimate_s == pytest.approx(1.1), "the profile's, with the guard"
    window.observe(5.0)
    assert window.estimate_s == pytest.approx(5.5)
    for _ in range(WINDOW):
        window.observe(2.0)
    assert window.estimate_s == pytest.approx(2.2)


def test_only_sizes_that_are_the_quickest_way_are_run() -> None:
    """Five items as four and one take 8.6 ms, padded to eight 9.9; seven padded to eight are quicker than split."""
    durations = Durations(RESNET, most=16, duration_margin=0.0, pads=True)
    assert durations.sizes == [1, 2, 3, 4, 6, 7, 8, 13, 14, 15, 16]
    assert durations.quickest_s(5) == pytest.approx(RESNET[4] + RESNET[1])
    assert durations.quickest_s(33) == pytest.approx(2 * RESNET[16] + RESNET[1])


@given(
    told=st.dictionaries(st.integers(1, 20), st.floats(1e-4, 0.1), min_size=1, max_size=6),
    most=st.integers(1, 20),
    pads=st.booleans(),
    count=st.integers(1, 60),
)
def test_the_cost_of_items_adds_up(
    told: dict[int, float], most: int, pads: bool, count: int
) -> None:
    """One item more costs nothing less, and no batch that may be run is dearer than its parts."""
    durations = Durations(told, most=most, duration_margin=0.0, pads=pads)
    assert durations.quickest_s(count) >= durations.quickest_s(count - 1) * (1 - 1e-9)
    assert durations.sizes[0] == 1
    for place, size in enumerate(durations.sizes):
        assert durations.estimate_s[place] <= size * durations.estimate_s[0] * (1 + 1e-9)


def test_what_ends_early_moves_what_follows() -> None:
    timeline = Timeline(SlidingMaximum(0.0, 0.0))
    timeline.add(1, 1.0, 0.5)
    timeline.add(2, 1.5, 0.5)
    assert timeline.free_s(1.2) == pytest.approx(2.0)
    timeline.record_end(1, 1.3)
    assert timeline.free_s(1.3) == pytest.approx(1.8)
    timeline.record_end(2, 1.9)
    assert timeline.free_s(1.9) == pytest.approx(1.9)


def test_what_is_late_is_trusted_less_the_longer_it_is() -> None:
    timeline = Timeline(SlidingMaximum(0.0, 0.0))
    timeline.add(1, 1.0, 0.5)
    assert timeline.free_s(1.6) == pytest.approx(1.7)
    assert timeline.free_s(2.5) == pytest.approx(3.5)


deadlines = st.one_of(st.floats(0.0, 0.4), st.floats(0.001, 1.0), st.floats(0.0, 100.0))
promises = st.lists(st.tuples(deadlines, st.floats(0.0, 0.05)), min_size=1, max_size=30)


def promised_by(backlog: Backlog, due_s: float, work_s: float, now_s: float = 0.0) -> float | None:
    """Promise work, if it fits; returns its cell."""
    cell_s = backlog.bucket_s(due_s, now_s)
    if not backlog.fits(cell_s, due_s, work_s, free_s=now_s):
        return None
    backlog.add(cell_s, due_s, work_s)
    return cell_s


@given(promised=promises, deadline_s=deadlines, work_s=st.floats(0.001, 0.05))
def test_promises_that_fit_are_kept_earliest_deadline_first(
    promised: list[tuple[float, float]], deadline_s: float, work_s: float
) -> None:
    """Whatever was promised one by one can be done in time, near and far, by a simple simulation."""
    backlog = Backlog()
    kept: list[tuple[float, float]] = []
    for due_s, work in [*promised, (deadline_s, work_s)]:
        if promised_by(backlog, due_s, work) is not None:
            kept.append((due_s, work))
    done_s = 0.0
    for due_s, work in sorted(kept):
        done_s += work
        assert done_s <= due_s
    assert backlog.total_s == pytest.approx(sum(work for _, work in kept))


@given(
    asked=st.lists(
        st.tuples(st.floats(0.0, 0.1), deadlines, st.floats(1e-4, 0.05)), min_size=1, max_size=60
    ),
    ahead_s=st.sampled_from([0.0, 0.01]),
)
def test_what_runs_by_its_cells_is_in_time_as_time_passes(
    asked: list[tuple[float, float, float]], ahead_s: float
) -> None:
    """Work comes while other work is done: whatever was let in when it came is in time, and all is kept throughout."""
    backlog, now_s, free_s = Backlog(), 0.0, 0.0
    left: list[tuple[float, float, float]] = []

    def run(until_s: float) -> None:
        nonlocal free_s
        while left and free_s <= until_s + ahead_s:
            cell_s, due_s, work_s = left.pop(0)
            assert backlog.keeps(free_s + work_s, [(cell_s, work_s)])
            backlog.remove(cell_s, work_s)
            free_s += work_s
            assert free_s <= due_s

    for after_s, within_s, work_s in asked:
        now_s += after_s
        run(now_s)
        free_s = max(free_s, now_s)
        due_s = now_s + within_s
        cell_s = backlog.bucket_s(due_s, now_s)
        assert cell_s <= due_s
        if backlog.fits(cell_s, due_s, work_s, free_s=free_s):
            backlog.add(cell_s, due_s, work_s)
            left.append((cell_s, due_s, work_s))
            left.sort()
        assert backlog.keeps(free_s)
    run(1e9)
    assert backlog.total_s == 0.0


@given(work_s=st.floats(1e-4, 0.01), seed=st.integers(0, 1000))
def test_rounded_deadlines_cost_a_fiftieth_of_the_time(work_s: float, seed: int) -> None:
    """What would be in time with a fiftieth of its time less, fits."""
    rng = random.Random(seed)
    backlog, kept = Backlog(), list[tuple[float, float]]()
    for _ in range(60):
        due_s = 10.0 ** rng.uniform(-2.0, 2.0)
        done_s, fits = 0.0, True
        for its_s, its_work_s in sorted([*kept, (due_s, work_s)]):
            done_s += its_work_s
            fits = fits and done_s <= 0.98 * its_s - 1e-6
        found = promised_by(backlog, due_s, work_s) is not None
        assert found or not fits
        if found:
            kept.append((due_s, work_s))


@given(
    promised=promises,
    times=st.lists(st.floats(0.0, 0.2), min_size=1, max_size=10),
    question=st.tuples(st.floats(0.0, 0.15), st.floats(0.001, 0.05)),
)
def test_promises_that_are_taken_back_leave_nothing(
    promised: list[tuple[float, float]],
    times: list[float],
    question: tuple[float, float],
) -> None:
    """Added and removed, across moments that pass in between, a backlog answers like a new one."""
    backlog, new = Backlog(), Backlog()
    noted = []
    now_s = 0.0
    for number, (after_s, work_s) in enumerate(promised):
        now_s += times[number % len(times)] / 10
        cell_s = backlog.bucket_s(now_s + after_s, now_s)
        backlog.add(cell_s, now_s + after_s, work_s)
        noted.append((cell_s, work_s))
    for cell_s, work_s in noted:
        now_s += 0.01
        backlog.remove(cell_s, work_s)
    after_s, work_s = question
    room_s = after_s - work_s
    if abs(room_s) > 1e-6:
        answers = [
            promised_by(one, now_s + after_s, work_s, now_s) is not None for one in (backlog, new)
        ]
        assert answers == [room_s > 0.0] * 2


def waiting(*deadlines_s: float) -> ModelQueue:
    found = ModelQueue()
    for number, deadline_s in enumerate(deadlines_s):
        found.push(PendingRequest(number, 1, deadline_s, deadline_s), 1)
    return found


SIZES, WORTH_S = (1, 2, 4), (1.0, 1.5, 2.0)


@pytest.mark.parametrize(
    ("deadlines_s", "start_s", "size", "first", "why"),
    [
        ((9, 9, 9, 9), 0.0, 4, 0, "all are in time together"),
        ((9, 9, 9), 0.0, 2, 0, "three are no size"),
        ((1.2, 9, 9, 9), 0.0, 1, 0, "the first alone, and the others after it"),
        ((1.2, 2.5, 2.5, 2.5, 2.5), 0.0, 4, 1, "four without the first, who would cost them"),
        ((0.5, 9), 0.0, 1, 1, "the first cannot be in time any more"),
        ((0.5,), 0.0, None, None, "nobody can"),
        ((), 0.0, None, None, "nobody waits"),
    ],
)
def test_the_largest_batch_in_time_is_chosen(
    deadlines_s: tuple[float, ...],
    start_s: float,
    size: int | None,
    first: int | None,
    why: str,
) -> None:
    chosen = waiting(*deadlines_s).choose(start_s, SIZES, WORTH_S)
    found = (None, None) if chosen is None else (SIZES[chosen.place], chosen.first)
    assert found == (size, first), why


@given(
    deadlines_s=st.lists(st.floats(0.0, 20.0), max_size=12),
    start_s=st.floats(0.0, 10.0),
)
def test_every_member_of_a_chosen_batch_is_in_time(
    deadlines_s: list[float], start_s: float
) -> None:
    queue = waiting(*deadlines_s)
    chosen = queue.choose(start_s, SIZES, WORTH_S)
    assert queue.deadlines_s == sorted(deadlines_s)
    if chosen is None:
        assert all(deadline_s < start_s + WORTH_S[0] for deadline_s in deadlines_s)
        return
    took_s = WORTH_S[chosen.place]
    members = queue.take(chosen.first, SIZES[chosen.place])
    assert len(members) == SIZES[chosen.place]
    assert all(entry.deadline_s >= start_s + took_s for entry in members)
    assert len(queue) == len(deadlines_s) - len(members)


def test_items_of_a_request_wait_leave_and_come_back_one_by_one() -> None:
    queue = ModelQueue()
    one, other = PendingRequest(1, 3, 5.0, 5.0), PendingRequest(2, 1, 4.0, 4.0)
    assert queue.push(one, 3), "it is the first"
    assert queue.push(other, 1), "earlier than the first"
    assert [entry.id for entry in queue.take(0, 2)] == [2, 1]
    assert [one.give(), one.give()] == [0, 1]
    one.returned.append(0)
    queue.push(one, 1)
    assert len(queue) == 3 - 1 + 1
    assert one.give() == 0, "what came back goes first"
    queue.remove(one)
    assert not len(queue)
    assert one.waits == 0


def test_one_that_is_not_begun_while_another_runs_takes_its_own_time_away() -> None:
    """The first of three runs; the second is not run; the third follows the first."""
    line = Timeline(SlidingMaximum(0.0, 0.0))
    for action in (1, 2, 3):
        line.add(action, 10.0 + 2.0 * action, 2.0)
    assert line.free_s(12.0) == pytest.approx(18.0)
    line.record_end(2, 12.5)
    assert line.free_s(12.5) == pytest.approx(16.0)
    line.record_end(1, 14.5)
    assert line.free_s(14.5) == pytest.approx(16.5)
    line.record_end(3, 16.5)
    assert (len(line), line.free_s(16.5)) == (0, 16.5)


@example(told={1: 0.1}, most=1, pads=False, steps=[(1, 0.05), (0, 1.0)])
@example(told={1: 0.01, 2: 0.02}, most=2, pads=False, steps=[(1, 0.002), (2, 0.006), (0, 1.0)])
@given(
    told=st.dictionaries(st.integers(1, 20), st.floats(1e-4, 0.1), min_size=1, max_size=6),
    most=st.integers(1, 20),
    pads=st.booleans(),
    steps=st.lists(st.tuples(st.integers(0, 21), st.floats(1e-4, 0.1)), max_size=25),
)
def test_ways_follow_what_was_measured(
    told: dict[int, float], most: int, pads: bool, steps: list[tuple[int, float]]
) -> None:
    """Whatever was measured or doubted (a step of no items), they are those of a profile that tells the same."""
    most = min(most, max(told))
    durations = Durations(told, most=most, duration_margin=0.0, pads=pads)
    flat = Durations(told, most=20, duration_margin=0.0, pads=pads)
    sizes = sorted(told)
    alike = [
        next(size for size in sizes if size >= count) if pads else count
        for count in range(1, most + 1)
    ]
    windows = {size: SlidingMaximum(flat._seeds_s[size - 1], 0.0) for size in alike}
    seen: set[int] = set()
    for count, took_s in steps:
        if not count:
            before_s = durations.quickest_s(most)
            doubted = [windows[size].drop_longest() for size in seen]
            assert durations.drop_longest() == any(doubted)
            assert durations.quickest_s(most) <= before_s
            continue
        durations.observe(count, took_s)
        if count <= most:
            seen.add(alike[count - 1])
            windows[alike[count - 1]].observe(took_s)
    worth_s = {count: windows[alike[count - 1]].estimate_s for count in range(1, most + 1)}
    expected = Durations(worth_s, most=most, duration_margin=0.0)
    assert durations.sizes == expected.sizes
    assert durations.estimate_s == expected.estimate_s
    counts = range(1, most + 1)
    assert list(map(durations.quickest_s, counts)) == list(map(expected.quickest_s, counts))
    assert durations.item_s == expected.item_s


@given(st.lists(st.tuples(st.floats(0.0, 0.1), st.integers(0, 3), st.floats(1e-4, 0.05))))
def test_when_an_executor_is_free_is_what_its_actions_tell(
    steps: list[tuple[float, int, float]],
) -> None:
    """Whatever ended when: it is late by what the first of those that are left is late, and free behind the last."""
    timeline, now_s, ends_s = Timeline(SlidingMaximum(0.0, 0.0)), 0.0, list[tuple[int, float]]()
    for number, (later_s, kind, took_s) in enumerate(steps):
        now_s += later_s
        if kind < 2 or not ends_s:
            start_s = max(now_s, timeline.free_s(now_s))
            assert timeline.add(number, start_s, took_s) == start_s + took_s
            ends_s.append((number, start_s + took_s))
        elif kind == 2 or len(ends_s) == 1:
            (action, end_s), *left = ends_s
            timeline.record_end(action, now_s)
            ends_s = [(one, its_s + now_s - end_s) for one, its_s in left]
            if not left:
                assert timeline.free_s(now_s) == now_s
        else:
            action, end_s = ends_s[1]
            timeline.record_end(action, now_s)
            less_s = end_s - ends_s[0][1]
            ends_s = [ends_s[0], *((one, its_s - less_s) for one, its_s in ends_s[2:])]
        assert len(timeline) == len(ends_s)
        if ends_s:
            late_s = max(0.0, now_s - ends_s[0][1])
            expected_s = ends_s[-1][1] + 2 * late_s
            assert timeline.free_s(now_s) == pytest.approx(expected_s, abs=1e-9)
