"""The benchmarks start: what they import is there, and their page names each of them.

Figures are not asserted here: a benchmark runs alone on a machine, by hand.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import re
import types
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes.forked_commands import Run, forking

pytestmark = pytest.mark.processes

ROOT = pathlib.Path(__file__).parent.parent
PAGE = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
LISTED = re.findall(r"^\| \[(\w+\.py)\]", PAGE, flags=re.MULTILINE)


IMPORTED = (
    "numpy",
    "serving.zoo",
    "tuner.launching.engine_process",
    "tuner.load_generator.client_process",
    "tuner.report.formatting",
    "tuner.study.verification",
)
"""What most of the scripts import: once for all of them."""


@pytest.fixture(scope="module")
def run_script() -> Iterator[Run]:
    """`python SCRIPT ARGUMENT...` in the project's folder."""
    with forking("tests.fakes.forked_commands", *IMPORTED) as run:
        yield functools.partial(run, cwd=ROOT)


@pytest.mark.parametrize("script", LISTED)
def test_a_benchmark_says_how_it_is_used(run_script: Run, script: str) -> None:
    """`--help` ends with 0 and knows `--json`: all that the script needs imports."""
    done = run_script(f"benchmarks/{script}", "--help")
    assert done.code == 0, done.err
    assert "--json" in done.out


def test_the_page_lists_every_benchmark() -> None:
    """A script with a target (it concludes with an exit code) has its line in the page."""
    scripts = {
        path.name
        for path in (ROOT / "benchmarks").glob("*.py")
        if "sys.exit(main())" in path.read_text(encoding="utf-8")
    }
    assert scripts <= set(LISTED)


STUDY = ROOT / "benchmarks" / "study"


def launch(key: dict[str, Any], mean_ms: float, **more: Any) -> dict[str, Any]:
    """One launch of a unit."""
    figures = {"mean_ms": mean_ms, "p99_ms": 3 * mean_ms, "throughput_per_s": 2e4 / mean_ms}
    counts = {"status": "ok", "requests": 900, "errors": 0, "configuration": {"replica.count": 2}}
    return {"key": key} | counts | figures | more


def data_of_every_kind(folder: pathlib.Path) -> None:
    """A little of what `measure.py` keeps."""
    rng = np.random.default_rng(0)
    took_ms = np.concatenate([rng.normal(10, 0.5, 300), rng.normal(30, 1, 200)])
    single = {"begun_s": list(np.linspace(0, 2, 500)), "took_ms": list(took_ms)}
    failed = {"key": {"concurrency": 60}, "status": "failed", "reason": "killed"}
    one = {
        "configurations": [[1], [2], [2], [4]],
        "objectives": [9.0, None, 8.0, 6.0],
    }
    roles = ("default", "random, half", "random", "gpy", "epsilon-greedy", "structured")
    search = {
        "trials": 4,
        "knobs": ["replica.count"],
        "searches": dict.fromkeys(roles[2:], one),
        "winners": {role: {"replica.count": 2} for role in roles},
        "rounds": {
            role: [[9.0 - place, 2.0, 20.0, 30.0], None, [9.5 - place, 2.0, 21.0, 30.0]]
            for place, role in enumerate(roles)
        },
    }
    again = {
        "trials": 4,
        "searches": {"gpy": one, "repeated": one},
        "rounds": {"gpy": [[9.0, 1.0, 2.0, 3.0]] * 2, "repeated": [[10.0, 1.0, 2.0, 3.0]] * 2},
    }
    regrets = {role: [[0.2, 0.1], [0.3, 0.2]] for role in roles[2:]}
    sampled = [
        launch({"configuration": number, "concurrency": n, "client_batch": 1}, n + number)
        for n in (1, 20)
        for number in range(5)
    ]
    variant = {"model.variant": "resnet8", "concurrency": 1}
    kinds: dict[str, dict[str, Any]] = {
        "clusters": {"launches": [launch({"concurrency": n}, 10, **single) for n in (5, 20)]},
        "growth": {"launches": [*(launch({"concurrency": n}, 2 + n) for n in (1, 20, 60)), failed]},
        "sample": {"launches": sampled},
        "repeated": again,
        "replay": {"regrets": regrets, "repeated": [[10, 0.1], [15, 0.2]]},
        "variants": {"launches": [launch(variant, 3.0)]},
        "batch": {"launches": [launch({"batching.max_size": n}, 20 / n) for n in (1, 4, 16)]},
        "replicas": {"launches": [launch({"replica.count": n}, 20 / n) for n in (1, 2)]},
        "slo": {"launches": [launch({"batching.slo_ms": n}, n) for n in (5, 20)]},
    }
    head = {"model": "gan", "spawner": "docker", "concurrency": 20, "client_batch": 1, "seed": 0}
    units = [({"kind": kind} | head | {"form": 0}, row) for kind, row in kinds.items()]
    for n in (1, 5, 20, 60):
        for seed in (0, 1):
            load = {"concurrency": n, "seed": seed}
            units.append(({"kind": "search"} | head | load | {"form": 0}, search))
    for number, (unit, row) in enumerate(units):
        kept = {"unit": unit, "machine": {"date": "2026-01-01"}, "minutes": 1.0, **row}
        (folder / f"{unit['kind']}_{number}.json").write_text(json.dumps(kept), encoding="utf-8")


