"""`tune record` with a real engine: a table that goes on where it was left, and one line for bad input."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from tuner.cli import main
from tuner.lab.tables import table_files

pytestmark = pytest.mark.processes

GRID = """\
name: two
knobs:
  batching.max_size: {type: int, choices: [1, 8], default: 1, unit: items}
"""
QUICK = ["--seconds", "0.4", "--warmup", "0.1", "--max-evaluations", "3"]


@pytest.fixture
def grid(tmp_path: pathlib.Path) -> pathlib.Path:
    """Two configurations."""
    path = tmp_path / "grid.yaml"
    path.write_text(GRID, encoding="utf-8")
    return path


def record(grid: pathlib.Path, out: pathlib.Path, *more: str) -> int:
    """Of echo, two requests in flight."""
    asked = ["record", "--model", "echo", "--concurrency", "2", "--grid", str(grid)]
    return main.main([*asked, "--out", str(out), *QUICK, *more])


def test_every_configuration_is_launched_in_every_pass(
    grid: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each three times, with requests and CPU time; given again it measures nothing, and a replay reads it."""
    out = tmp_path / "table"
    assert record(grid, out, "--json") == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["candidates"], told["measured"]) == (2, told["evaluations"])
    assert told["evaluations"] >= 6
    table = table_files.read(out)
    passes = {(launch.cell, launch.sweep) for launch in table.evaluations}
    assert {sweep for _, sweep in passes} >= {0, 1, 2}
    for launches in table.by_cell.values():
        assert len(launches) >= 3
        for launch in launches:
            measured = table.measurement_of(launch)
            assert measured is not None
            assert measured.noise.server_cpu_s
            assert launch.histogram is not None
            assert len(launch.histogram) == sum(block.requests for block in launch.blocks)

    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert record(grid, out, "--json") == 0
    assert json.loads(capsys.readouterr().out)["measured"] == 0
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before

    assert main.main(["replay", str(out), "--trials", "4", "--seeds", "2", "--json"]) == 0
    replayed = json.loads(capsys.readouterr().out)
    assert (replayed["sampler"], replayed["candidates"]) == ("structured", 2)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--objective", "goodput"], "--objective goodput: a replay computes it"),
        (
            ["--objective", "rate"],
            "--objective rate: a benchmark table is recorded in a closed loop",
        ),
        (["--objective", "mean,cost"], "recorded for one objective"),
        (["--passes", "2"], "--passes 2: expected a whole number from 3"),
    ],
)
def test_what_no_table_is_recorded_for(
    grid: pathlib.Path,
    tmp_path: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    said: str,
) -> None:
    """One line that says so, and no folder."""
    out = tmp_path / "table"
    assert record(grid, out, *more) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not out.exists()


def test_a_table_of_format_1_is_not_continued(
    grid: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says so, and the folder stays as it is."""
    out = tmp_path / "surface"
    out.mkdir()
    (out / "surface.yaml").write_text("version: 1\n", encoding="utf-8")
    assert record(grid, out) == 2
    error = capsys.readouterr().err
    assert "is a table of format 1, which cannot be resumed; give a new folder" in error
    assert len(error.strip().splitlines()) == 1
    assert [path.name for path in out.iterdir()] == ["surface.yaml"]
