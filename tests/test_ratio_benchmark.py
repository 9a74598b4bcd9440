"""Comparisons with peers: the interval of paired rounds and the word for it, and sweeps of equal length."""

from __future__ import annotations

import importlib.util
import math
import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest
from scipy import stats

BENCHMARKS = pathlib.Path(__file__).resolve().parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def ratio() -> types.ModuleType:
    """`benchmarks/ratio.py`, which is a script's neighbour and no part of a package."""
    spec = importlib.util.spec_from_file_location("ratio", BENCHMARKS / "ratio.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_interval_is_students_on_the_log_ratios(ratio: types.ModuleType) -> None:
    """As scipy has it, of rates whose machine drifts by half from the first round to the last."""
    others = np.linspace(30_000, 15_000, 8)
    ratios = np.array([1.33, 1.09, 1.43, 1.41, 1.38, 1.42, 1.29, 1.48])
    found = ratio.paired(list(others * ratios), list(others))
    logs = np.log(ratios)
    expected = stats.t.interval(0.95, 7, loc=logs.mean(), scale=stats.sem(logs))
    assert found.rounds == pytest.approx(tuple(ratios))
    assert found.mean == pytest.approx(stats.gmean(ratios))
    assert (math.log(found.low), math.log(found.high)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((1.30, 1.31, 1.29, 1.30), "Met"),
        ((1.15, 1.16, 1.14, 1.15), "MISSED"),  # clearly above 1, and below what is asked for
        ((1.60, 0.90, 1.70, 1.10), "no difference shown"),  # the mean alone would do
        ((0.80, 0.81, 0.79, 0.80), "MISSED"),
        ((1.50,), "no difference shown"),  # one round has no interval
    ],
)
def test_a_target_is_met_by_the_interval_and_not_by_the_mean(
    ratio: types.ModuleType, ratios: tuple[float, ...], word: str
) -> None:
    """At least 1.2 with the interval above 1; an interval that holds 1 shows nothing."""
    assert ratio.paired(ratios, [1.0] * len(ratios)).outcome(least=1.2) == word


def test_every_server_is_tried_at_as_many_settings() -> None:
    """Who is tried at more settings has more luck: ours and all peers' sweeps are of equal length."""
    script = (
        "import candidates, json\n"
        "for work, ours in candidates.OURS.items():\n"
        "    for each in (ours, *(peer.sweeps[work] for peer in candidates.PEERS.values())):\n"
        "        print(work, len(each), len({json.dumps(one) for one in each}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{BENCHMARKS}:{BENCHMARKS.parent}"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = set(done.stdout.splitlines())
    assert found == {"echo 12 12", "resnet 12 12"}
