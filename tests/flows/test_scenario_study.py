"""`tune --scenario` as a user runs it: many models on one server, from the default to the export."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml

from serving.settings.sources import resolve
from tests.fakes.commands import Done, tune
from tuner.store import records

SCENARIO = """
seconds: 60
memory_pages: 3
models:
  hot: {model: echo}
  rare: {copies: 4, model: echo}
traffic:
  hot: {rate: 150, deadline_ms: 100}
  rare: {rate: 100, arrivals: serverless, deadline_ms: 100}
"""
SPACE = """
name: two
knobs:
  clockwork.deadline_margin: {type: float, choices: [0.05, 0.5], default: 0.05}
  clockwork.duration_margin: {type: float, choices: [0.1, 10.0], default: 0.1}
"""
SHORT = ("--seconds", "0.6", "--warmup", "0.2")


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("scenario")
    (folder / "toy.yaml").write_text(SCENARIO, encoding="utf-8")
    (folder / "two.yaml").write_text(SPACE, encoding="utf-8")
    return folder


@pytest.fixture(name="finished", scope="module")
def _finished(folder: pathlib.Path) -> Done:
    budget = ("--trials", "2", "--pairs", "2", "--stop-ei", "0", "--study", "one")
    return tune(folder, "--scenario", "toy.yaml", "--space", "two.yaml", *SHORT, *budget, "--json")


def test_a_study_of_a_scenario_is_a_whole_study(folder: pathlib.Path, finished: Done) -> None:
    """Goodput within the scenario's deadline, its own rate, a report, and its copy in the folder."""
    assert finished.code == 0, finished.err
    answer = json.loads(finished.out)
    assert (answer["model"], answer["engine"], answer["objective"]) == ("toy", "luthier", "goodput")
    assert (answer["rate_per_s"], answer["arrivals"]) == (250.0, "scenario")
    assert answer["trials"] == 2
    assert answer["default"] == {
        "clockwork.deadline_margin": 0.05,
        "clockwork.duration_margin": 0.1,
    }
    assert "toy at 250 requests/s of the scenario" in finished.err
    shown = tune(folder, "resume", "one").out
    assert "then deploy its models with: sh runs/one/deploy.sh" in shown
    assert os.access(folder / "runs/one/deploy.sh", os.X_OK)
    page = (folder / "runs/one/report.html").read_text(encoding="utf-8")
    offered = answer["offered_per_s"]
    assert offered == pytest.approx(250, rel=0.5)
    head = f"<h1>toy at {offered:,.0f} requests/s (the scenario&#x27;s file says 250)</h1>"
    assert head in page
    assert "5 models on shared replicas (1 × echo, 4 × echo)" in page
    assert "answered in time, of all due" in page
    assert "concurrency 500" not in page
    assert (folder / "runs/one/scenario.yaml").read_text(encoding="utf-8") == SCENARIO


def test_launches_of_the_search_are_sent_the_same_requests(
    folder: pathlib.Path, finished: Done
) -> None:
    """When they are due is the draw's to say, not the launch's; some are refused, and none of them is an error."""
    assert finished.code == 0, finished.err
    kept = [records.read(folder / f"runs/one/trials/{n}/requests.npz") for n in (0, 1)]
    due_s = [np.sort(one.intended_s) for one in kept if one is not None]
    count = min(map(len, due_s))
    assert len(due_s) == 2
    assert count > 0.9 * 250 * 0.8
    assert np.array_equal(due_s[0][:count], due_s[1][:count])
    table = json.loads(finished.out)
    assert not any("failed in trials" in note for note in table["notes"])


