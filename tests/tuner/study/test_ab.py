"""What `tune ab` takes its two sides for, before anything is started."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import socket
import xml.etree.ElementTree as ET
from collections.abc import Iterator

import numpy as np
import pytest
import rich.console

from tests.fakes.studies import measurement
from tuner.cli.commands import ab_formats
from tuner.errors import UsageError
from tuner.measurement import comparison
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.study import ab, ab_arms
from tuner.study.progress import Terminal
from tuner.values.round_evaluation import FailureCount

ENGINE = """
command: [server, "--port={port}", "--threads={threads}"]
request: {protocol: open-inference}
knobs:
  threads: {type: int, choices: [1, 2], default: 2}
"""


@pytest.fixture
def engine(tmp_path: pathlib.Path) -> str:
    """An engine file."""
    file = tmp_path / "engine.yaml"
    file.write_text(ENGINE)
    return str(file)


def sides(a: str, b: str, model: str = ab_arms.NO_MODEL) -> tuple[ab_arms.AbArm, ab_arms.AbArm]:
    """Both, as they are understood."""
    settings = StudySettings(target=TargetSettings(model=model, concurrency=2))
    terminal = Terminal(console=rich.console.Console(), log=EventLog(), check=lambda: None)
    found = ab_arms.find_arms((a, b), settings, terminal)
    return found["A"], found["B"]


def test_a_model_is_served_with_its_defaults() -> None:
    """By name; nothing is set."""
    a, b = sides("echo", "resnet")
    assert (a.told, b.told) == ("model echo", "model resnet")
    assert not dict(a.configuration)


def test_an_engine_file_is_its_engine_with_the_model_of_the_command(engine: str) -> None:
    """Beside our own server with the same model."""
    a, b = sides(engine, "echo", model="echo")
    assert a.told == f"echo behind command:{engine}"
    assert b.told == "model echo"
    assert type(a.launcher) is not type(b.launcher)


def test_the_same_engine_file_twice_is_no_comparison(engine: str) -> None:
    """Whatever it is called by."""
    with pytest.raises(UsageError, match="A and B are the same"):
        sides(engine, engine, model="echo")


def test_an_engine_file_needs_a_model(engine: str) -> None:
    """It names none."""
    with pytest.raises(UsageError, match="give --model"):
        sides(engine, "echo")


@pytest.fixture
def port() -> Iterator[int]:
    """Of someone who listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize(("path", "model"), [("/v2/models/resnet", "resnet"), ("/page", "none")])
def test_a_running_server_is_left_as_it_is(port: int, path: str, model: str) -> None:
    """It is not started, and may name its model."""
    url = f"http://127.0.0.1:{port}{path}"
    a, _ = sides(url, "echo")
    assert a.is_running
    assert (a.told, a.model) == (url, model)


def test_a_server_that_does_not_run_is_told_before_the_other_side_starts() -> None:
    """With its address."""
    with pytest.raises(UsageError, match=r"B: nothing listens at http://127\.0\.0\.1:1/page"):
        sides("echo", "http://127.0.0.1:1/page")


@pytest.mark.parametrize("word", ["nosuch.yaml", "resnett"])
def test_what_is_nothing_is_told_with_its_side(word: str) -> None:
    """A file that is missing, and a name that is mistyped."""
    with pytest.raises(UsageError, match=f"^A: {word} is not a file, a study or a model: "):
        sides(word, "echo")


def test_a_file_that_cannot_be_read_is_told_with_the_reason(tmp_path: pathlib.Path) -> None:
    """It may well be YAML."""
    file = tmp_path / "a.yaml"
    file.symlink_to("/proc/self/mem")
    with pytest.raises(UsageError, match=r"a\.yaml cannot be read: Input/output error"):
        sides(str(file), "echo")


@pytest.mark.parametrize(
    ("failed", "decision"), [((0, 0), "within"), ((1, 1), "within"), ((0, 1), "undecided")]
)
def test_a_side_that_fails_more_often_has_not_passed(
    failed: tuple[int, int], decision: str
) -> None:
    """However quick its other launches are; and a note says how many failed."""
    rng = np.random.default_rng(1)
    slow, quick = ([measurement(mean, rng) for _ in range(8)] for mean in (20.0, 10.0))
    verdict = comparison.compare(slow, quick, objective="mean", names=ab_arms.ARMS)
    tallies = {
        role: FailureCount(evaluations=9, failed=count, reason="out of memory")
        for role, count in zip(ab_arms.ARMS, failed, strict=True)
    }
    settings = StudySettings(target=TargetSettings(model="echo", concurrency=2))
    order = ab.AbSpec(
        words=("a", "b"), settings=settings, limit=ab.parse_threshold("mean worse by 5 %")
    )
    found = ab.AbResult(
        words=order.words,
        told=order.words,
        models=("echo", "echo"),
        load="2 in flight",
        verdict=verdict,
        objective="mean",
        limit=order.limit,
        decision=ab._decision(order, verdict, tallies),
        why_in_turn=None,
        runs=(),
        seconds=9.0,
        repeats=0,
        tallies=tallies,
    )
    assert found.decision == decision
    told = [note for note in ab_formats.notes(found) if "failed" in note]
    assert len(told) == sum(map(bool, failed))
    assert all(note.startswith("1 of 9 evaluations of ") for note in told)
    for deviation, is_told in ((0.0, False), (0.012, True)):
        varied = dataclasses.replace(verdict, evaluation_sd=deviation)
        notes = ab_formats.notes(dataclasses.replace(found, verdict=varied))
        assert any("varies by" in note for note in notes) == is_told
    assert ab_formats.as_json(found)["failed"] == {"a": failed[0], "b": failed[1]}


def test_what_a_server_wrote_does_not_break_the_page_of_test_results() -> None:
    """Colours of a terminal are no characters of XML."""
    arguments = argparse.Namespace(a="a", b="b", model="echo")
    page = ab_formats.junit_of_error(arguments, "B: \x1b[31mno such file\x1b[0m")
    told = ET.fromstring(page).find("testcase/error")
    assert told is not None
    assert "no such file" in (told.text or "")
