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


def launch(key: dict[str, float], mean_ms: float, **more: Any) -> dict[str, Any]:
    """A row of one launch."""
    figures = {"mean_ms": mean_ms, "p99_ms": 3 * mean_ms, "throughput_per_s": 2e4 / mean_ms}
    return (
        {"key": {**key, "round": 0}, "status": "ok", "requests": 900, "errors": 0} | figures | more
    )


def data_of_every_kind(folder: pathlib.Path) -> None:
    """A little of what `measure.py` keeps, of two models."""
    rng = np.random.default_rng(0)
    took_ms = np.concatenate([rng.normal(10, 0.5, 300), rng.normal(30, 1, 200)])
    single = {"begun_s": list(np.linspace(0, 2, 500)), "took_ms": list(took_ms)}
    failed = {"key": {"concurrency": 60, "round": 1}, "status": "failed", "reason": "killed"}
    search = {
        "key": {"concurrency": 20, "seed": 0},
        "trials": 4,
        "seconds": 2.0,
        "guided": "gp",
        "objectives": {"random": [9.0, None, 8.0, 7.0], "guided": [None, 9.0, 6.0, 5.0]},
        "remeasured": {"random, half": [9.0, 9.5], "random": [7.5, 7.7], "guided": [6.0, 6.3]},
        "quantiles": {
            role: list(np.linspace(1, 12, 101)) for role in ("random, half", "random", "guided")
        },
    }
    others = [{**search, "key": {"concurrency": n, "seed": 0}} for n in (5, 40, 60)]
    kinds: dict[str, list[dict[str, Any]]] = {
        "a": [launch({"concurrency": n}, 10, **single) for n in (5, 20)],
        "b": [*(launch({"concurrency": n}, 2 + n) for n in (1, 20, 60)), failed],
        "search": [search, *others],
        "batch": [launch({"batching.max_size": n}, 20 / n) for n in (1, 4, 16)],
        "replicas": [launch({"replica.count": n}, 20 / n) for n in (1, 2)],
        "slo": [launch({"batching.slo_ms": n}, n) for n in (5, 20)],
    }
    for kind, rows in kinds.items():
        for name in ("resnet-process", "gan-docker"):
            lines = [{"machine": {"date": "2026-01-01"}}, *rows]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / f"{kind}-{name}.jsonl").write_text(text, encoding="utf-8")


def test_the_study_draws_every_figure_from_its_data(
    run_script: Run, tmp_path: pathlib.Path
) -> None:
    """Each picture is well-formed SVG that the page shows, beside the claim; a row that failed is left out."""
    data_of_every_kind(tmp_path)
    folders = ("--data", str(tmp_path), "--out", str(tmp_path / "out"))
    done = run_script(str(STUDY / "draw.py"), *folders)
    assert done.code == 0, done.err
    page = (tmp_path / "out" / "study.md").read_text(encoding="utf-8")
    pictures = sorted((tmp_path / "out" / "study").glob("*.svg"))
    assert len(pictures) == 8
    for picture in pictures:
        assert f"(study/{picture.name})" in page
        assert "nan" not in picture.read_text(encoding="utf-8").replace("(gan", "")
        assert ET.parse(picture).getroot().tag.endswith("svg")
    assert page.count("Claim: ") == 8
    assert "clusters: 2 at 5, 2 at 20" in page
    assert "2 ms + 1 ms a request, R² 1.0000" in page
    assert "gan (docker)" in page


def test_a_study_without_data_says_what_to_do(run_script: Run, tmp_path: pathlib.Path) -> None:
    """And what is measured there is told by `--help`."""
    done = run_script(str(STUDY / "draw.py"), "--data", str(tmp_path), "--out", str(tmp_path))
    assert done.code == 2
    assert "run measure.py first" in done.err
    assert "--figure" in run_script(str(STUDY / "measure.py"), "--help").out


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