def test_what_is_exported_can_be_deployed(folder: pathlib.Path, finished: Done) -> None:
    """Policy, knobs, the scenario's settings and its deadline; and a script for the models."""
    assert finished.code == 0, finished.err
    exported = tune(folder, "export", "one", "--trial", "1", "--out", "exported")
    assert exported.code == 0, exported.err
    file, script = folder / "exported/trial-1.yaml", folder / "exported/deploy.sh"
    assert exported.out.split() == ["exported/trial-1.yaml", "exported/deploy.sh"]
    settings = resolve(file=file)
    assert settings.scheduling.policy == "clockwork"
    assert settings.scheduling.default_deadline_s == 0.1
    assert settings.clockwork.memory_mb == 3
    buffer, guard = settings.clockwork.deadline_margin, settings.clockwork.duration_margin
    assert (buffer, guard) != (0.05, 0.1)
    text = file.read_text(encoding="utf-8")
    assert yaml.safe_load(text)["clockwork"]["deadline_margin"] == buffer
    assert f"python -m serving --allow-empty --settings {file}" in text
    assert f"# Its models, once it runs: sh {script}" in " ".join(text.split("\n"))
    refused = tune(folder, "export", "one", "--trial", "1")
    assert (
        refused.code,
        "--to serving writes 2 files (trial-1.yaml, deploy.sh)" in refused.err,
    ) == (
        2,
        True,
    )
    for target in ("triton", "kubernetes", "engine"):
        refused = tune(folder, "export", "one", "--to", target)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert "use --to serving" in refused.err


def test_a_study_of_the_same_name_is_begun_anew(
    folder: pathlib.Path, finished: Done, tmp_path: pathlib.Path
) -> None:
    """`--overwrite` knows all files of a study, the copy of the scenario as well."""
    assert finished.code == 0, finished.err
    shutil.copytree(folder / "runs/one", tmp_path / "runs/one")
    for name in ("toy.yaml", "two.yaml"):
        shutil.copy(folder / name, tmp_path)
    asked = ("--scenario", "toy.yaml", "--space", "two.yaml", *SHORT, "--trials", "1")
    done = tune(tmp_path, *asked, "--study", "one", "--overwrite", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["trials"] == 1


def test_the_study_goes_by_the_scenario_that_it_was_begun_with(
    folder: pathlib.Path, finished: Done
) -> None:
    """Whatever became of the file; and another study of the changed file starts anew."""
    assert finished.code == 0, finished.err
    (folder / "toy.yaml").write_text(SCENARIO.replace("rate: 150", "rate: 149"), encoding="utf-8")
    try:
        done = tune(folder, "resume", "one", "--json")
        learns = ("--learn-from", "one", "--trials", "1", "--study", "two")
        given = ("--scenario", "toy.yaml", "--space", "two.yaml", *SHORT, *learns)
        refused = tune(folder, *given)
    finally:
        (folder / "toy.yaml").write_text(SCENARIO, encoding="utf-8")
    assert done.code == 0, done.err
    assert json.loads(done.out)["rate_per_s"] == 250.0
    assert refused.code == 2
    assert "--learn-from one: not a finished study of toy" in refused.err


def test_an_interrupted_study_keeps_what_is_fixed_and_its_baseline(folder: pathlib.Path) -> None:
    """The scenario's own value counts, though the space has another default; a knob that is fixed is in each launch."""
    own = SCENARIO + "settings: {clockwork.duration_margin: 5.0}\n"
    (folder / "own.yaml").write_text(own, encoding="utf-8")
    space = SPACE + "  clockwork.window_ms: {type: float, choices: [50.0, 200.0], default: 50.0}\n"
    (folder / "three.yaml").write_text(space, encoding="utf-8")
    fixed = ("--fix", "clockwork.deadline_margin=0.2")
    asked = ("--scenario", "own.yaml", "--space", "three.yaml", *SHORT, *fixed)
    budget = ("--trials", "2", "--pairs", "2", "--stop-ei", "0", "--study", "three")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.measured_once", *asked, *budget],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        text=True,
    )
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if line.startswith("  0 default"):
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    done = tune(folder, "resume", "three", "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["default"] == {
        "clockwork.deadline_margin": 0.2,
        "clockwork.duration_margin": 5.0,
        "clockwork.window_ms": 50.0,
    }
    assert "fixed, not searched: clockwork.deadline_margin=0.2" in answer["notes"]
    assert answer["trials"] == 2
    for which, name in (((), "best.yaml"), (("--trial", "0"), "trial-0.yaml")):
        exported = tune(folder, "export", "three", *which, "--out", f"of-{name}")
        assert exported.code == 0, exported.err
        text = (folder / f"of-{name}" / name).read_text(encoding="utf-8")
        assert yaml.safe_load(text)["clockwork"]["deadline_margin"] == 0.2