def test_the_study_draws_every_section_from_its_data(
    run_script: Run, tmp_path: pathlib.Path
) -> None:
    """Each picture is well-formed SVG that the page shows; what failed is left out."""
    data_of_every_kind(tmp_path)
    folders = ("--data", str(tmp_path), "--out", str(tmp_path / "out"))
    done = run_script(str(STUDY / "draw.py"), *folders)
    assert done.code == 0, done.err
    page = (tmp_path / "out" / "study.md").read_text(encoding="utf-8")
    pictures = sorted((tmp_path / "out" / "study").glob("*.svg"))
    assert len(pictures) == page.count(".svg)") == 11
    for picture in pictures:
        assert f"(study/{picture.name})" in page
        assert "nan" not in picture.read_text(encoding="utf-8").replace("(gan", "")
        assert ET.parse(picture).getroot().tag.endswith("svg")
    assert page.count("Claim: ") == 13
    assert "2 at 5, 2 at 20" in page
    assert "2 ms + 1 ms a request, R² 1.0000" in page
    assert "gpy shown better in 8 and worse in 0 of 8" in page, "7 over 6 ms in every search"
    assert "Not measured yet" not in page


def test_a_study_without_data_says_what_to_do(run_script: Run, tmp_path: pathlib.Path) -> None:
    """And the units to measure are told by `--list`."""
    done = run_script(str(STUDY / "draw.py"), "--data", str(tmp_path), "--out", str(tmp_path))
    assert done.code == 2
    assert "run measure.py first" in done.err
    assert "search_resnet" in run_script(str(STUDY / "measure.py"), "--list").out


CONCLUDED = """
import sys
sys.path.insert(0, "benchmarks")
import idle_connections, wrk
def load(p50_ms):
    return wrk.Load(requests=1, requests_per_s=1.0, p50_ms=p50_ms, p99_ms=1.0)
rounds = [(load(1.0), load(ratio)) for ratio in map(float, sys.argv[1:])]
print(idle_connections.concluded(rounds).is_met)
"""


@pytest.mark.parametrize(
    ("ratios", "is_met"), [((1.0, 1.1, 1.05, 0.95), True), ((0.7, 1.5, 0.8, 1.3), False)]
)
def test_a_target_is_met_by_the_interval_of_the_rounds(
    run_script: Run, tmp_path: pathlib.Path, ratios: tuple[float, ...], is_met: bool
) -> None:
    """A mean within the limit is not enough: 1.02 x of rounds far apart may as well be 1.9 x."""
    (tmp_path / "concluded.py").write_text(CONCLUDED, encoding="utf-8")
    done = run_script(str(tmp_path / "concluded.py"), *map(str, ratios))
    assert done.out.strip() == str(is_met), done.err


KEEPS_VERDICTS = """
import argparse, pathlib, sys
sys.path[:0] = ["benchmarks"]
import result
result.RESULTS = pathlib.Path(sys.argv[1])
options = argparse.Namespace(json=True, write=True)
for verdict in ("90 of 100", "95 of 100", "97 of 100"):
    result.conclude(
        result.Result(
            name="trial", question="How many?", target="at least 95", verdict=verdict,
            is_met=verdict > "95", tables=(), figures={},
        ),
        options,
    )
"""


def test_a_page_keeps_the_verdicts_of_the_runs_before_it(
    run_script: Run, tmp_path: pathlib.Path
) -> None:
    """The missed ones too, the latest first, with date and form."""
    (tmp_path / "keeps.py").write_text(KEEPS_VERDICTS, encoding="utf-8")
    done = run_script(str(tmp_path / "keeps.py"), str(tmp_path))
    assert done.code == 0, done.err
    page = (tmp_path / "trial.md").read_text(encoding="utf-8")
    assert "\nTarget: at least 95\nMet: 97 of 100\n" in page
    earlier = page.partition("## Earlier runs\n\n")[2].partition("\n\n")[0].splitlines()
    ends = [line.partition(", plain form: ")[2] for line in earlier]
    assert ends == ["Met: 95 of 100", "MISSED: 90 of 100"]


@pytest.fixture(scope="module")
def findings() -> types.ModuleType:
    """What the study's figures compute."""
    spec = importlib.util.spec_from_file_location("findings", STUDY / "findings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("centres", [(10,), (10, 20), (5, 15, 40)])
def test_round_trips_fall_into_the_clusters_that_they_came_from(
    findings: types.ModuleType, centres: tuple[float, ...]
) -> None:
    """As many as there were, with their medians and shares."""
    rng = np.random.default_rng(2)
    took_ms = np.concatenate([rng.lognormal(np.log(centre), 0.08, 400) for centre in centres])
    found = findings.clusters(took_ms)
    assert [cluster.median_ms for cluster in found] == pytest.approx(list(centres), rel=0.03)
    assert [cluster.share for cluster in found] == pytest.approx(
        [1 / len(centres)] * len(centres), abs=0.02
    )


def test_the_optimum_stays_when_a_repeat_does_not_change_it(findings: types.ModuleType) -> None:
    """The second five find a better one, the third five do not."""
    values = [9.0, 8.0, None, 9.0, 9.0, 7.0, 9.0, 9.0, 9.0, 9.0, *[8.0] * 10]
    assert findings.stays_at(list(range(20)), values) == 15
    assert findings.stays_at(list(range(12)), [None] * 12) == 12


def test_a_gain_that_falls_has_a_trend_below_zero_and_noise_has_none(
    findings: types.ModuleType,
) -> None:
    """The interval of a steady fall excludes 0, that of equal gains in a random order does not."""
    places = [1.0, 5.0, 20.0, 60.0] * 4
    falls = findings.trend([(n, 2 - n / 60 + 0.01 * i) for i, n in enumerate(places)])
    assert falls.interval.high < 0
    assert falls.p < 0.01
    rng = np.random.default_rng(1)
    noise = findings.trend([(n, float(rng.normal())) for n in places])
    assert noise.interval.low < 0 < noise.interval.high
