"""A table replayed in time: truths, the course of the machine, what takes time, and what is laid over it."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest

from tests.fakes import benches, recorded
from tuner.lab import prepared_table, replay_search
from tuner.lab.prepared_table import PreparedTable
from tuner.lab.tables import table_evaluator
from tuner.lab.tables.table_evaluator import Perturbations, TableEvaluator
from tuner.load_generator.plan import Race
from tuner.measurement.host import log_cpu_per_request
from tuner.measurement.time_slices import SWITCH_S
from tuner.sampling.candidates import CandidateSet
from tuner.values.measurement import HostNoise

TABLE = recorded.table(passes=6)


@functools.cache
def ground(slow_part_s: float = 0.0, sd: float = 0.0) -> PreparedTable:
    """The toy's table; on a machine whose speed has moved, if asked."""
    return prepared_table.prepare_table(
        recorded.on_a_moving_machine(TABLE, period_s=slow_part_s, sd=sd) if sd else TABLE
    )


def bench(seed: int = 0, of: PreparedTable | None = None, **given: object) -> TableEvaluator:
    return replay_search.make_evaluator(of or ground(), Perturbations(**given), seed)  # type: ignore[arg-type]


def mean_ms(found: TableEvaluator, cell: object) -> float:
    measured = found.evaluate(cell).measurement  # type: ignore[arg-type]
    assert measured is not None
    return measured.mean_ms


def test_evaluations_lie_about_the_truth() -> None:
    """Over the course, cells differ as their truths do, also those recorded in another session only."""
    later = recorded.table(passes=6, seed=1).evaluations[-40:]
    slower = [
        dataclasses.replace(
            one,
            blocks=tuple(dataclasses.replace(b, mean_ms=1.3 * b.mean_ms) for b in one.blocks),
            number=1_000 + n,
            started_at=one.started_at + 5e4,
        )
        for n, one in enumerate(later)
        if one.blocks
    ]
    both = dataclasses.replace(TABLE, evaluations=(*TABLE.evaluations, *slower))
    moved = prepared_table.prepare_table(recorded.on_a_moving_machine(both, period_s=60.0, sd=0.2))
    truth, biases = moved.truth, []
    for place in (0, 1, 2, len(truth.candidates) - 1, truth.best):
        found = bench(0, moved)
        logs = []
        for _ in range(200):
            found.wait(7.3)
            logs.append(math.log(mean_ms(found, truth.candidates[place])))
        biases.append(np.mean(logs) - truth.log_mean[place])
    assert np.ptp(biases) < 0.03
    assert np.mean(biases) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("objective", ["p95", "p99"])
def test_every_evaluation_of_a_tail_lies_about_the_truth(objective: str) -> None:
    """Over the whole course, whichever recorded evaluation of the cell is replayed."""
    moved = recorded.on_a_moving_machine(TABLE, period_s=60.0, sd=0.2)
    of = prepared_table.prepare_table(moved, objective)
    found, truth, logs = bench(0, of), of.truth, []
    every = np.arange(len(of.course.tail))
    for place, cell in list(enumerate(truth.candidates))[::20]:
        for template in of.templates[cell]:
            measured = moved.measurement_of(found.moved(template, cell, every, warmup_s=0.3))
            assert measured is not None
            value = getattr(measured, f"{objective}_ms")
            logs.append(math.log(value) - truth.log_mean[place])
    assert np.ptp(logs) < 0.02


def test_a_trial_takes_its_startup_warm_up_and_load() -> None:
    found, cell = bench(), TABLE.head.default
    first, second = found.evaluate(cell), found.evaluate(cell)
    assert first.loaded_s == pytest.approx(0.7, abs=0.1)
    assert found.seconds == pytest.approx(0.2 + first.loaded_s + second.loaded_s)
    assert second.started_at - first.started_at == pytest.approx(0.1 + first.loaded_s)


def test_two_seeds_begin_at_two_moments() -> None:
    cell = TABLE.head.default
    assert mean_ms(bench(1), cell) != mean_ms(bench(2), cell)
    assert mean_ms(bench(1), cell) == mean_ms(bench(1), cell)


def test_the_machine_moves_while_a_search_waits_and_is_the_same_for_all() -> None:
    """Speed is of the moment: successive evaluations share it, those half a period apart do not."""
    moved = ground(60.0, 0.2)
    cells = moved.truth.candidates[:2]
    near, far = [], []
    for seed in range(60):
        found = bench(seed, moved)
        truths = [moved.truth.log_mean[place] for place in (0, 1, 0)]
        first, second = (math.log(mean_ms(found, cell)) for cell in cells)
        found.wait(30.0 - 1.6)
        third = math.log(mean_ms(found, cells[0]))
        left = np.array([first, second, third]) - truths
        near.append(left[:2])
        far.append(left[[0, 2]])
    assert np.corrcoef(np.array(near).T)[0, 1] > 0.8
    assert np.corrcoef(np.array(far).T)[0, 1] < -0.5
    assert np.std(near) == pytest.approx(0.2, rel=0.25)


def test_slices_of_a_round_cancel_the_machine() -> None:
    """The ratio of two equal arms varies by far less in slices than between evaluations in turn."""
    moved = ground(60.0, 0.2)
    cell = moved.problem.default
    apart, sliced = [], []
    for seed in range(40):
        found = bench(seed, moved)
        found.node = str(seed)
        first = mean_ms(found, cell)
        found.wait(10.0)
        apart.append(math.log(first / mean_ms(found, cell)))
        rounds = found.rounds({"a": cell, "b": cell}, latency_s=0.01)
        before_s = found.seconds
        made = [one for _, one in rounds.round(["a", "b"])]
        assert {one.node for one in made} == {found.node}
        both = [one.measurement for one in made]
        assert both[0] is not None
        assert both[1] is not None
        sliced.append(math.log(both[0].mean_ms / both[1].mean_ms))
        parts = 4 * rounds.slices.quartets
        each_s = rounds.slices.seconds + rounds.slices.dropped_s + SWITCH_S
        assert found.seconds - before_s == pytest.approx(0.2 + parts * each_s)
    assert np.std(sliced) < 0.25 * np.std(apart)