@pytest.mark.parametrize(
    ("fixed", "said"),
    [
        (("clockwork.bufer=0.2",), "has no knob 'clockwork.bufer', did you mean"),
        (("clockwork.deadline_margin=2",), "expected a number from 0.05 to 0.5"),
        (("clockwork.deadline_margin",), "--fix clockwork.deadline_margin: expected KNOB=VALUE"),
        (
            ("clockwork.deadline_margin=0.1", "clockwork.deadline_margin=0.2"),
            "clockwork.deadline_margin is fixed 2 times",
        ),
        (
            ("clockwork.deadline_margin=0.1", "clockwork.duration_margin=1"),
            "no knob is left to search",
        ),
    ],
)
def test_what_cannot_be_fixed_is_one_line(
    folder: pathlib.Path, fixed: tuple[str, ...], said: str
) -> None:
    asked = [word for one in fixed for word in ("--fix", one)]
    done = tune(folder, "--scenario", "toy.yaml", "--space", "two.yaml", *asked)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err


def test_a_table_of_a_scenario_is_recorded_and_searched(folder: pathlib.Path) -> None:
    """Its launches count answers within the deadline, and a replay does the same."""
    fixed = ("--fix", "clockwork.duration_margin=0.3")
    asked = ("--scenario", "toy.yaml", "--grid", "two.yaml", *fixed, "--out", "table")
    quick = ("--seconds", "0.4", "--warmup", "0.1", "--max-evaluations", "3")
    done = tune(folder, "record", *asked, *quick, "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["candidates"] == 2
    assert "fixed, not searched: clockwork.duration_margin=0.3" in answer["notes"]
    replayed = tune(folder, "replay", "table", "--trials", "3", "--seeds", "2", "--json")
    assert replayed.code == 0, replayed.err
    answer = json.loads(replayed.out)
    assert (answer["objective"], answer["candidates"]) == ("goodput", 2)
    contest = ("--samplers", "random", "--reference", "gp", "--trials", "3", "--seeds", "2")
    compared = tune(folder, "compare", "--table", "table", *contest, "--study", "contest")
    assert compared.code == 0, compared.err
    page = (folder / "runs/contest/compare.html").read_text(encoding="utf-8")
    assert "at 250 requests/s of the scenario" in page


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--model", "echo"), "--model echo: not allowed with --scenario"),
        (("--rate", "9"), "--rate 9.0: not allowed with --scenario"),
        (("--concurrency", "4"), "--concurrency 4: not allowed with --scenario"),
        (("--payload", "a.npz"), "--payload a.npz: not allowed with --scenario"),
        (("--engine", "command:a"), "--engine command:a: not allowed with --scenario"),
        (("--slo-ms", "9"), "--slo-ms 9: the scenario's requests have their own deadline, 100"),
        (("--objective", "mean"), "--objective mean: covers only answered requests"),
        (("--objective", "cost"), "--objective cost: covers only answered requests"),
        (("--objective", "throughput"), "--objective throughput: covers only answered requests"),
        (("--find-rate",), "--objective rate: a scenario defines its own rates"),
        (("--requests", "99"), "--requests 99: a scenario is measured for a time"),
        (("--load-clients", "2"), "--load-clients 2: the requests of a scenario are sent by one"),
    ],
)
def test_what_contradicts_a_scenario_is_one_line(
    folder: pathlib.Path, more: tuple[str, ...], said: str
) -> None:
    done = tune(folder, "--scenario", "toy.yaml", *more)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--concurrency", "4"), "no target; give --model NAME|FILE, or --scenario FILE"),
        (("--scenario", "none.yaml"), "none.yaml"),
        (("--model", "echo", "--rate", "9", "--arrivals", "scenario"), "--arrivals scenario"),
    ],
)
def test_neither_or_half_a_scenario(
    folder: pathlib.Path, arguments: tuple[str, ...], said: str
) -> None:
    done = tune(folder, *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert said in done.err
