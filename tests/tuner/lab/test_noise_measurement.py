"""What a pilot chooses, and what it reads from its launches; one real pilot is in tests/flows."""

import dataclasses
import functools
import io
import json
import math

import numpy as np
import pytest
import rich.console

from tests.fakes import studies
from tuner.cli.commands import doctor
from tuner.errors import TunerError
from tuner.lab import noise_analysis, noise_measurement
from tuner.lab.noise_analysis import NoiseEvaluation
from tuner.measurement import drift_model
from tuner.measurement.drift_model import DriftModel, DriftProcess
from tuner.study.budget import Budget
from tuner.values.configuration import Configuration
from tuner.values.request_records import RequestRecords
from tuner.values.trial import OK, Outcome

pytestmark = pytest.mark.slow

CELLS = tuple(Configuration({"replica.count": count}) for count in (1, 2, 3, 4))
CRASH = Outcome(status="failed", cause="crash", reason="the replica ended")
COURSE = DriftModel(
    quick=DriftProcess(sd=0.06, forgets_s=5.0),
    slow=DriftProcess(sd=0.05, forgets_s=80.0),
    evaluation_sd=0.01,
    block_sd=0.04,
)
BUDGET = Budget(
    trials=50,
    initial=8,
    max_time_s=600,
    load_s=0.7,
    pairs=30,
    uses_time_slices=True,
)


def tried(seed=0, *, launches=60, lost=(), foreign=0.01):
    """Launches of four configurations in a random order, one a second, in blocks of 0.2 s."""
    rng = np.random.default_rng(seed)
    launch = np.repeat(np.arange(launches), 3)
    at_s = launch + 0.2 * np.tile(np.arange(3), launches)
    logs = drift_model.draw(COURSE, at_s, launch, rng)
    found = []
    for number in range(launches):
        place = int(rng.integers(4))
        blocks = 10.0 * (place + 1) * np.exp(logs[launch == number])
        is_lost = number in lost
        found.append(
            NoiseEvaluation(
                configuration=place,
                started_at=studies.STARTED_AT + number,
                took_s=1.0,
                outcome=CRASH if is_lost else OK,
                blocks_ms=() if is_lost else tuple(blocks.tolist()),
                foreign_share=foreign,
            )
        )
    return found


@functools.cache
def found_of_all():
    """What a whole pilot tells, read once."""
    return read(tried())


def read(launches, budget=BUDGET):
    return noise_analysis.read(
        budget,
        model="toy",
        concurrency=20,
        default=CELLS[0],
        configurations=CELLS,
        tried=launches,
        block_s=0.2,
    )


def test_a_pilot_tells_moments_and_gains():
    """More time shows smaller gains, a study has less of it, and round evaluations in turn show less."""
    found = found_of_all()
    assert found.means_ms == pytest.approx([10, 20, 30, 40], rel=0.1)
    assert sum(found.course.shares.values()) == pytest.approx(1.0)
    assert found.course.shares["time"] > 0.5 > found.course.shares["launch"]
    comparison = [gain.comparison for gain in found.gains]
    assert comparison == sorted(comparison, reverse=True)
    assert all(gain.study is None or gain.study > gain.comparison for gain in found.gains)
    in_turn = dataclasses.replace(BUDGET, uses_time_slices=False)
    for one in found.gains:
        other = noise_analysis.detectable_gain(
            found.course, in_turn, block_s=0.2, spent_s=one.spent_s
        )
        assert other.comparison > 1.5 * one.comparison


def test_a_time_that_is_too_short_for_two_rounds_shows_nothing():
    slow = dataclasses.replace(BUDGET, start_s=20.0)
    found = noise_analysis.detectable_gain(COURSE, slow, block_s=0.2, spent_s=30.0)
    assert (found.comparison, found.study) == (None, None)


def test_a_failed_launch_is_counted_and_enters_nothing():
    """One that never worked has no mean."""
    launches = [
        dataclasses.replace(one, outcome=CRASH, blocks_ms=()) if one.configuration == 2 else one
        for one in tried(launches=48)
    ]
    found = read(launches)
    assert found.failed == sum(one.configuration == 2 for one in launches)
    assert math.isnan(found.means_ms[2])
    assert found.means_ms[3] == pytest.approx(40, rel=0.1)


def test_too_few_launches_are_an_error_with_its_reason():
    with pytest.raises(TunerError, match=r"too few evaluations worked.*the replica ended"):
        read(tried(launches=8, lost=range(6)))


def test_the_default_and_the_fastest_are_chosen():
    """The default stays though it is the slowest, and the blocks span two of its latencies."""
    rng = np.random.default_rng(0)
    means = (600.0, 30.0, 10.0, 20.0)
    seen = {cell: studies.measurement(mean, rng) for cell, mean in zip(CELLS, means, strict=True)}
    chosen, block_s = noise_measurement.chosen_of(seen, 3, default=CELLS[0])
    assert chosen == (CELLS[0], CELLS[2], CELLS[3])
    assert block_s == pytest.approx(0.2 * math.ceil(10 * seen[CELLS[0]].mean_ms / 1e3))


def test_blocks_are_those_of_the_length_that_was_asked_for():
    """Two clients, 10 ms in the first second and 20 ms in the second one."""
    finished_s = np.concatenate([np.arange(1, 101) * 0.01, 1 + np.arange(1, 51) * 0.02])
    took_s = np.where(finished_s <= 1, 0.01, 0.02)
    count = len(finished_s)
    records = RequestRecords(
        intended_s=finished_s - took_s,
        started_s=finished_s - took_s,
        finished_s=finished_s,
        status=np.full(count, 200, dtype=np.int16),
        connection=np.zeros(count, dtype=np.int32),
    )
    measured = dataclasses.replace(
        studies.measurement(10.0, np.random.default_rng(0), seconds=2.0), warmup_s=0.0
    )
    assert noise_measurement.blocks_of(records, measured, 1.0) == pytest.approx((10.0, 20.0))


def test_what_is_said_has_every_source_and_configuration():
    """The text is of the data, and the data is plain."""
    found = found_of_all()
    console = rich.console.Console(file=io.StringIO(), width=120, highlight=False)
    console.print(doctor.noise_text(found))
    said = console.file.getvalue()
    for words in (
        "machine drift",
        "over seconds: correlation time",
        "evaluations of one configuration",
        "blocks of 0.2 s",
        "other processes used 1.0 % of the machine",
        "count=4",
        "in 120 s",
    ):
        assert words in said
    data = json.loads(json.dumps(doctor.noise_json(found)))
    assert len(data["tried"]) == 60
    assert data["course"]["evaluation_sd"] == found.course.evaluation_sd
