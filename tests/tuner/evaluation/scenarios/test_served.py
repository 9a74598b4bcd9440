"""Scenarios against a real server with real replicas: the same requests as emulated, each counted once."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tuner.cli import main
from tuner.errors import LaunchFailed, UsageError
from tuner.evaluation.scenarios import arrivals, emulated, files, served
from tuner.evaluation.scenarios.results import Counts
from tuner.values.measurement import MAX_LATE_SHARE

ROOT = pathlib.Path(__file__).resolve().parents[4]
TEXT = """
seconds: 1.5
seed: 3
workers: 1
memory_pages: 6
models:
  hot: {model: mnist, profile: {load_ms: 2, batch_ms: {1: 0.2, 8: 1}}}
  rare: {copies: 8, model: mnist, profile: {load_ms: 2, batch_ms: {1: 0.2, 8: 1}}}
traffic:
  hot: {rate: 60, deadline_ms: 2000}
  rare: {rate: 40, items: 2, deadline_ms: {first: 250, factor: 2, every_s: 0.5}}
  beside: {models: hot, clients: 1, from_s: 0.5, deadline_ms: 1000}
"""


@pytest.fixture(name="file", scope="module")
def _file(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("scenario") / "toy.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture(name="found", scope="module")
def _found(file: pathlib.Path) -> served.ScenarioRun:
    return served.run(files.read(file))


def test_every_request_ends_once(found: served.ScenarioRun, file: pathlib.Path) -> None:
    scenario = files.read(file)
    for one in found.streams.values():
        assert one.admitted == one.in_time + one.late + sum(one.dropped.values())
        assert set(one.dropped) <= {served.DROPPED[504]}, "nothing failed"
    due = arrivals.draw_arrivals(scenario)
    for place, name in ((0, "hot"), (1, "rare")):
        assert found.streams[name].requests == (due.streams == place).sum()


def test_the_server_tells_its_loads(found: served.ScenarioRun) -> None:
    assert found.server.loads >= 4, "nine models, memory for six at most"


def test_the_emulation_has_the_same_requests(found: served.ScenarioRun, file: pathlib.Path) -> None:
    emulation, _ = emulated.run(files.read(file))
    for name in ("hot", "rare"):
        assert emulation.streams[name].requests == found.streams[name].requests
    assert set(found.by_deadline["rare"]) == set(emulation.by_deadline["rare"])
    for size, one in found.by_deadline["rare"].items():
        assert one.requests == emulation.by_deadline["rare"][size].requests


def test_a_pool_that_is_hardly_busy_answers_in_time(found: served.ScenarioRun) -> None:
    """Two seconds for what takes two milliseconds; nine models where six pages are."""
    one = found.streams["hot"]
    assert one.in_time > 0.9 * one.requests
    assert found.streams["beside"].in_time > 0


def test_deadlines_reach_the_server(file: pathlib.Path) -> None:
    """A tenth of a millisecond: nothing can be in time, and the server says so."""
    scenario = files.read(file)
    hopeless = dataclasses.replace(
        scenario.streams[0],
        deadline=dataclasses.replace(scenario.streams[0].deadline, first_s=0.0001),
    )
    found = served.run(
        dataclasses.replace(scenario, seconds=0.5, streams=(hopeless,), groups=scenario.groups[:1])
    )
    one: Counts = found.streams["hot"]
    assert sum(one.refused_at_once.values()) == one.requests > 0
    assert list(one.refused_at_once) == [served.REJECTED[503]]
    assert sum(found.server.refusals.values()) == one.requests, "the server has counted the same"


def test_a_fifo_refuses_nobody(file: pathlib.Path) -> None:
    """The peer of the benchmark: what clockwork would refuse at once, it answers late."""
    scenario = files.read(file)
    hopeless = dataclasses.replace(
        scenario.streams[0],
        deadline=dataclasses.replace(scenario.streams[0].deadline, first_s=0.0001),
    )
    one = dataclasses.replace(
        scenario, seconds=0.5, streams=(hopeless,), groups=scenario.groups[:1]
    )
    program = (str(ROOT / "benchmarks" / "peers" / "serve_fifo.py"),)
    with served.open_server(one, program=program) as engine:
        (counts,) = served.drive(one, engine).streams.values()
    assert counts.late == counts.requests > 0


def test_a_signal_ends_a_load_that_has_not_begun(tmp_path: pathlib.Path) -> None:
    """Clients who would begin in a minute hold up nobody."""
    path = tmp_path / "long.yaml"
    text = TEXT.replace("seconds: 1.5", "seconds: 90").replace("from_s: 0.5", "from_s: 60")
    path.write_text(text.replace(", factor: 2, every_s: 0.5", ""), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner.cli.main", "pool", str(path), "--serve"],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        cwd=ROOT,
        text=True,
    )
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if "s of requests" in line:
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.stderr.close()


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("model: mnist, profile", "profile", "has no model"),
        ("copies: 8", "copies: 1001", "at most 1,000"),
        ("memory_pages: 6", "memory_pages: 3\nsettings: {clockwork.page_mb: 0.5}", "1.5 MiB"),
        ("clients: 1", "clients: 501", "more than 500 clients"),
        ("deadline_ms: 1000", "deadline_ms: {first: 9, factor: 2}", "growing deadlines"),
    ],
)
def test_what_can_only_be_emulated_is_refused_before_anything_starts(
    tmp_path: pathlib.Path, old: str, new: str, word: str
) -> None:
    path = tmp_path / "toy.yaml"
    assert old in TEXT
    path.write_text(TEXT.replace(old, new), encoding="utf-8")
    scenario = files.read(path)
    with pytest.raises(UsageError, match=word):
        served.run(scenario)


def test_a_budget_that_is_too_small_is_told_by_the_scenario_s_own_key(
    tmp_path: pathlib.Path,
) -> None:
    path = tmp_path / "toy.yaml"
    small = "memory_pages: 4\nsettings: {clockwork.page_mb: 0.25}"
    text = TEXT.replace("memory_pages: 6", small).replace("model: mnist", "model: resnet")
    path.write_text(text, encoding="utf-8")
    with pytest.raises(
        LaunchFailed, match=r"budget is 4 .*; in a scenario, memory_pages sets this"
    ):
        served.run(files.read(path))


def test_a_name_that_cannot_stand_in_a_url_is_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(TEXT.replace("  rare:", '  "my models":'), encoding="utf-8")
    with pytest.raises(UsageError, match="'my models' cannot be served"):
        served.run(files.read(path))


def test_a_scenario_without_a_request_is_refused(file: pathlib.Path) -> None:
    scenario = files.read(file)
    rare = dataclasses.replace(scenario.streams[0], rate_per_s=1e-9)
    with pytest.raises(UsageError, match="no request is due"):
        served.run(dataclasses.replace(scenario, streams=(rare,)))


def test_an_hour_is_the_longest(file: pathlib.Path) -> None:
    with pytest.raises(UsageError, match="at most 3600 s"):
        served.run(dataclasses.replace(files.read(file), seconds=3601.0))


def test_the_command_serves_a_scenario(
    file: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "short.yaml"
    path.write_text(file.read_text().replace("seconds: 1.5", "seconds: 0.6"), encoding="utf-8")
    assert main.main(["pool", str(path), "--serve", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["streams"]) == {"hot", "rare", "beside"}
    assert data["send_lag_ms"] >= 0
    assert len(data["notes"]) == (data["sent_late"] > MAX_LATE_SHARE)
