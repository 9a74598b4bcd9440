"""`tune` as a user runs it, with real parts: a study, its end, its interruption, and what is left."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import optuna
import pytest

from serving.settings import sources as serving_settings
from tuner.cli import main
from tuner.store.study_store import StudyStore
from tuner.values.measurement import Measurement

ROOT = pathlib.Path(__file__).resolve().parents[2]
TUNE = (sys.executable, "-m", "tests.fakes.measured_once")
SERVE = (sys.executable, "-m", "serving", *("--model", "echo", "--port", "0", "--admin-port", "0"))
SHORT = ("--seconds", "0.4", "--warmup", "0.1", "--pairs", "2")
ECHO = ("--model", "echo", "--concurrency", "4")
RANDOM = ("--sampler", "random")
"""Quick: it fits nothing."""
ONE_TRIAL = ("--trials", "1", "--initial", "1", *RANDOM)
BEST_LATER = """
name: two
knobs:
  batching.timeout_us: {type: int, choices: [5000, 40000], default: 40000, unit: us}
  batching.max_size: {type: int, choices: [8], default: 8, unit: items}
"""
"""The default waits for a batch that never fills: the other configuration is quicker, and it waits as well, so
that its rate is not all that a busy machine can do."""
WHOLE = BEST_LATER + "  replica.count: {type: int, choices: [2], default: 2, unit: replicas}\n"
"""A knob more, which every configuration has."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


@dataclasses.dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


