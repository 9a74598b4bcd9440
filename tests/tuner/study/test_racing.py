"""Trials that end early: how often a good one does, and which."""

from __future__ import annotations

import dataclasses
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import benches, recorded
from tests.fakes.benches import ToyBench
from tests.tuner.study.test_search import BUDGET, run_out
from tuner.evaluation.evaluation import Evaluation
from tuner.lab import prepared_table, replay, replay_search
from tuner.lab.replay_search import ReplaySpec
from tuner.load_generator.plan import Race
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.study_store import StudyStore
from tuner.study import racing
from tuner.study.racing import Racing
from tuner.study.search import MIN_FOR_RACE, Search
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.slow

RACING = Racing(blocks=4, block_s=0.5, concurrency=20, client_batch=2)
TARGET = TargetSettings(model="echo", concurrency=20)


@given(
    evaluation_sd=st.floats(0.01, 0.2),
    block_sd=st.floats(0.01, 0.2),
    known=st.floats(0.0, 0.1),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_as_good_as_the_incumbent_is_seldom_given_up(
    evaluation_sd: float, block_sd: float, known: float, seed: int
) -> None:
    """Of trials of an equal configuration no more than the share that is allowed end early."""
    error = block_sd / 2
    noise_sd = float(np.hypot(evaluation_sd, error))
    found = RACING.race("mean", minimised=10.0, sd=known, noise_sd=noise_sd, error=error)
    assert found is not None
    rng = np.random.default_rng(seed)
    count = 2000
    apart = rng.normal(size=(count, 1)) * np.hypot(known, evaluation_sd)
    means = np.cumsum(rng.normal(size=(count, 4)) * block_sd, axis=1) / np.arange(1, 5)
    lost = (10.0 * np.exp(apart + means[:, :3]) > found.limits_ms).any(axis=1)
    assert lost.mean() < racing.ALPHA + 4 * np.sqrt(racing.ALPHA / count)


def test_the_limits_fall_as_the_trial_tells_more() -> None:
    """And never below what launches differ by."""
    found = RACING.race("mean", minimised=10.0, sd=0.02, noise_sd=0.13, error=0.05)
    assert found is not None
    assert list(found.limits_ms) == sorted(found.limits_ms, reverse=True)
    assert found.limits_ms[-1] > 10.0 * np.exp(2 * 0.12)
    assert found.look_s == 0.5


def test_what_follows_from_the_mean_is_raced_by_it() -> None:
    """The time between answers times the requests in flight is a latency; a p99 is not raced."""
    known = {"sd": 0.02, "noise_sd": 0.1, "error": 0.05}
    mean = RACING.race("mean", minimised=10.0, **known)
    assert RACING.race("throughput", minimised=10.0 / 20, **known) == mean
    assert RACING.race("time-per-item", minimised=10.0 / 40, **known) == mean
    assert RACING.race("p99", minimised=10.0, **known) is None


def test_a_trial_of_one_block_is_not_raced() -> None:
    """There is no look before its end."""
    short = dataclasses.replace(RACING, blocks=1)
    assert short.race("mean", minimised=10.0, sd=0.1, noise_sd=0.1, error=0.1) is None


@pytest.mark.parametrize(
    "measurement",
    [
        MeasurementSettings(racing="off"),
        MeasurementSettings(requests=100),
        MeasurementSettings(slo_ms=50.0),
    ],
)
def test_trials_last_their_time_where_they_must(measurement: MeasurementSettings) -> None:
    """When it is switched off, when requests are counted, and when a tail is judged."""
    settings = StudySettings(target=TARGET, measurement=measurement)
    assert Racing.of(settings) is None
    assert Racing.of(StudySettings(target=TARGET)) is not None


class Keeping(ToyBench):
    """Keeps the races that it was given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.races: list[Race | None] = []

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        self.races.append(race)
        return super().evaluate(configuration, race)


@pytest.mark.parametrize("sampler", ["random", "gp"])
def test_a_search_races_once_it_knows_a_best(tmp_path: pathlib.Path, sampler: str) -> None:
    """Every sampler's trials have limits above the best mean so far, from the fifth on."""
    bench = Keeping()
    search = Search(
        store=StudyStore.create("s", database=tmp_path / "study.db", url=None, facts={}),
        problem=benches.arena(),
        evaluator=bench,
        budget=BUDGET,
        objective="mean",
        limits=(),
        stop_ei=0.0,
        keep_in=None,
        racing=RACING,
    )
    search.prepare(SearchSettings(sampler=sampler, trials=12, initial=5, seed=3))
    run_out(search)
    worked = np.cumsum([trial.measurement is not None for trial in search.trials])
    for number, race in enumerate(bench.races):
        knows = number > 0 and worked[number - 1] >= MIN_FOR_RACE
        assert (race is not None) == knows
    best = search.best_seen()
    last = bench.races[-1]
    assert best is not None
    assert best.objective is not None
    assert last is not None
    assert min(last.limits_ms) > best.objective


def test_a_raced_replay_takes_less_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And proposes as many configurations."""
    ground = prepared_table.prepare_table(recorded.table(every=4))
    order = ReplaySpec(sampler="random", trials=16, seeds=(0,))
    (quick,) = replay.replay(ground, order, workers=1).runs
    monkeypatch.setattr(replay_search, "_racing", lambda _ground: None)
    (plain,) = replay.replay(ground, order, workers=1).runs
    assert len(quick.cells) == len(plain.cells)
    assert quick.seconds[-1] < plain.seconds[-1]
