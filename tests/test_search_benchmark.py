"""The benchmark of search: what is kept of replays, when a row counts as reached, and that one command makes it all."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import pathlib
import re
import runpy
import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import yaml
from scipy.stats import spearmanr

from tests.fakes import recorded
from tuner.lab import prepared_table, replay, replay_search
from tuner.lab.replay_search import ReplaySpec
from tuner.lab.tables.scoring import ReplayRun
from tuner.lab.tables.table import BenchmarkTable

SEARCH = pathlib.Path(__file__).parent.parent / "benchmarks" / "search"


@pytest.fixture(scope="module")
def modules() -> Iterator[types.SimpleNamespace]:
    """The files of the benchmark, as its command imports them."""
    before = list(sys.path)
    sys.path[:0] = [str(SEARCH), str(SEARCH.parent)]
    names = (
        "conditions",
        "measure",
        "replayed_case",
        "row",
        "search_rows",
        "study_rows",
        "rows",
        "page",
        "oracle",
        "timing",
    )
    try:
        yield types.SimpleNamespace(**{name: __import__(name) for name in names})
    finally:
        sys.path[:] = before
        for name in (*names, "result"):
            sys.modules.pop(name, None)


def table(**changes: Any) -> BenchmarkTable:
    """Some forty cells."""
    made = recorded.table(passes=4, every=12)
    head = dataclasses.replace(made.head, **changes)
    return dataclasses.replace(made, head=head)


GROUND = prepared_table.prepare_table(table())


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """The command in this process: code, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_path(str(SEARCH / "run.py"), run_name="__main__")
    return int(ended.value.code or 0), out.getvalue(), err.getvalue()


