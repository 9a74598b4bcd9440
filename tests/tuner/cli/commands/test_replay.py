"""`tune replay --json` as anybody reads it: the keys, and figures that follow from what is printed and the truth."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
from typing import Any

import numpy as np
import pytest

from tests.fakes import recorded
from tuner.cli import main
from tuner.lab import prepared_table
from tuner.lab.tables import table_files
from tuner.lab.tables.ground_truth import GroundTruth
from tuner.lab.tables.table_files import TableFolder
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.processes

SHARES = ("0.01", "0.03", "0.05")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A recorded table as it stands on disk."""
    table = recorded.table(passes=4, every=6)
    path = tmp_path_factory.mktemp("tables") / "toy-20"
    with TableFolder(path) as out:
        out.begin(table.head)
        for launch in table.evaluations:
            out.append(launch)
        out.finish(table.head)
    return path


def replayed(folder: pathlib.Path, capsys: pytest.CaptureFixture[str], *more: str) -> Any:
    assert main.main(["replay", str(folder), "--json", *more]) == 0
    return json.loads(capsys.readouterr().out)


def good_candidates(truth: GroundTruth, share: float) -> set[Configuration]:
    """By the definition: within the larger of the share and two standard errors of the optimum."""
    values = dict(zip(truth.candidates, np.exp(truth.log_mean).tolist(), strict=True))
    best = min(values, key=lambda cell: values[cell])
    error = truth.se[truth.candidates.index(best)]
    limit = values[best] * (1 + max(share, 2 * error)) * (1 + 1e-12)
    return {cell for cell, value in values.items() if value <= limit}


def first_good(recommended: list[dict[str, Any] | None], good: set[Configuration]) -> float:
    """The trial from which on every recommendation is good; infinite where there is none."""
    is_good = [cell is not None and Configuration(cell) in good for cell in recommended]
    held = sum(1 for _ in itertools.takewhile(bool, reversed(is_good)))
    return len(is_good) - held + 1 if held else math.inf


def random_median(cells: int, good: int) -> int:
    """Random search without repeats: half of all searches have met a good cell after so many trials."""
    missed = 1.0
    for trial in range(cells):
        missed *= (cells - good - trial) / (cells - trial)
        if missed < 0.5:
            return trial + 1
    raise AssertionError("no good cell")


def test_the_contract_of_the_json(folder: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every key that is promised, with a list as long as the trials for each seed; nothing else on stdout."""
    data = replayed(folder, capsys, "--sampler", "gp", "--trials", "12", "--seeds", "2")
    promised = {
        *("table", "sampler", "candidates", "optimum_ms", "optimum_se"),
        *("good_candidates", "trials_to", "runs"),
    }
    assert promised <= set(data)
    assert (data["table"], data["sampler"]) == ("toy-20", "gp")
    assert isinstance(data["candidates"], int)
    assert set(SHARES) <= set(data["trials_to"])
    assert set(data["good_candidates"]) == set(data["trials_to"])
    for found in data["trials_to"].values():
        assert {"median", "p90", "reached", "random_median"} <= set(found)
    assert [run["seed"] for run in data["runs"]] == [0, 1]
    names = set(recorded.head().default)
    for run in data["runs"]:
        assert len(run["candidates"]) == len(run["recommended"]) == 12
        for cell in (*run["candidates"], *run["recommended"]):
            assert set(cell) == names


@pytest.mark.parametrize(("sampler", "trials", "seeds"), [("random", 20, 5), ("gp", 12, 3)])
def test_trials_to_follows_from_the_runs_and_the_truth_alone(
    folder: pathlib.Path,
    capsys: pytest.CaptureFixture[str],
    sampler: str,
    trials: int,
    seeds: int,
) -> None:
    """Median and 90th percentile are the least number of trials that so many seeds do not exceed."""
    options = ("--sampler", sampler, "--trials", str(trials), "--seeds", str(seeds))
    data = replayed(folder, capsys, *options)
    truth = prepared_table.prepare_table(table_files.read(folder)).truth
    assert data["optimum_ms"] == pytest.approx(float(np.exp(truth.log_mean.min())))
    for share in SHARES:
        good = good_candidates(truth, float(share))
        assert data["good_candidates"][share] == len(good)
        firsts = sorted(first_good(run["recommended"], good) for run in data["runs"])
        found = data["trials_to"][share]
        assert found["reached"] == sum(map(math.isfinite, firsts)) / seeds
        for name, level in (("median", 0.5), ("p90", 0.9)):
            expected = firsts[math.ceil(level * seeds) - 1]
            assert found[name] == (expected if math.isfinite(expected) else None)
        assert found["random_median"] == random_median(data["candidates"], len(good))
