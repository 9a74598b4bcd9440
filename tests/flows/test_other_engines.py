"""`tune` of other engines as a user runs it: a server by its engine file, and a running one by a hook."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import yaml

from tests.fakes import other_engines
from tests.fakes.commands import Done, tune

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHORT = ("--seconds", "0.4", "--warmup", "0.1", "--pairs", "2", "--concurrency", "2")
HOOK = """
import json, sys, urllib.request
port, log = sys.argv[1:]
given = json.load(sys.stdin)
print(json.dumps(given), file=open(log, "a"))
body = json.dumps({"settings": {"batching.timeout_us": given["wait"]}}).encode()
url = f"http://127.0.0.1:{port}/admin/settings"
headers = {"Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PATCH"), timeout=20)
"""
WAIT = "knobs:\n  wait: {type: int, choices: [0, 40000], default: 40000, unit: us}\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[pathlib.Path, Done]:
    """A folder with one study of the tiny server, begun by a relative path."""
    folder = tmp_path_factory.mktemp("command")
    other_engines.written(folder)
    engine = ("--engine", "command:engine.yaml", "--model", "thing")
    budget = ("--trials", "2", "--stop-ei", "0", "--study", "one")
    return folder, tune(folder, *engine, *SHORT, *budget, "--json")


def test_a_study_of_another_engine_is_a_whole_study(finished: tuple[pathlib.Path, Done]) -> None:
    """From the default to the verdict; the report and the answer name the engine."""
    folder, done = finished
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["engine"] == f"tiny (command:{folder / 'engine.yaml'})"
    assert (answer["default"], answer["best"]) == ({"delay.ms": 20}, {"delay.ms": 1})
    assert answer["verdict"]["outcome"] in {"better", "no difference shown"}
    page = (folder / "runs/one/report.html").read_text(encoding="utf-8")
    assert f"engine tiny (command:{folder / 'engine.yaml'})" in page
    assert "python -m serving" not in page + done.err
    log = (folder / "runs/one/log.jsonl").read_text(encoding="utf-8")
    assert '"said": "listening on' in log


def test_best_yaml_holds_knobs_and_command(finished: tuple[pathlib.Path, Done]) -> None:
    """With the values in their places, and those of each launch left open."""
    folder, done = finished
    best = yaml.safe_load((folder / "runs/one/best.yaml").read_text(encoding="utf-8"))
    knobs = json.loads(done.out)["recommended"]
    assert best["knobs"] == knobs
    assert best["command"][-3:] == ["{port}", str(knobs["delay.ms"]), "none"]
    exported = tune(folder, "export", "one", "--to", "engine", "--trial", "0")
    assert yaml.safe_load(exported.out)["knobs"] == {"delay.ms": 20}


def test_it_is_no_settings_file_of_the_serving_core(finished: tuple[pathlib.Path, Done]) -> None:
    """Said in one line, with what can be done."""
    folder, _ = finished
    refused = tune(folder, "export", "one", "--to", "serving")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "tuned another engine (tiny" in refused.err
    assert "--to engine" in refused.err


def test_a_server_that_dies_is_a_failed_trial(tmp_path: pathlib.Path) -> None:
    """Every launch dies, is told with the server's words, and the study says that nothing worked."""
    path = other_engines.written(tmp_path, "die")
    arguments = ("--engine", f"command:{path}", "--model", "thing", "--study", "dies")
    done = tune(tmp_path, *arguments, *SHORT, "--trials", "2")
    assert done.code == 1
    assert "failed (crash): the server ended under load: exit status 7" in done.err
    assert "last output: a fault in the model" in done.err
    assert "no configuration worked" in done.err


