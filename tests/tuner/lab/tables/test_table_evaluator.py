"""Launches drawn from a table, and what is laid over it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.fakes import benches, recorded
from tuner.lab import prepared_table, replay_search
from tuner.lab.tables import table_evaluator
from tuner.lab.tables.ground_truth import split
from tuner.lab.tables.table_evaluator import Perturbations, TableEvaluator
from tuner.measurement.host import log_cpu_per_request
from tuner.sampling.candidates import CandidateSet
from tuner.values.measurement import HostNoise

TABLE = recorded.table(passes=6)
HALVES = split(TABLE)


def bench(seed: int = 0, **given: object) -> TableEvaluator:
    return TableEvaluator(TABLE, HALVES.drawn, np.random.default_rng(seed), **given)  # type: ignore[arg-type]


def test_what_is_drawn_is_never_the_truth() -> None:
    for cell, launches in TABLE.by_cell.items():
        first, second = HALVES.drawn[cell], HALVES.held_out[cell]
        assert sorted([*first, *second], key=lambda one: one.number) == list(launches)
        assert len(first) - len(second) in {0, 1}


def test_every_launch_of_a_cell_is_drawn_before_one_comes_again() -> None:
    cell = TABLE.head.default
    found = bench()
    starts = [found.evaluate(cell).started_at for _ in range(6)]
    assert set(starts[:3]) == set(starts[3:]) == {one.started_at for one in HALVES.drawn[cell]}
    assert found.seconds == pytest.approx(6 * 2.6)


def test_two_seeds_draw_in_two_orders() -> None:
    cells = list(TABLE.by_cell)
    first, second = ([bench(seed).evaluate(cell).started_at for cell in cells] for seed in (1, 2))
    assert first != second


def test_noise_is_of_a_launch_and_without_bias() -> None:
    cell = TABLE.head.default
    plain = {launch.started_at: launch for launch in (bench().evaluate(cell) for _ in range(1))}
    del plain
    noisy = bench(noise_sd=0.2)
    factors = []
    for _ in range(400):
        launch = noisy.evaluate(cell)
        (was,) = [one for one in HALVES.drawn[cell] if one.started_at == launch.started_at]
        before = TABLE.measurement_of(was)
        assert launch.measurement is not None
        assert before is not None
        factor = launch.measurement.mean_ms / before.mean_ms
        assert launch.measurement.p99_ms == pytest.approx(before.p99_ms * factor, rel=0.011)
        assert launch.measurement.throughput_per_s == pytest.approx(
            before.throughput_per_s / factor, rel=0.01
        )
        factors.append(np.log(factor))
    assert np.std(factors) == pytest.approx(0.2, rel=0.15)
    assert np.mean(factors) == pytest.approx(0.0, abs=0.04)


def test_noise_leaves_the_cpu_time_of_a_request_alone() -> None:
    """A longer latency is no more work: else the search could read the noise off."""
    launch = next(one for one in TABLE.evaluations if one.histogram is not None)
    noise = HostNoise(client_cpu_s=0.4, server_cpu_s=1.2)
    launch = dataclasses.replace(launch, noise=noise)
    before = table_evaluator.log_cpu_per_request_of(TABLE, launch)
    assert before is not None
    assert table_evaluator.log_cpu_per_request_of(
        TABLE, table_evaluator.scale_latency(launch, 1.5)
    ) == pytest.approx(before, abs=0.01)
    harder = table_evaluator.scale_latency(launch, 1.5, effort=1.2)
    assert table_evaluator.log_cpu_per_request_of(TABLE, harder) == pytest.approx(
        before + np.log(1.2), abs=0.01
    )


def test_a_shortened_launch_keeps_the_cpu_time_of_a_request() -> None:
    """Else trials that end early would look as if they had met a slow moment."""
    launch = next(one for one in TABLE.evaluations if len(one.blocks) > 2)
    noise = HostNoise(client_cpu_s=0.4, server_cpu_s=1.2)
    launch = dataclasses.replace(launch, noise=noise)
    whole = table_evaluator.log_cpu_per_request_of(TABLE, launch)
    rates = [block.throughput_per_s for block in launch.blocks]
    for blocks in (1, 2):
        short = table_evaluator.log_cpu_per_request_of(
            TABLE, table_evaluator.shorten(launch, blocks)
        )
        assert short is not None
        assert whole is not None
        # The same CPU seconds per second; what differs is the rate of the blocks that are left.
        rate = np.log(np.mean(rates) / np.mean(rates[:blocks]))
        assert short == pytest.approx(whole + rate, abs=0.02)


def test_resampled_launches_keep_what_cpu_time_says_of_latency() -> None:
    """Both deviations are of one recorded launch."""
    rng = np.random.default_rng(0)
    efforts: dict[int, float] = {}
    launches = []
    for number, one in enumerate(TABLE.evaluations):
        measured = TABLE.measurement_of(one)
        if measured is None:
            launches.append(one)
            continue
        efforts[number] = float(rng.normal(0, 0.1))
        used = np.exp(efforts[number]) * 1e-4 * measured.throughput_per_s * 2.5
        noise = HostNoise(client_cpu_s=float(used / 4), server_cpu_s=float(used * 3 / 4))
        launches.append(
            table_evaluator.scale_latency(
                dataclasses.replace(one, noise=noise),
                np.exp(efforts[number]),
                np.exp(efforts[number]),
            )
        )
    table = dataclasses.replace(TABLE, evaluations=tuple(launches))
    ground = prepared_table.prepare_table(table)
    found = replay_search.make_evaluator(ground, Perturbations(is_resampled=True), 0)
    cell = ground.truth.candidates[ground.truth.best]
    rows = []
    for _ in range(200):
        measured = found.evaluate(cell).measurement
        assert measured is not None
        effort = log_cpu_per_request(measured)
        assert effort is not None
        rows.append((np.log(measured.mean_ms), effort))
    assert np.corrcoef(np.array(rows).T)[0, 1] > 0.5


def test_on_a_null_table_no_cell_is_better() -> None:
    same = table_evaluator.null(HALVES.drawn)
    assert set(same) == set(HALVES.drawn)
    assert len({tuple(one.number for one in launches) for launches in same.values()}) == 1
    assert all(one.histogram is not None for one in next(iter(same.values())))


@pytest.mark.parametrize("seed", range(10))
def test_walls_leave_the_default_and_the_optimum(seed: int) -> None:
    arena = benches.arena()
    candidates = CandidateSet.of(tuple(TABLE.by_cell), arena.space.encode)
    kept = (TABLE.head.default, candidates.configurations[7])
    walled = table_evaluator.with_oom(candidates, kept, np.random.default_rng(seed))
    assert not walled & set(kept)
    assert 0.1 < len(walled) / len(candidates.configurations) <= table_evaluator.OOM_SHARE + 0.01
    lost = bench(with_oom=walled).evaluate(next(iter(walled)))
    assert lost.measurement is None
    assert lost.outcome.cause == "oom"