def tune(folder: pathlib.Path, *arguments: str) -> Done:
    """Run a command to its end, in this process: what starts a study is paid once."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        code = main.main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def started(folder: pathlib.Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own; killed at the end, however the test ends."""
    with subprocess.Popen(
        [*TUNE, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def children(pid: int) -> set[int]:
    """All living descendants of a process."""
    parents: dict[int, int] = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
    found: set[int] = set()
    wave = {pid}
    while wave := {child for child, parent in parents.items() if parent in wave} - found:
        found |= wave
    return found


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def all_gone(pids: set[int], *, within_s: float) -> bool:
    """Whether all of these end in time."""
    until_s = time.monotonic() + within_s
    while any(map(is_alive, pids)) and time.monotonic() < until_s:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


def wait_for_trials(process: subprocess.Popen[str], count: int) -> list[str]:
    """Lines of progress until so many trials have been told."""
    assert process.stderr is not None
    lines = []
    trials = 0
    for line in process.stderr:
        lines.append(line)
        trials += line[:3].strip().isdigit() and "left" in line
        if trials == count:
            return lines
    pytest.fail(f"ended early: {lines}")


def states(folder: pathlib.Path, name: str) -> list[str]:
    """States of all trials that the storage holds."""
    store = StudyStore.open_study(name, database=folder / "runs" / name / "study.db", url=None)
    return [trial.state.name for trial in store.study.get_trials(deepcopy=False)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Done]:
    """A folder with one finished study of three trials, and what the command said."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "whole.yaml").write_text(WHOLE, encoding="utf-8")
    budget = ("--trials", "3", "--initial", "2", "--stop-ei", "0", "--space", "whole.yaml")
    return folder, tune(folder, *ECHO, *SHORT, *budget, "--study", "one", "--json")


@dataclasses.dataclass(frozen=True)
class Killed:
    """A study of an open loop that was killed two times: in the second trial, and in the second pair."""

    folder: pathlib.Path
    lines: list[str]
    """Progress until the first kill."""
    descendants: set[int]
    """Processes of the first run."""
    are_gone: bool
    """Whether they ended with it."""
    kept: list[str]
    """States of trials after the first kill."""
    searched: list[str]
    """States of trials after the second kill."""
    before: dict[str, Any]
    """The verification as the second kill left it."""
    resumed: Done
    """How the study ended."""


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    """Study `r`: killed, resumed, killed, resumed to its end."""
    folder = tmp_path_factory.mktemp("killed")
    (folder / "two.yaml").write_text(BEST_LATER, encoding="utf-8")
    load = ("--model", "echo", "--rate", "200", "--arrivals", "burst")
    budget = ("--trials", "2", "--initial", "2", "--space", "two.yaml", "--study", "r")
    with started(folder, *load, *SHORT, *budget) as process:
        lines = wait_for_trials(process, 1)
        descendants = children(process.pid)
        process.kill()
        process.communicate()
    are_gone = all_gone(descendants, within_s=10)
    kept = states(folder, "r")
    with started(folder, "resume", "r") as process:
        assert process.stderr is not None
        while not next(process.stderr).startswith("verify 2/4"):
            pass
        process.kill()
        process.communicate()
    before = json.loads((folder / "runs/r/verification/evaluations.json").read_text())
    searched = states(folder, "r")
    resumed = tune(folder, "resume", "r", "--json")
    return Killed(folder, lines, descendants, are_gone, kept, searched, before, resumed)


@pytest.fixture(scope="module")
def of_one_trial(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Measurement]:
    """A folder with a study `f` of the default alone, in a space that was derived, and its measurement."""
    folder = tmp_path_factory.mktemp("single")
    done = tune(folder, *ECHO, *SHORT, *ONE_TRIAL, "--study", "f")
    assert done.code == 0, done.err
    store = StudyStore.open_study("f", database=folder / "runs" / "f" / "study.db", url=None)
    measured = store.trials()[0].measured
    assert measured is not None
    return folder, measured


def test_a_study_from_the_default_to_the_verdict(finished: tuple[pathlib.Path, Done]) -> None:
    """Exit code 0, one JSON object, the default first, all files there, nothing else printed."""
    folder, done = finished
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["trials"] == 3
    assert answer["stopped"] == "the budget of 3 trials is used up"
    verdict = answer["verdict"]
    assert (verdict is None) == (answer["best"] == answer["default"])
    is_better = verdict is not None and verdict["outcome"] == "better"
    assert is_better == (verdict is not None and verdict["interval"]["high"] < 1)
    assert answer["recommended"] == answer["best" if is_better else "default"]
    assert answer["median_overhead_s"] > 0
    assert any("synthetic" in note for note in answer["notes"])
    left = {path.name for path in (folder / "runs" / "one").iterdir()}
    wanted = {"study.db", "settings.yaml", "environment.json", "space.yaml", "trials", "best.yaml"}
    assert wanted | {"report.html", "log.jsonl", "verdict.json"} <= left
    lines = done.err.splitlines()
    assert lines[0] == "input data UINT8 [items, ?]: 1024 of whole numbers from 0 to 9"
    assert "echo at concurrency 4" in lines[1]
    assert "until about" in lines[3]
    assert lines[4].split()[:2] == ["0", "default"]


def test_the_winner_is_shown_in_an_open_loop(finished: tuple[pathlib.Path, Done]) -> None:
    """At 80 % of its rate, beside the default, in the answer, in verdict.json and in the report."""
    folder, done = finished
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    shown = answer["open_loop"]
    rates = [launch["throughput_per_s"] for launch in answer["verdict"]["best"]]
    assert min(rates) - 1e-6 <= shown["rate_per_s"] / 0.8 <= max(rates) + 1e-6
    assert [start["role"] for start in shown["evaluations"]] == ["default", "best"]
    best = shown["evaluations"][1]
    assert best["outcome"]["status"] == "ok", best["outcome"]
    assert best["measurement"]["seconds"] == pytest.approx(1.2)
    folder = folder / "runs" / "one"
    kept = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))["open_loop"]
    assert kept["rate_per_s"] == shown["rate_per_s"]
    assert "In an open loop" in (folder / "report.html").read_text(encoding="utf-8")
    assert any("In an open loop at 80 %" in note for note in answer["notes"])


def test_the_store_is_an_optuna_study(finished: tuple[pathlib.Path, Done]) -> None:
    """Optuna opens it by itself; each trial has its origin, and a launch of its own."""
    folder, _ = finished
    study = optuna.load_study(
        study_name="one", storage=f"sqlite:///{folder / 'runs' / 'one' / 'study.db'}"
    )
    assert [trial.user_attrs["origin"] for trial in study.trials][:2] == ["default", "initial"]
    assert all((folder / f"runs/one/trials/{n}/requests.npz").exists() for n in range(3))


def test_the_log_has_an_event_for_each_trial(finished: tuple[pathlib.Path, Done]) -> None:
    """Every line is JSON; each trial's end is an event with its cost beside measuring."""
    folder, _ = finished
    text = (folder / "runs" / "one" / "log.jsonl").read_text(encoding="utf-8")
    events = [json.loads(line) for line in text.splitlines()]
    ends = [event for event in events if event["event"] == "trial ended"]
    assert [event["trial"] for event in ends] == [0, 1, 2]
    assert {event["event"] for event in events} >= {"engine started", "engine said"}


def test_best_yaml_is_what_the_server_reads(
    finished: tuple[pathlib.Path, Done], tmp_path: pathlib.Path
) -> None:
    """The export and best.yaml are settings as they stand, with the recommended values."""
    folder, done = finished
    best = json.loads(done.out)["recommended"]
    exported = tune(folder, "export", "one", "--out", str(tmp_path))
    assert exported.code == 0, exported.err
    for path in (tmp_path / "best.yaml", folder / "runs" / "one" / "best.yaml"):
        flat = serving_settings.resolve(file=path, environment={}).flat()
        assert {name: flat[name] for name in best} == best
    again = tune(folder, "export", "one", "--to", "serving", "--out", str(tmp_path))
    assert (again.code, again.err.count("\n")) == (2, 1)


def test_best_yaml_starts_a_server(finished: tuple[pathlib.Path, Done]) -> None:
    """`python -m serving --settings best.yaml` is ready with it, and the study is compared with it as it runs."""
    folder, _ = finished
    server = subprocess.Popen(
        [*SERVE, "--settings", str(folder / "runs" / "one" / "best.yaml")],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with server:
        try:
            assert server.stdout is not None
            ready = json.loads(server.stdout.readline())
            assert ready["event"] == "ready"
            loaded = tune(
                folder,
                *("load", f"http://127.0.0.1:{ready['port']}", "--model", "echo"),
                *("--concurrency", "2", "--seconds", "0.4", "--warmup", "0", "--json"),
            )
            url = f"http://127.0.0.1:{ready['port']}/v2/models/echo"
            compared = tune(
                folder, "ab", "one", url, "--concurrency", "2", "--max-time", "6s", "--json"
            )
            assert server.poll() is None
        finally:
            server.terminate()
    assert loaded.code == 0, loaded.err
    assert json.loads(loaded.out)["throughput_per_s"] > 0
    assert compared.code == 0, compared.err
    answer = json.loads(compared.out)
    assert answer["a"] == {"given": "one", "is": "the recommendation of study one for echo"}
    assert answer["b"]["is"] == url
    assert 0.5 < answer["ratio"] < 2


def test_an_existing_study_is_not_touched(finished: tuple[pathlib.Path, Done]) -> None:
    """The same name again is one line and code 2, and the study stays as it was."""
    folder, _ = finished
    before = states(folder, "one")
    again = tune(folder, *ECHO, *SHORT, "--study", "one")
    assert (again.code, again.out) == (2, "")
    assert "tune resume one" in again.err
    assert again.err.count("\n") == 1
    assert states(folder, "one") == before


def test_a_finished_study_is_reported_again(finished: tuple[pathlib.Path, Done]) -> None:
    """Resume and report of a finished study say the same verdict and launch nothing."""
    folder, done = finished
    resumed = tune(folder, "resume", "one", "--json")
    assert resumed.code == 0, resumed.err
    assert json.loads(resumed.out)["verdict"] == json.loads(done.out)["verdict"]
    reported = tune(folder, "report", "one", "--json")
    assert json.loads(reported.out)["studies"][0]["headline"] == json.loads(done.out)["headline"]
    assert len(states(folder, "one")) == 3


def test_kill_loses_the_running_trial_and_leaves_no_process(killed: Killed) -> None:
    """After `kill -9` no server and no client is left, and resume goes on to the same budget."""
    assert len(killed.descendants) >= 3  # server, template, replica, client
    assert killed.are_gone
    assert killed.kept[0] == "COMPLETE"
    assert killed.resumed.code == 0, killed.resumed.err
    assert json.loads(killed.resumed.out)["trials"] == 2
    after = states(killed.folder, "r")
    assert after.count("COMPLETE") == 2
    assert after.count("FAIL") == killed.kept.count("RUNNING") <= 1


def test_kill_in_the_verification_keeps_the_pairs_before_it(killed: Killed) -> None:
    """After `kill -9` in the second pair, resume launches that pair, and no trial."""
    whole = len(killed.before["evaluations"]) // 2 * 2
    assert whole >= 2
    assert killed.resumed.code == 0, killed.resumed.err
    told = killed.resumed.err.splitlines()
    verified = [line.split()[1] for line in told if line.startswith("verify")]
    assert verified == [f"{number}/4" for number in range(whole + 1, 5)]
    answer = json.loads(killed.resumed.out)
    assert answer["best"] == killed.before["best"]
    kept = killed.before["evaluations"][0]
    assert kept["role"] == "default"
    assert answer["verdict"]["default"][0] == kept["measurement"]
    assert killed.searched.count("COMPLETE") == 2
    assert states(killed.folder, "r") == killed.searched


def test_a_study_at_a_rate(killed: Killed) -> None:
    """An open loop from the command to the pages, without a concurrency; resume and report know the load."""
    folder, done = killed.folder, killed.resumed
    assert done.code == 0, done.err
    said = "".join(killed.lines)
    assert "echo at 200 requests/s (burst arrivals)" in said
    assert "no prediction: the rules of thumb describe a closed loop" in said
    answer = json.loads(done.out)
    assert (answer["rate_per_s"], answer["arrivals"]) == (200.0, "burst")
    assert answer["best"]["batching.timeout_us"] == 5000
    assert answer["verdict"]["ratio"] < 0.9
    best = answer["verdict"]["best"][0]
    assert best["rate_per_s"] == 200.0
    assert best["little_error"] is None
    page = (folder / "runs" / "r" / "report.html").read_text(encoding="utf-8")
    assert "echo at 200 requests/s (burst arrivals)" in page
    assert "were due in its measured part" in page
    reported = tune(folder, "report", "r")
    assert "200 requests/s (burst arrivals)" in reported.out
    assert tune(folder, "resume", "r").code == 0
    exported = tune(folder, "export", "r", "--to", "kserve", "--out", str(folder / "k"))
    assert exported.code == 0, exported.err
    text = (folder / "k" / "kserve.yaml").read_text(encoding="utf-8")
    assert "at 200 requests/s (burst arrivals)" in text
    assert "containerConcurrency: 500" not in text


def test_a_rate_that_nothing_serves_ends_with_the_reason(tmp_path: pathlib.Path) -> None:
    """The trial is an overload, which is data for the search, and the end says which."""
    trace = tmp_path / "trace.txt"
    trace.write_text("0\n0.001\n0.002\n", encoding="utf-8")
    over = ("--model", "echo", "--rate", "300000", "--arrivals", "trace:trace.txt")
    done = tune(tmp_path, *over, *SHORT, *ONE_TRIAL, "--study", "o")
    assert done.code == 1
    assert "cannot serve 300,000 requests/s: it fell behind by" in done.err
    settings = (tmp_path / "runs" / "o" / "settings.yaml").read_text(encoding="utf-8")
    assert f"trace:{trace}" in settings


def test_a_study_of_the_highest_rate(
    tmp_path: pathlib.Path, of_one_trial: tuple[pathlib.Path, Measurement]
) -> None:
    """Without a load of its own: each launch finds the rate, which is what the study is about."""
    find = ("--model", "echo", "--find-rate", "--slo-ms", "100", *ONE_TRIAL)
    done = tune(tmp_path, *find, *SHORT, "--study", "h", "--json")
    assert done.code == 0, done.err
    assert "echo at the highest rate (poisson arrivals)" in done.err
    answer = json.loads(done.out)
    assert answer["objective"] == "rate"
    store = StudyStore.open_study("h", database=tmp_path / "runs" / "h" / "study.db", url=None)
    found = store.trials()[0].measured
    assert found.rate_per_s == answer["best_seen"]
    assert found.p99_ms <= 100
    whole_per_s = of_one_trial[1].throughput_per_s
    assert found.rate_per_s > whole_per_s / 10, (
        "of what four clients get that wait for their answers"
    )
    page = (tmp_path / "runs" / "h" / "report.html").read_text(encoding="utf-8")
    assert "highest rate within the limit" in page
    both = tune(tmp_path, *find, "--objective", "p99")
    assert (both.code, both.err.count("\n")) == (2, 1)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        ((), "use --concurrency N (closed loop), --rate R (open loop)"),
        (("--concurrency", "1,5", "--rate", "9"), "several loads need a closed loop"),
        (("--rate", "9", "--objective", "throughput"), "fixed by the rate of an open loop"),
        (("--arrivals", "trace:none.txt"), "trace "),
        (("--find-rate",), "add --slo-ms MS"),
        (
            ("--find-rate", "--slo-ms", "5", "--rate", "9"),
            "--find-rate searches for the rate itself",
        ),
    ],
)
def test_a_load_without_sense_is_one_line(
    tmp_path: pathlib.Path, load: tuple[str, ...], said: str
) -> None:
    """Refused before anything is started or written."""
    done = tune(tmp_path, "--model", "echo", *load)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
    assert not (tmp_path / "runs").exists()


def test_a_signal_ends_cleanly(tmp_path: pathlib.Path) -> None:
    """The trial that runs is the last one: code 130, how to go on, no process, no running trial.

    This one is SIGTERM: studies of a scenario and of other engines are ended by SIGINT.
    Until then no other process may go on with the study; it is named the first one.
    """
    budget = ("--trials", "30", "--initial", "30", *RANDOM)
    with started(tmp_path, *ECHO, *SHORT, *budget, "--study", "s", "--json") as process:
        wait_for_trials(process, 1)
        second = tune(tmp_path, "resume", "s")
        assert second.code == 1
        assert str(process.pid) in second.err
        descendants = children(process.pid)
        begun = len(states(tmp_path, "s"))
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert len(states(tmp_path, "s")) <= begun + 1  # one may have begun before the signal came
    assert process.returncode == 130
    assert json.loads(out)["exit_code"] == 130
    assert "tune resume s" in err.splitlines()[-1]
    assert all_gone(descendants, within_s=5)
    assert "RUNNING" not in states(tmp_path, "s")


def test_what_is_no_study_is_not_deleted(tmp_path: pathlib.Path) -> None:
    """--overwrite refuses a folder of another kind; of a study, see `test_scenario_study`."""
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    refused = tune(tmp_path, *ECHO, *SHORT, *ONE_TRIAL, "--study", "mine", "--overwrite")
    assert (refused.code, refused.err.count("not a study folder")) == (2, 1)


def test_trials_that_cannot_work_are_data(tmp_path: pathlib.Path) -> None:
    """A limit that nothing keeps ends the study with code 1, the reason, and a report."""
    budget = ("--trials", "2", "--initial", "2", "--constraint", "mean_ms <= 0.0001", *RANDOM)
    done = tune(tmp_path, *ECHO, *SHORT, *budget, "--study", "n")
    assert done.code == 1
    assert "above the limit of 0.0001 ms" in done.err.splitlines()[-1]
    assert (tmp_path / "runs" / "n" / "report.html").exists()
    assert states(tmp_path, "n") == ["PRUNED", "PRUNED"]


def test_wrong_inputs_leave_nothing(tmp_path: pathlib.Path) -> None:
    """A file that is no model is one line and code 1, and no folder is made."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    done = tune(tmp_path, "--model", str(broken), "--concurrency", "2")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert f"--model {broken}: " in done.err
    assert "expected an ONNX file" in done.err
    assert not (tmp_path / "runs").exists()


def test_a_search_space_is_derived_once(tmp_path: pathlib.Path) -> None:
    """`tune space` writes a file that loads, and does not overwrite it."""
    first = tune(tmp_path, "space", "--model", "echo", "--concurrency", "2", "--json")
    assert first.code == 0, first.err
    answer = json.loads(first.out)
    assert answer["candidates"] > 1
    assert (tmp_path / "echo.yaml").read_text(encoding="utf-8").startswith("#")
    second = tune(tmp_path, "space", "--model", "echo", "--concurrency", "2")
    assert (second.code, "--force" in second.err) == (2, True)


def test_samplers_are_compared_under_one_budget(tmp_path: pathlib.Path) -> None:
    """Two searches of two trials each take turns, and their winners are measured again."""
    done = tune(
        tmp_path,
        *("compare", *ECHO, *SHORT, "--samplers", "random,gp"),
        *("--trials", "2", "--initial", "1", "--study", "c", "--json"),
    )
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert [len(run["objectives"]) for run in answer["runs"]] == [2, 2]
    assert [len(run["remeasured"]) for run in answer["runs"]] == [2, 2]
    assert len(answer["differences"]) == 1
    assert (tmp_path / "runs" / "c" / "compare.html").exists()
    said = [line.split()[0] for line in done.err.splitlines() if " left" in line]
    turns = [word for word in said if word != "verify"]
    assert turns == ["random", "gp"] * 2


def test_doctor_looks_and_measures(tmp_path: pathlib.Path) -> None:
    """The findings and the noise of two launches are told; nothing is changed."""
    done = tune(tmp_path, "doctor", "--evaluations", "2", "--concurrency", "4", "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert {"python", "limits", "machine"} <= {finding["name"] for finding in answer["findings"]}
    assert 0 < answer["noise"]["smallest_gain"] < 1
    assert list(tmp_path.iterdir()) == []


PILOT = ("doctor", "--noise", *ECHO, "--configurations", "2", *SHORT, "--json")


def test_a_noise_pilot_measures_every_configuration(tmp_path: pathlib.Path) -> None:
    """Two configurations, three launches of each; what is told is of them, and nothing is written."""
    done = tune(tmp_path, *PILOT, "--evaluations", "3")
    assert done.code == 0, done.err
    pilot = json.loads(done.out)["pilot"]
    assert len(pilot["configurations"]) == 2
    assert pilot["configurations"][0] == pilot["default"]
    assert sorted(one["configuration"] for one in pilot["tried"]) == [0] * 3 + [1] * 3
    worked = [one for one in pilot["tried"] if one["outcome"]["status"] == "ok"]
    assert all(len(one["blocks_ms"]) >= 3 for one in worked)
    assert all(one["foreign_share"] is not None for one in worked)
    assert pilot["course"]["block_sd"] > 0
    assert sum(pilot["shares"].values()) == pytest.approx(1.0)
    assert [gain["spent_s"] for gain in pilot["gains"]] == [30, 60, 120]
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_pilot_keeps_nothing(tmp_path: pathlib.Path) -> None:
    """A signal between two launches: code 130, no process, no file."""
    with started(tmp_path, *PILOT) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "in a random order" in line:
                break
        descendants = children(process.pid)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert json.loads(out)["exit_code"] == 130
    assert "nothing was saved" in err
    assert all_gone(descendants, within_s=5)
    assert list(tmp_path.iterdir()) == []
