"""The page of search: what is kept of replays, when a row counts as reached, and that one command makes it all."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import math
import pathlib
import runpy
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.fakes import recorded
from tuner.evaluation.simulation.profile import BatchCost, CostProfile
from tuner.lab import prepared_table, replay
from tuner.lab.tables.table import BenchmarkTable
from tuner.lab.tables.table_files import TableFolder

ROOT = pathlib.Path(__file__).parent.parent
SEARCH = ROOT / "benchmarks" / "search"
PROFILE = CostProfile(
    batches=tuple(
        BatchCost(
            threads=1,
            size=size,
            service_s=1e-3 * (3 + 2.2 * size),
            cpu_s=1e-3 * (3 + 2.2 * size),
            gateway_s=1e-4,
            client_s=1e-4,
        )
        for size in (1, 4, 16)
    ),
    client_batch=1,
    seconds=2.0,
)
SHARES = ("0.01", "0.03", "0.05", "0.1")


@pytest.fixture(scope="module")
def modules() -> Iterator[types.SimpleNamespace]:
    """The files of the benchmark, as its command imports them."""
    before = list(sys.path)
    sys.path[:0] = [str(SEARCH), str(SEARCH.parent)]
    names = ("measure", "rows", "page", "timing")
    try:
        yield types.SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    finally:
        sys.path[:] = before
        for name in (*names, "result"):
            sys.modules.pop(name, None)


def table(**changes: Any) -> BenchmarkTable:
    """Some forty cells, with a profile."""
    made = recorded.table(passes=4, every=12)
    head = dataclasses.replace(made.head, profile=PROFILE.as_json(), **changes)
    return dataclasses.replace(made, head=head)


def write(folder: pathlib.Path, made: BenchmarkTable) -> None:
    with TableFolder(folder / made.head.name) as out:
        out.begin(made.head)
        for launch in made.evaluations:
            out.append(launch)
        out.finish(made.head)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SEARCH / "run.py"), *arguments],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    """The same in this process, which has imported what it needs: code and standard error."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments])
    err = io.StringIO()
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        runpy.run_path(str(SEARCH / "run.py"), run_name="__main__")
    return int(ended.value.code or 0), err.getvalue()