def test_one_command_replays_and_writes_the_page(
    modules: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there is not replayed again; a table that is not there is left out and named."""
    for made in (table(), table(name="toy-5", concurrency=5)):
        recorded.written(tmp_path / "tables" / made.head.name, made)
    cases = [
        {"table": name, "objective": "mean", "half": half}
        for name, half in (("toy-20", "chosen"), ("toy-5", "judged"), ("toy-9", "judged"))
    ]
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump(cases), encoding="utf-8")
    for name, value in {"WHOLE_S": 4.0, "HALF_S": 3.0}.items():
        monkeypatch.setattr(modules.conditions, name, value)
        monkeypatch.setattr(modules.measure, name, value)
    monkeypatch.setattr(modules.measure, "AT_S", (3, 4))
    monkeypatch.setattr(modules.search_rows, "GAPS", {3: 0.01, 4: 0.007})
    folders = [f"--tables={tmp_path / 'tables'}", f"--cases={tmp_path / 'cases.yaml'}"]
    folders += [f"--data={tmp_path / 'data'}", f"--out={tmp_path}"]
    options = [*folders, "--seeds=1", "--jobs=1", "--peers=random", "--only"]
    code, out, err = run_here(monkeypatch, *options, "tried", "oracle")
    assert code == 0, err
    assert "toy-9: not recorded yet" in err
    assert "4 conditions, 4 left" in err
    assert "\n| toy-5 (judges) |" in out
    code, _, err = run_here(monkeypatch, *options, "oracle")
    assert (code, "4 conditions, 0 left" in err) == (0, True), err
    code, _, err = run_here(monkeypatch, *options, "structred")
    assert (code, "structred: no row, case or condition" in err) == (2, True)
    code, _, err = run_here(monkeypatch, *folders, "--page")
    assert code == 0, err
    text = (tmp_path / "search.md").read_text(encoding="utf-8")
    assert all(f"\n| {key} " in text for key in modules.rows.EVERY)
    assert "left out: toy-9" in text
    assert f"]({modules.page.PICTURE})" in text
    drawn = (tmp_path / modules.page.PICTURE).read_text(encoding="utf-8")
    assert {
        ">structured<",
        ">oracle<",
        ">all recordings, mean of 2<",
        ">judges, mean of 1<",
    } <= set(re.findall(r">[^<>]+<", drawn))


def test_a_replay_ends_with_the_trial_that_passes_its_time() -> None:
    order = ReplaySpec(sampler="random", trials=100, max_s=10.0, seeds=(0,))
    run = replay.one_run(GROUND, order, 0)
    assert run.seconds[-2] < 10.0 <= run.seconds[-1]


def test_a_verdict_ends_after_the_search(modules: Any) -> None:
    order = ReplaySpec(
        sampler="random", trials=100, max_s=10.0, seeds=(0,), pairs=6, studies_s=(math.inf,)
    )
    run = replay.one_run(GROUND, order, 0)
    (ended,) = run.studies
    assert ended.pairs
    assert ended.seconds > run.seconds[-1] + 6


def test_a_search_serves_studies_of_several_lengths(modules: Any) -> None:
    """Each ends as it would alone, and the search goes on as if there had been none."""
    order = ReplaySpec(
        sampler="random", trials=100, max_s=20.0, seeds=(0,), pairs=6, studies_s=(10.0, 20.0)
    )
    alone = dataclasses.replace(order, max_s=10.0, studies_s=(math.inf,))
    run = replay.one_run(GROUND, order, 0)
    assert run.studies[0] == replay.one_run(GROUND, alone, 0).studies[0]
    assert run.cells == replay.one_run(GROUND, dataclasses.replace(alone, max_s=20.0), 0).cells
    condition = modules.conditions.Condition(rows=(), max_s=20.0, studies_s=order.studies_s)
    kept = modules.measure.summary(GROUND, condition, [run])["studies"]
    assert list(kept) == ["10", "20"]
    for verdict, (one,) in zip(run.studies, kept.values(), strict=True):
        assert one["seconds"] == verdict.seconds
        served = verdict.best if one["outcome"] == "better" else GROUND.problem.default
        assert one["is_good"] == (served in GROUND.truth.good(0.05))
        assert verdict.leading is not None
        assert one["leading_regret"] == GROUND.truth.regret(verdict.leading)
    assert run.studies[1].recommended == run.recommended[-1]


def test_a_misleading_prediction_correlates_and_is_wrong() -> None:
    """It is made from the default's evaluation."""
    order = ReplaySpec(sampler="structured", trials=10, seeds=(0,), guess="misleading")
    evaluator = replay_search.make_evaluator(GROUND, order.perturbations, 0)
    search = replay_search.search_of(GROUND, order, 0, evaluator)
    assert search.problem.prediction is None
    search.step()
    problem = search.problem
    assert problem.prediction is not None
    places = [problem.candidates.index_of(cell) for cell in GROUND.truth.candidates]
    told = problem.prediction[places]  # type: ignore[index]
    assert spearmanr(told, GROUND.truth.log_mean).statistic > 0.9
    assert problem.predicted_best is not None
    assert 0.15 < GROUND.truth.regret(problem.predicted_best) < 0.35


def test_the_oracle_comes_close_and_says_when(modules: Any) -> None:
    """Ten arms, whose noise of 3 % it has learnt."""
    law = modules.oracle.noise_law(GROUND)
    assert 0.005 < (law.quick**2 + law.slow**2 + law.own**2) ** 0.5 < 0.09
    run = modules.oracle.search(GROUND, law, 0, max_s=40.0)
    assert run.recommended[-1] in GROUND.truth.good(0.05)
    assert np.all(np.diff(run.seconds) > 0)


def test_figures_are_taken_at_their_times(modules: Any) -> None:
    """Before the first trial the default counts, after the last one the last recommendation."""
    truth, default = GROUND.truth, GROUND.problem.default
    best = truth.candidates[truth.best]
    run = ReplayRun(
        seed=0,
        cells=(default, best, default),
        recommended=(default, default, best),
        seconds=(20.0, 40.0, 61.0),
    )
    condition = modules.conditions.Condition(rows=(), max_s=60.0)
    found = modules.measure.summary(GROUND, condition, [run])
    lost = truth.regret(default)
    assert found["regret_at_s"] == {key: [lost] for key in ("15", "30", "53", "60")}
    assert (found["tried"], found["trials"]) == ([2], {"60": 2.0})
    assert found["within"]["0.05"] == {"60": [None]}, "the third trial ended too late"


def case(modules: Any, name: str = "toy", *, half: str = "chosen", **conditions: Any) -> Any:
    facts = {
        "table": name,
        "half": half,
        "is_main": True,
        "model": "toy",
        "default_regret": 0.5,
        "candidates": 160,
        "good": {"0.03": 4},
    }
    named = {label.replace("_", "-"): found for label, found in conditions.items()}
    return modules.replayed_case.ReplayedCase(name=name, facts=facts, conditions=named)


def at(regret: float, **times: float) -> dict[str, Any]:
    given = {"30": regret, "53": regret, "60": regret, "90": regret, "120": regret} | times
    return {"regret_at_s": {key: [value] * 3 for key, value in given.items()}}


@pytest.mark.parametrize(
    ("trials", "verdict"),
    [([10] * 9 + [40], "reached"), ([11] * 10, "MISSED"), ([2] * 8 + [None, 2], "reached")],
)
def test_tried(modules: Any, trials: list[int | None], verdict: str) -> None:
    row = modules.search_rows.tried([case(modules, structured={"tried": trials})])
    assert row.verdict == verdict


def test_the_gap_must_be_small_on_the_judges_too(modules: Any) -> None:
    good = case(modules, "a", structured=at(0.01), oracle=at(0.01))
    bad = case(modules, "b", half="judged", structured=at(0.022), oracle=at(0.01))
    assert modules.search_rows.gap([good]).verdict == "reached"
    row = modules.search_rows.gap([good, bad])
    assert (row.verdict, row.measured) == ("MISSED", "all +0.6 / +0.6; judges +1.2 / +1.2")


def test_harm_is_that_of_the_worst_trial_and_the_rule_may_cost_nothing(modules: Any) -> None:
    def row(shares: list[float], regret: float) -> Any:
        ends = {at: [{"regret": regret, "leading_regret": 0.02}] for at in ("30", "60")}
        return modules.search_rows.harm(
            [case(modules, structured={"harm": shares, "studies": ends})]
        )

    shares = [0.0] * 56
    assert row(shares, 0.02).verdict == "reached"
    assert row(shares, 0.021).verdict == "MISSED"
    shares[3] = 0.06
    found = row(shares, 0.01)
    told = "6.0 % (toy); all 1.0 % / 1.0 %, without 2.0 % / 2.0 %"
    assert (found.verdict, found.measured, found.lines[0][2]) == ("MISSED", told, "8")


def test_recordings_are_the_units_of_the_comparison(modules: Any) -> None:
    """Six recordings, one of two cases: six differences; a peer that is not there is named."""
    cases = [case(modules, str(n), structured=at(0.01 + n / 1e4), tpe=at(0.02)) for n in range(6)]
    twice = case(modules, "0", structured=at(0.01), tpe=at(0.02))
    row = modules.search_rows.against_peers([*cases, twice])
    assert row.lines[0][:2] == ("tpe", "6")
    assert row.measured.startswith("1 of 1; not measured: random")
    assert row.verdict == "not measured"
    peers = {peer: at(0.01) for peer in modules.conditions.PEERS}
    for ours, verdict in ((0.04, "MISSED"), (0.011, "reached")):
        every = [case(modules, str(n), structured=at(ours + n / 1e4), **peers) for n in range(6)]
        assert modules.search_rows.against_peers(every).verdict == verdict
    every[0] = case(modules, "0", structured=at(0.01), **{**peers, "tpe": {}})
    row = modules.search_rows.against_peers(every)
    assert (row.verdict, row.measured) == ("not measured", "9 of 9; not measured: tpe on 1")


def test_a_study_takes_the_least_time_after_which_enough_seeds_are_right(modules: Any) -> None:
    def studies(good: int, seconds: float) -> list[dict[str, Any]]:
        return [{"is_good": n < good, "seconds": seconds, "covers": True} for n in range(10)]

    found = {
        "structured": {
            "studies": {"15": studies(8, 30.0), "30": studies(9, 50.0), "60": studies(10, 80.0)}
        },
        "oracle": {"within_s": {"0.05": [40.0] * 10}},
    }
    names = ("resnet-20-quiet", "resnet-20", "toy")
    row = modules.study_rows.study([case(modules, name, **found) for name in names])
    told = "resnet-20-quiet 50 s, resnet-20 50 s; others at most 1.2 times the oracle's (toy)"
    alike = "0.8 times the oracle's and the same verification (toy)"  # 50 over 40 + 20
    assert (row.verdict, row.measured) == ("reached", f"{told}, at most {alike}")
    found["oracle"] = {"within_s": {"0.05": [30.0] * 10}}
    row = modules.study_rows.study([case(modules, name, **found) for name in names])
    assert row.verdict == "MISSED"


def test_wrong_predictions_are_held_against_the_plain_process(modules: Any) -> None:
    def kept(trials: int | None) -> dict[str, Any]:
        return {"within": {"0.05": {"60": [trials] * 3}}, "trials": {"60": 50.0}}

    labels = {f"wrong-{kind}": kept(20) for kind in modules.conditions.WRONG}
    found = {"gp": kept(20), "structured": kept(10), **labels}
    assert modules.search_rows.wrong([case(modules, **found)]).verdict == "reached"
    found["wrong-misleading"] = kept(None)
    row = modules.search_rows.wrong([case(modules, **found)])
    assert (row.verdict, "misleading 2.50" in row.measured) == ("MISSED", True)


def test_the_samplers_own_time_is_measured(modules: Any) -> None:
    """Only that it runs: a test asserts no duration."""
    assert modules.timing.seconds_of("gp", trials=8) > 0
