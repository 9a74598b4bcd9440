"""The CSV of random samples: whole rows, taken up again, and never somebody else's file."""

from __future__ import annotations

import csv
import dataclasses
import pathlib

import numpy as np
import pytest

from tests.fakes import studies
from tuner.bench import Launch
from tuner.errors import StorageFailed, WrongUse
from tuner.sample_file import Draw, SampleFile
from tuner.values import OK, UNKNOWN, Configuration, Energy, Outcome

KNOBS = ("replica.count", "replica.cpu")
DRAWS = [
    Draw(number, 5 + number, 2, Configuration({"replica.count": 1 + number, "replica.cpu": 0.5}))
    for number in range(4)
]


def opened(path: pathlib.Path, *, seed: int = 0, home: str = "process") -> SampleFile:
    return SampleFile(path, model="toy", home=home, seed=seed, knobs=KNOBS)


def launched(outcome: Outcome = OK) -> Launch:
    measured = studies.measurement(10.0, np.random.default_rng(0))
    return Launch(
        configuration=DRAWS[0].configuration,
        outcome=outcome,
        measurement=measured if outcome == OK else None,
        records=None,
        launch_s=0.25,
        loaded_s=2.5,
        started_at=1_700_000_000.0,
    )


@pytest.fixture
def begun(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file with two rows."""
    path = tmp_path / "rows.csv"
    with opened(path) as file:
        for draw in DRAWS[:2]:
            file.append(draw, launched())
    return path


def rows(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_holds_what_was_drawn_and_what_came_of_it(tmp_path: pathlib.Path) -> None:
    """Knobs, environment and figures; a failure has its reason on one line and no figures."""
    path = tmp_path / "rows.csv"
    broken = Outcome(status="infeasible", cause="oom", reason='killed,\n "for memory"')
    with opened(path) as file:
        file.append(DRAWS[0], launched())
        file.append(DRAWS[1], launched(broken))
    good, bad = rows(path)
    measured = studies.measurement(10.0, np.random.default_rng(0))
    assert good["replica.count"] == "1"
    assert (good["concurrency"], good["client_batch"]) == ("5", "2")
    assert float(good["mean_ms"]) == pytest.approx(measured.mean_ms, rel=1e-5)
    assert float(good["consistency_ms"]) == pytest.approx(measured.spread_ms, rel=1e-5)
    assert good["started_at"] == "2023-11-14T22:13:20Z"
    assert (bad["status"], bad["cause"]) == ("infeasible", "oom")
    assert bad["reason"] == 'killed, "for memory"'
    assert bad["mean_ms"] == bad["time_per_item_ms"] == ""


def test_a_file_is_gone_on_with_behind_its_last_whole_row(begun: pathlib.Path) -> None:
    """What a kill has cut off is measured again."""
    whole = begun.read_bytes()
    begun.write_bytes(whole + b"2,toy,0,7,2,3,0.")
    with opened(begun) as file:
        file.check(DRAWS)
        assert file.statuses == ["ok", "ok"]
        file.append(DRAWS[2], launched())
    assert begun.read_bytes().startswith(whole)
    assert [row["number"] for row in rows(begun)] == ["0", "1", "2"]


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_head_that_was_cut_off_is_written_again(begun: pathlib.Path, kept: int) -> None:
    """A kill at the very start leaves nothing, or a part of the first line."""
    whole = begun.read_bytes()
    begun.write_bytes(whole[:kept])
    with opened(begun) as file:
        assert file.statuses == []
    assert begun.read_bytes() == whole.splitlines(keepends=True)[0]


def test_rows_of_other_draws_are_refused(begun: pathlib.Path) -> None:
    """Another seed, or another space, names the column that differs."""
    with (
        opened(begun, seed=1) as file,
        pytest.raises(WrongUse, match="row 0: seed is '0', this command draws '1'"),
    ):
        file.check(DRAWS)
    with (
        opened(begun) as file,
        pytest.raises(WrongUse, match=r"row 1: concurrency is '6', .*'7'; go on with"),
    ):
        file.check([DRAWS[0], DRAWS[1]._replace(concurrency=7)])


@pytest.mark.parametrize(
    "content",
    [
        b"a letter without an end of line",
        b"name,age\nkim,4\n",
        b"name,age\nkim,4\nlee",
        b"\x00\xff\xfe\n",
        b"number,model\n",
    ],
)
def test_somebody_elses_file_is_left_as_it_is(tmp_path: pathlib.Path, content: bytes) -> None:
    """Whatever it holds: it is refused, and not a byte of it changes."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(WrongUse, match="holds something else"):
        opened(path)
    assert path.read_bytes() == content


def test_a_row_that_is_not_ours_is_refused(begun: pathlib.Path) -> None:
    """Rows are numbered one after another, and all of one length."""
    begun.write_bytes(begun.read_bytes() + b"9,toy\n")
    with pytest.raises(WrongUse, match="row 2 is not one of"):
        opened(begun)


def test_one_process_writes_a_file(begun: pathlib.Path) -> None:
    """A second one is told so."""
    with opened(begun), pytest.raises(WrongUse, match="another `tune sample` writes it"):
        opened(begun)


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: pathlib.Path) -> None:
    """Such as one in a folder that is not there."""
    with pytest.raises(StorageFailed, match="--out"):
        opened(tmp_path / "none" / "rows.csv")


def test_rows_of_another_home_are_another_file(begun: pathlib.Path) -> None:
    """Containers and processes of this machine are not mixed."""
    with opened(begun, home="docker") as file, pytest.raises(WrongUse, match="home is 'process'"):
        file.check(DRAWS)


def test_energy_has_a_column_where_it_was_counted(tmp_path: pathlib.Path) -> None:
    """And is empty where it was not."""
    launch = launched()
    assert launch.measurement is not None
    energy = Energy(
        per_request_j=0.25, interval=UNKNOWN, sources={"gpu": 0.25}, power_w=50.0, clock_mhz=None
    )
    counted = dataclasses.replace(launch.measurement, energy=energy)
    with opened(tmp_path / "rows.csv") as file:
        file.append(DRAWS[0], launch)
        file.append(DRAWS[1], dataclasses.replace(launch, measurement=counted))
    assert [row["energy_j"] for row in rows(tmp_path / "rows.csv")] == ["", "0.25"]