def test_an_interrupted_study_goes_on_with_the_engine_it_began_with(
    tmp_path: pathlib.Path,
) -> None:
    """Ctrl-C ends the server with the tuner; resume uses the copy, whatever became of the file."""
    path = other_engines.written(tmp_path)
    best_first = path.read_text().replace("default: 20", "default: 1")
    path.write_text(best_first)  # no other configuration is better: nothing to verify
    command = [
        sys.executable,
        "-m",
        "tests.fakes.measured_once",
        "--engine",
        f"command:{path}",
        "--model",
        "thing",
    ]
    with subprocess.Popen(
        [*command, *SHORT, "--trials", "2", "--stop-ei", "0", "--study", "cut"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " default " in line:
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait(10) == 130, said
    assert not other_engines.with_argument(str(path.parent))
    path.write_text("broken: [")
    done = tune(tmp_path, "resume", "cut", "--json")
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert (answer["trials"], answer["verdict"]) == (2, None)


def test_samplers_are_compared_on_another_engine(tmp_path: pathlib.Path) -> None:
    """The same searches, and winners on round evaluations."""
    path = other_engines.written(tmp_path)
    done = tune(
        tmp_path,
        *("compare", "--engine", f"command:{path}", "--model", "thing", *SHORT),
        *("--samplers", "random,gp", "--trials", "2", "--study", "both", "--json"),
    )
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert {run["winner"]["delay.ms"] for run in answer["runs"]} == {1}
    assert answer["environment"]["engine"].startswith("tiny")


def test_a_running_server_is_tuned_through_its_hook(tmp_path: pathlib.Path) -> None:
    """Each launch runs the hook, those in an open loop too; afterwards the server has the default again."""
    (tmp_path / "hook.py").write_text(HOOK)
    (tmp_path / "space.yaml").write_text(WAIT)
    log = tmp_path / "hook.log"
    serve = [sys.executable, "-m", "serving", "--model", "linear", "--port", "0"]
    with subprocess.Popen(
        [*serve, "--admin-port", "0", "--no-admin-token", "--set", "batching.timeout_us=40000"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            facts = json.loads(server.stdout.readline())
            hook = f"{sys.executable} hook.py {facts['admin_port']} {log}"
            url = f"url:http://127.0.0.1:{facts['port']}/v1/models/linear:predict"
            arguments = ("--engine", url, "--hook", hook, "--model", "linear")
            budget = ("--space", "space.yaml", "--trials", "2", "--stop-ei", "0", "--json")
            done = tune(tmp_path, *arguments, *SHORT, *budget)
        finally:
            server.terminate()
            server.wait(20)
    assert done.code == 0, done.err
    answer = json.loads(done.out)
    assert answer["best"] == {"wait": 0}
    assert answer["engine"] == url
    assert any("answers checked" in note for note in answer["notes"])
    given = [json.loads(line)["wait"] for line in log.read_text().splitlines()]
    trials, pairs, opened, restored = [40000, 40000, 0], [40000, 0, 0, 40000], [40000, 0], [40000]
    assert given == trials + pairs + opened + restored


def test_ranges_of_another_engine_are_not_derived(tmp_path: pathlib.Path) -> None:
    """`tune space` says what to do instead."""
    path = other_engines.written(tmp_path)
    done = tune(
        tmp_path, "space", "--model", "m", "--concurrency", "2", "--engine", f"command:{path}"
    )
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "only be derived for Luthier" in done.err


def test_an_interrupted_study_puts_the_default_back(tmp_path: pathlib.Path) -> None:
    """Ctrl-C in a trial with another configuration: the hook gets the default last."""
    log = tmp_path / "hook.log"
    (tmp_path / "space.yaml").write_text(WAIT)
    (tmp_path / "body.txt").write_text("hello")
    server = subprocess.Popen(
        [sys.executable, str(other_engines.TINY), "0", "1"], stdout=subprocess.PIPE, text=True
    )
    with server:
        assert server.stdout is not None
        port = server.stdout.readline().split()[-1]
        command = ["--engine", f"url:http://127.0.0.1:{port}/predict", "--hook", f"tee -a {log}"]
        command += ["--model", "thing", "--space", "space.yaml", "--payload", "body.txt"]
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.fakes.measured_once",
                *command,
                *SHORT,
                "--stop-ei",
                "0",
                "--seed",
                "1",
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            next(line for line in process.stderr if " default " in line)
            while '"wait": 0' not in log.read_text():
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            said = process.stderr.read()
            assert process.wait(10) == 130, said
        server.kill()
    given = [json.loads(line)["wait"] for line in log.read_text().splitlines()]
    assert given[-2:] == [0, 40000]
