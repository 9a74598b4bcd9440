"""What a pilot chooses, and what it reads from its launches; one real pilot is in tests/flows."""

import dataclasses
import io
import json
import math

import numpy as np
import pytest
import rich.console

from tests.fakes import studies
from tuner import pilot
from tuner.commands import noise
from tuner.errors import TunerError
from tuner.pilot import Order, Tried
from tuner.settings import MeasurementSettings, StudySettings, TargetSettings
from tuner.values import OK, Configuration, Outcome, RequestRecords

CELLS = tuple(Configuration({"replica.count": count}) for count in (1, 2, 3, 4))
CRASH = Outcome(status="failed", cause="crash", reason="the replica ended")


def order(**measurement):
    target = TargetSettings(model="toy", concurrency=20)
    settings = StudySettings(target=target, measurement=MeasurementSettings(**measurement))
    return Order(settings=settings, configurations=4)


def tried(seed=0, *, launch_sd=0.05, lost=()):
    """Six rounds of four configurations: 3 s measured, 0.8 s beside it."""
    rng = np.random.default_rng(seed)
    found = []
    for turn in range(6):
        for place in rng.permutation(4):
            middle = math.log(10 * (place + 1)) + launch_sd * rng.standard_normal()
            is_lost = (turn, place) in lost
            found.append(
                Tried(
                    configuration=int(place),
                    turn=turn,
                    started_at=studies.STARTED_AT + 4 * len(found),
                    took_s=3.8,
                    outcome=CRASH if is_lost else OK,
                    blocks_ms=()
                    if is_lost
                    else tuple(np.exp(middle + 0.03 * rng.standard_normal(6)).tolist()),
                )
            )
    return found


def read(launches, **measurement):
    return pilot.read(
        order(**measurement),
        model="toy",
        default=CELLS[0],
        configurations=CELLS,
        tried=launches,
        block_s=0.5,
    )


def test_a_pilot_tells_length_and_gain():
    found = read(tried(), pairs=20)
    assert found.overhead_s == pytest.approx(0.8)
    assert 0.4 <= found.recommended_s <= 2
    assert [gain.pairs for gain in found.gains] == [6, 20]
    assert 0 < found.gains[1].smallest < found.gains[0].smallest < 1
    assert all(gain.pessimistic >= gain.smallest for gain in found.gains)
    assert found.lengths[0].launch_error > found.lengths[-1].launch_error
    assert [own.launches for own in found.pooled.own] == [6] * 4


def test_a_failed_launch_is_counted_and_enters_nothing():
    """A configuration that failed in all but one launch has no noise of its own."""
    lost = {(turn, 2) for turn in range(5)} | {(0, 1)}
    found = read(tried(lost=lost))
    assert found.failed == 6
    assert found.used == (0, 1, 3)
    assert [own.launches for own in found.pooled.own] == [6, 5, 6]


def test_too_few_launches_are_an_error_with_its_reason():
    lost = {(turn, place) for turn in range(6) for place in (0, 1, 2)}
    with pytest.raises(TunerError, match=r"too few launches worked.*the replica ended"):
        read(tried(lost=lost))


def test_a_disturbed_launch_enters_nothing():
    """One that was ten times slower while the host took the machine changes no component."""
    launches = tried()
    slow = Tried(
        configuration=0,
        turn=6,
        started_at=launches[-1].started_at + 4,
        took_s=3.8,
        outcome=OK,
        blocks_ms=(100.0, 101.0, 99.0),
        is_disturbed=True,
    )
    assert read([*launches, slow]).components == read(launches).components
    assert read([*launches, slow]).disturbed == 1


@pytest.mark.parametrize(
    ("useful_s", "round_trip_s", "seconds", "why"),
    [
        (0.93, 0.01, 1.0, "whole periods of the quota"),
        (0.05, 0.01, 0.4, "four blocks of one period"),
        (0.5, 0.2, 1.6, "four blocks of two round trips"),
        (math.inf, 0.01, 2.0, "the usual one where launches do not differ"),
    ],
)
def test_the_recommended_length_can_be_given_to_a_study(useful_s, round_trip_s, seconds, why):
    found = pilot.recommended_seconds(useful_s, round_trip_s, usual_s=2.0)
    assert found == seconds, why
    assert MeasurementSettings(seconds=found).seconds == seconds


def test_the_default_and_the_fastest_are_chosen():
    """The default stays though it is the slowest, and the blocks span two of its round trips."""
    rng = np.random.default_rng(0)
    means = (600.0, 30.0, 10.0, 20.0)
    seen = {cell: studies.measurement(mean, rng) for cell, mean in zip(CELLS, means, strict=True)}
    chosen, block_s = pilot.chosen_of(seen, 3, default=CELLS[0])
    assert chosen == (CELLS[0], CELLS[2], CELLS[3])
    assert block_s == pytest.approx(0.5 * math.ceil(4 * seen[CELLS[0]].mean_ms / 1e3))


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
    assert pilot.blocks_of(records, measured, 1.0) == pytest.approx((10.0, 20.0))


def test_what_is_said_has_every_source_and_configuration():
    """The text is of the data, and the data is plain."""
    found = read(tried())
    console = rich.console.Console(file=io.StringIO(), width=120, highlight=False)
    console.print(noise.text(found, usual_s=2.0))
    said = console.file.getvalue()
    for words in ("blocks of 0.5 s", "launches of one", "rounds: the time", "count=4", "20 pairs"):
        assert words in said
    data = json.loads(json.dumps(noise.as_json(found)))
    assert len(data["tried"]) == 24
    assert data["components"]["launch"]["sd"] == found.components.launch.sd