def test_cpu_time_tells_of_the_machine() -> None:
    """Latency and CPU time of a request move together, as they were recorded."""
    moved = ground(60.0, 0.2)
    rows = []
    for seed in range(60):
        measured = bench(seed, moved).evaluate(moved.problem.default).measurement
        assert measured is not None
        effort = log_cpu_per_request(measured)
        assert effort is not None
        rows.append((math.log(measured.mean_ms), effort))
    assert np.corrcoef(np.array(rows).T)[0, 1] > 0.8


def test_noise_is_of_an_evaluation_and_without_bias() -> None:
    """And it is no work: else the search could read it off the CPU time."""
    moved = ground(60.0, 0.2)
    cell, factors, efforts = moved.problem.default, [], []
    for seed in range(200):
        plain, noisy = (
            bench(seed, moved, noise_sd=sd).evaluate(cell).measurement for sd in (0.0, 0.2)
        )
        assert plain is not None
        assert noisy is not None
        factors.append(math.log(noisy.mean_ms / plain.mean_ms))
        efforts.append((log_cpu_per_request(noisy) or 0.0) - (log_cpu_per_request(plain) or 0.0))
    assert np.std(factors) == pytest.approx(0.2, rel=0.2)
    assert np.mean(factors) == pytest.approx(0.0, abs=0.04)
    assert abs(np.corrcoef(factors, efforts)[0, 1]) < 0.3


def test_what_others_take_is_noticed_and_measured_again() -> None:
    """A stretch in which the recording saw another process is repeated, and the repeat takes time."""
    disturbed = [
        dataclasses.replace(one, noise=dataclasses.replace(one.noise, neighbour_cpu_s=4.0))
        if 40 <= one.number % 100 < 50
        else one
        for one in TABLE.evaluations
    ]
    found = prepared_table.prepare_table(dataclasses.replace(TABLE, evaluations=tuple(disturbed)))
    replayed = bench(0, found)
    runs = [replayed.evaluate(found.problem.default) for _ in range(300)]
    repeated = [one for one in runs if one.measurement is not None and one.measurement.repeats]
    assert 0.02 < len(repeated) / len(runs) < 0.3
    usual_s = np.median([one.loaded_s for one in runs])
    assert all(one.loaded_s > 1.5 * usual_s for one in repeated)


def test_an_evaluation_ends_with_the_block_that_loses() -> None:
    """Its blocks and its time are those up to there; one that keeps up is whole."""
    whole = bench().evaluate(TABLE.head.default)
    assert whole.measurement is not None
    mean = whole.measurement.mean_ms
    kept = bench().evaluate(TABLE.head.default, Race(look_s=0.15, limits_ms=(2 * mean,) * 3))
    assert kept.measurement == whole.measurement
    cut = bench().evaluate(TABLE.head.default, Race(look_s=0.15, limits_ms=(2 * mean, 0.1, 0.1)))
    assert cut.measurement is not None
    assert cut.measurement.ended_early
    assert cut.measurement.seconds == pytest.approx(0.3)
    assert cut.loaded_s == pytest.approx(whole.loaded_s - 0.3)


def test_a_shortened_evaluation_keeps_the_cpu_time_of_a_request() -> None:
    """Else trials that end early would look as if they had met a slow moment."""
    launch = next(one for one in TABLE.evaluations if len(one.blocks) > 2)
    noise = HostNoise(client_cpu_s=0.4, server_cpu_s=1.2)
    launch = dataclasses.replace(launch, noise=noise)
    rates = [block.throughput_per_s for block in launch.blocks]

    def effort(blocks: int) -> float:
        measured = TABLE.measurement_of(table_evaluator.shorten(launch, blocks))
        assert measured is not None
        found = log_cpu_per_request(measured)
        assert found is not None
        return found

    for blocks in (1, 2):
        # The same CPU seconds per second; what differs is the rate of the blocks that are left.
        rate = np.log(np.mean(rates) / np.mean(rates[:blocks]))
        assert effort(blocks) == pytest.approx(effort(len(rates)) + rate, abs=0.02)


def test_on_a_null_table_all_are_the_default() -> None:
    cells = ground().truth.candidates[:3]
    values = [mean_ms(bench(5, is_null=True), cell) for cell in cells]
    assert values == [values[0]] * 3


def test_a_cell_that_failed_fails_again() -> None:
    lost = next(iter(ground().truth.unsuccessful))
    found = bench().evaluate(lost)
    assert found.measurement is None
    assert found.outcome.status == "infeasible"


@pytest.mark.parametrize("seed", range(10))
def test_walls_leave_the_default_and_the_optimum(seed: int) -> None:
    arena = benches.arena()
    candidates = CandidateSet.of(tuple(TABLE.by_cell), arena.space.encode)
    kept = (TABLE.head.default, candidates.configurations[7])
    walled = table_evaluator.with_oom(candidates, kept, np.random.default_rng(seed))
    assert not walled & set(kept)
    assert 0.1 < len(walled) / len(candidates.configurations) <= table_evaluator.OOM_SHARE + 0.01
    found = bench()
    found.with_oom = walled
    lost = found.evaluate(next(iter(walled)))
    assert lost.measurement is None
    assert lost.outcome.cause == "oom"