def test_one_command_replays_and_writes_the_page(
    modules: Any, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed or not, what is there is not replayed again; a table that was recorded on is."""
    tables = tmp_path / "tables"
    write(tables, table())
    write(tables, table(name="toy-5", concurrency=5))
    monkeypatch.setattr(modules.measure, "PEER_TRIALS", 16)
    monkeypatch.setattr(modules.measure, "STUDY_TRIALS", 10)
    folders = ("--tables", str(tables), "--data", str(tmp_path / "data"), "--out", str(tmp_path))
    options = [
        *folders,
        *("--seeds", "1", "--studies", "2", "--jobs", "1", "--peers", "random"),
        *("--only", "random", "after-toy-20", "null"),
    ]
    code, said = run_here(monkeypatch, *options)
    assert code == 0, said
    assert "5 conditions, 0 of them done; 5 left, about" in said
    (tmp_path / "search.md").unlink()
    alone = run(*folders, "--page")
    assert alone.returncode == 0, alone.stderr
    text = (tmp_path / "search.md").read_text(encoding="utf-8")
    assert "## toy-5" in text
    assert "after a search on toy-20" in text
    assert "of 2 (and" in text, "a study of the null table on each"
    picture = ET.parse(tmp_path / "search" / "trials.svg").getroot()
    assert picture.tag.endswith("svg")
    code, said = run_here(monkeypatch, *options)
    assert (code, "5 of them done; 0 left" in said) == (0, True), said
    code, said = run_here(monkeypatch, *options, "--seeds", "2", "--only", "random")
    assert code == 0, said
    assert said.count(" random: ") == 2


@pytest.mark.usefixtures("modules")
def test_without_data_it_says_what_to_do(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tables").mkdir()
    folders = ("--tables", str(tmp_path / "tables"), "--data", str(tmp_path))
    code, said = run_here(monkeypatch, *folders, "--page")
    assert code == 2
    assert "tune record" in said


def test_every_condition_is_kept_with_a_figure_per_seed(
    modules: Any, tmp_path: pathlib.Path
) -> None:
    """Those of a table with a prediction, each with six trials: all that the rows read is there."""
    ground = prepared_table.prepare_table(table())
    grounds = {
        "toy-20": ground,
        "toy-5": prepared_table.prepare_table(table(name="toy-5", concurrency=5)),
    }
    tasks = modules.measure.tasks_of(
        grounds, data=tmp_path, peers=("random", "prediction"), seeds=2, studies=2
    )
    mine = [task for task in tasks if task.table == "toy-20"]
    labels = {task.label for task in mine}
    assert {"gp", "structured-twice", "gp-walls", "null", "coverage", "after-toy-5"} <= labels
    for task in mine:
        short = dataclasses.replace(
            task,
            seeds=1,
            condition=dataclasses.replace(
                task.condition, trials=6, pairs=min(task.condition.pairs, 6)
            ),
        )
        order = short.condition.order(1, grounds)
        found = modules.measure.summary(
            ground,
            short,
            replay.replay(ground, dataclasses.replace(order, after_trials=4), workers=1),
        )
        assert set(found["trials_to"]) == set(SHARES)
        assert (len(found["lost"]), found["seeds"]) == (1, 1)
        assert bool(found["verdicts"]) == bool(task.condition.pairs)
        json.dumps(found, allow_nan=False)


def test_a_table_without_a_prediction_has_none_that_is_wrong(modules: Any) -> None:
    without = modules.measure.conditions(("random", "prediction"), has_profile=False)
    wrong = {f"structured-{kind}" for kind in modules.rows.WRONG}
    assert not {*wrong, "prediction"} & set(without)
    assert wrong <= set(modules.measure.conditions((), has_profile=True))


def test_the_error_of_a_prediction_is_told(modules: Any) -> None:
    """One that knows the truth up to a factor errs in nothing but its level."""
    ground = prepared_table.prepare_table(table())
    found = modules.measure.simulator_error(ground)
    assert -1 <= found["rank_correlation"] <= 1
    assert found["log_rmse"] > 0
    assert found["argmin_regret"] >= 0
    without = recorded.table(passes=4, every=12)
    assert modules.measure.simulator_error(prepared_table.prepare_table(without)) is None


def facts(**changes: Any) -> dict[str, Any]:
    return {
        "model": "toy",
        "concurrency": 20,
        "engine": "luthier",
        "objective": "mean",
        "cpu": "Toy CPU",
        "cores": 4,
        "cells": 300,
        "feasible": 290,
        "launches": 1200,
        "optimum": 9.5,
        "optimum_se": 0.004,
        "default_regret": 0.8,
        "within": {
            share: {"tolerance": float(share), "good_cells": 3, "random_median": 45}
            for share in SHARES
        },
        "simulator": {"rank_correlation": 0.9, "argmin_regret": 0.02, "log_rmse": 0.2, "level": 0},
    } | changes


def kept(
    sampler: str, trials_to: float | None, regret: float = 0.02, **changes: Any
) -> dict[str, Any]:
    """Twenty seeds that all take as long and err about as much."""
    rng = np.random.default_rng(0)
    return {
        "sampler": sampler,
        "trials": 50,
        "seeds": 20,
        "trials_to": {share: [trials_to] * 20 for share in SHARES},
        "regrets": {
            budget: (regret + 0.001 * rng.standard_normal(20)).tolist()
            for budget in ("15", "30", "50")
        },
        "lost": [[]] * 20,
        "verdicts": [],
    } | changes


def on(modules: Any, **conditions: Any) -> Any:
    return modules.rows.ReplayedTable(
        name="toy-20",
        facts=facts(),
        conditions={name.replace("_", "-"): one for name, one in conditions.items()},
    )


@pytest.mark.parametrize(
    ("trials", "random", "within", "against_random", "why"),
    [
        (10, 30, "reached", "reached", "15 trials, and a third of 30"),
        (16, 90, "MISSED", "reached", "more than 15"),
        (10, 29, "reached", "MISSED", "more than a third of random's"),
        (None, 45, "MISSED", "MISSED", "half of the searches never get there"),
    ],
)
def test_trials_within_three_percent(
    modules: Any, trials: int | None, random: int, within: str, against_random: str, why: str
) -> None:
    found = on(modules, gp=kept("gp", trials))
    found.facts["within"]["0.03"]["random_median"] = random
    assert modules.rows.within(found, "gp").verdict == within, why
    assert modules.rows.against_random(found, "gp").verdict == against_random, why


def test_within_one_percent_is_told_where_it_can_be(modules: Any) -> None:
    found = on(modules, gp=kept("gp", 12))
    assert "12 / 12" in modules.rows.within_one(found, "gp").measured
    found.facts["optimum_se"] = 0.02
    assert "cannot be told" in modules.rows.within_one(found, "gp").measured


def test_a_peer_that_is_better_makes_the_row_missed_and_is_named(modules: Any) -> None:
    """A point is forgiven, two are not; a named peer must be there, one that is not named is not judged."""
    peers = {name: kept(name, 30, 0.015) for name in modules.rows.NAMED_PEERS}
    good = on(modules, gp=kept("gp", 10, 0.02), **peers)
    assert modules.rows.noninferior(good, "gp").verdict == "reached"
    del peers["smac"]
    some = modules.rows.noninferior(on(modules, gp=kept("gp", 10, 0.02), **peers), "gp")
    assert (some.verdict, some.measured) == ("not measured", "12 of 12; smac not measured")
    bad = on(modules, gp=kept("gp", 10, 0.04), tpe=kept("tpe", 30, 0.015))
    row = modules.rows.noninferior(bad, "gp")
    assert row.verdict == "MISSED"
    assert any(loss.startswith("tpe at 30: worse, +2.5 points") for loss in row.losses)
    other = on(modules, gp=kept("gp", 10, 0.04), ridge=kept("ridge", 30, 0.0))
    assert modules.rows.noninferior(other, "gp").verdict == "not measured"


@pytest.mark.parametrize(
    ("with_noise", "verdict"), [(13, "reached"), (14, "MISSED"), (None, "MISSED")]
)
def test_noise_costs_at_most_three_tenths_more(
    modules: Any, with_noise: int | None, verdict: str
) -> None:
    found = on(modules, gp=kept("gp", 10), gp_noise=kept("gp", with_noise))
    assert modules.rows.noise(found, "gp").verdict == verdict


def test_failures_are_counted_from_the_fourth_on(modules: Any) -> None:
    """Of 40 trials, 35 come after the third failure; two of them failed: 5.7 %."""
    one = kept("gp", 10, trials=40, seeds=2, lost=[[1, 2, 4, 9, 20], [3]])
    row = modules.rows.failures(on(modules, gp_walls=one), "gp")
    assert "5.7 % of 35 (1 of 2 searches)" in row.measured
    assert row.verdict == "MISSED"
    none = kept("gp", 10, lost=[[1], []], seeds=2)
    assert modules.rows.failures(on(modules, gp_walls=none), "gp").verdict == "reported"


@pytest.mark.parametrize(
    ("trials", "loss", "verdict", "why"),
    [
        (5, 0.10, "reached", "half, and the old best loses 10 %"),
        (6, 0.10, "MISSED", "more than half of the trials"),
        (5, 0.01, "reported", "the old best is as good here: no target"),
        (5, 0.04, "MISSED", "worse after 30 than the old best"),
        (5, None, "reached", "the old best is no configuration here"),
    ],
)
def test_the_second_level(
    modules: Any, trials: int, loss: float | None, verdict: str, why: str
) -> None:
    after = kept("structured", trials, 0.05, old_best_regret=loss)
    found = on(modules, structured=kept("structured", 10), after_toy_5=after)
    (row,) = modules.rows.second_level(found)
    assert row.verdict == verdict, why


def test_searches_that_were_watched_for_longer_are_not_compared(modules: Any) -> None:
    """What is reached *for good* depends on how long one looks."""
    found = on(modules, gp=kept("gp", 10), gp_noise=kept("gp", 10, trials=40))
    assert modules.rows.noise(found, "gp").verdict == "not measured"


def test_a_ratio_has_its_interval_over_seeds(modules: Any) -> None:
    """Seeds are resampled in pairs; where a side may never get there, that is said."""
    found = on(modules, gp=kept("gp", 10), gp_noise=kept("gp", 12))
    assert modules.rows.noise(found, "gp").measured == "1.20 [1.20, 1.20] (12 over 10)"
    half = [12.0] * 11 + [None] * 9
    found.conditions["gp-noise"]["trials_to"]["0.05"] = half
    assert "1.20 [1.20, never]" in modules.rows.noise(found, "gp").measured
    found.conditions["gp"]["trials_to"]["0.05"] = [None] * 20
    better = modules.rows.noise(found, "gp")
    assert (better.verdict, better.measured[:3]) == ("reached", "12;")
    found.conditions["gp-noise"]["trials_to"]["0.05"] = [None] * 20
    assert modules.rows.noise(found, "gp").measured == "neither gets there"


def test_the_own_prediction_is_held_against_the_plain_process(modules: Any) -> None:
    """A ratio above 1 is a loss, told with the regrets."""
    found = on(modules, gp=kept("gp", 10, 0.02), structured=kept("structured", 12, 0.03))
    row = modules.rows.own_prediction(found)
    assert row.verdict == "reported"
    assert row.measured.startswith("1.20 [1.20, 1.20] (12 over 10); regret at 15 +1.0 points")
    found.facts["simulator"] = None
    assert "no simulator" in modules.rows.own_prediction(found).measured


def test_live_studies_are_shown_when_all_are_there(modules: Any) -> None:
    """Nineteen are not twenty."""
    studies = [{"outcome": "no difference shown"}] * 19
    row = modules.rows.live_null({"studies": studies})
    assert (row.verdict, row.measured) == ("not measured", "19: 19 no difference shown")
    whole = modules.rows.live_null({"studies": [*studies, {"outcome": "better"}]})
    assert (whole.verdict, whole.measured) == ("reported", "20: 1 better, 19 no difference shown")


def test_a_wrong_simulator_is_judged_against_the_plain_process(modules: Any) -> None:
    found = on(modules, gp=kept("gp", 20), structured_inverted=kept("structured", 26))
    assert modules.rows.wrong(found, "inverted").verdict == "MISSED"
    assert modules.rows.wrong(found, "constant").verdict == "not measured"


def test_racing_is_judged_against_the_best_length_at_equal_regret(modules: Any) -> None:
    """A length whose regret is more than a point above the least is not the best one, though it is quick."""

    def spent(seconds: list[float], regrets: list[float]) -> dict[str, Any]:
        return {"sampler": "gp", "seconds": {"30": seconds}, "regrets": {"30": regrets}}

    found = on(
        modules,
        blocks_1=spent([20.0, 22.0], [0.08, 0.08]),
        blocks_2=spent([40.0, 42.0], [0.02, 0.02]),
        structured=spent([80.0, 80.0], [0.015, 0.015]),
        raced=spent([29.0, 31.0], [0.02, 0.03]),
    )
    row = modules.rows.racing(found)
    assert row.verdict == "reached"
    assert "26.8 % less than 2 block(s)" in row.measured
    assert modules.rows.racing(on(modules)).verdict == "not measured"
    told = modules.rows.lengths(found).measured.split("; ")
    assert told[1].startswith("2: +0.5 points, bound")
    assert told[1].endswith("48.8 % less than whole ones")
    found.facts["objective"] = "p99"
    for none in (modules.rows.racing(found), modules.rows.lengths(found)):
        assert (none.verdict, none.measured) == ("reported", modules.rows.TAIL)


def test_a_search_that_is_told_the_best_is_good_from_its_first_trial_where_all_are(
    modules: Any,
) -> None:
    """And needs no fewer trials for a smaller share."""
    found = modules.measure.told_best(prepared_table.prepare_table(table()))
    assert set(found) == set(SHARES)
    medians = [math.inf if found[s]["median"] is None else found[s]["median"] for s in SHARES]
    assert medians == sorted(medians, reverse=True)
    assert all(one["median"] is None or one["median"] >= 1 for one in found.values())


def test_false_verdicts_and_coverage_are_counted_over_all_tables(modules: Any) -> None:
    def verdict(outcome: str, *, covers: bool) -> dict[str, Any]:
        return {"outcome": outcome, "covers": covers}

    null = [verdict("better", covers=False)] * 19 + [
        verdict("no difference shown", covers=True)
    ] * 481
    held = [verdict("better", covers=True)] * 475 + [verdict("better", covers=False)] * 25
    one = on(
        modules,
        null=kept("structured", 1, verdicts=null),
        coverage=kept("structured", 1, verdicts=held[:-5]),
        coverage_raw=kept("structured", 1, verdicts=held),
    )
    assert modules.rows.null([one, one]).verdict == "reached"
    assert "38 of 1,000" in modules.rows.null([one, one]).measured
    more = [verdict("better", covers=False), *null[:-1]]
    two = on(modules, null=kept("structured", 1, verdicts=more))
    assert modules.rows.null([one, two]).verdict == "MISSED"
    judged = modules.rows.coverage([one, one], "coverage-raw")
    assert (judged.verdict, judged.measured) == ("reached", "95.0 % of 1,000")
    assert modules.rows.coverage([one, one], "coverage").verdict == "reported"
    few = on(modules, coverage_raw=kept("structured", 1, verdicts=[*held[-50:], {"covers": None}]))
    missed = modules.rows.coverage([few], "coverage-raw")
    assert (missed.verdict, missed.losses) == ("MISSED", ("toy-20 50.0 %",))
    assert missed.measured == "50.0 % of 50 (1 more gave no interval)"


def test_the_page_shows_every_row_and_every_losing_case(
    modules: Any, tmp_path: pathlib.Path
) -> None:
    """A missed row stands in the overview with its table, and a row without data says so."""
    peers = {"random": kept("random", 40, 0.1), "tpe": kept("tpe", 10, 0.0)}
    lost = on(modules, gp=kept("gp", 20), **peers)
    won = dataclasses.replace(on(modules, gp=kept("gp", 5)), name="toy-5")
    text = modules.page.page([lost, won], {"timing": {"seconds": {"gp": 0.1, "structured": 0.2}}})
    overview = text.partition("## The tables")[0]
    (line,) = [one for one in overview.splitlines() if one.startswith("| gp: within 3 %")]
    assert "1 of 2" in line
    assert "toy-20" in line
    assert "not measured" in overview
    assert "gp 0.10 s, structured 0.20 s" in overview
    section = text.partition("## toy-20")[2].partition("## toy-5")[0]
    assert "| random" in section
    assert "- gp: non-inferior: tpe at 15: worse" in section
    assert "| gp | 2.0 % |" in " ".join(overview.split()), "samplers of all tables, at a glance"
    for draw in (modules.page.picture, modules.page.regrets_picture):
        picture = draw([lost, won])
        assert "nan" not in picture
        assert ET.fromstring(picture).tag.endswith("svg")


def test_the_samplers_own_time_is_measured(modules: Any) -> None:
    """Five proposals among 5,000 configurations; how long they take is not judged here."""
    assert 0 < modules.timing.seconds_of("gp", trials=5) < math.inf


def test_the_pages_name_the_command(modules: Any) -> None:
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    assert modules.page.COMMAND in readme
