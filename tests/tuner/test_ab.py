"""What `tune ab` takes its two sides for, before anything is started."""

from __future__ import annotations

import pathlib
import socket
from collections.abc import Iterator

import pytest
import rich.console

from tuner import ab
from tuner.errors import WrongUse
from tuner.progress import Terminal
from tuner.settings import StudySettings, TargetSettings
from tuner.store.event_log import EventLog

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


def sides(a: str, b: str, model: str = ab.NO_MODEL) -> tuple[ab.Side, ab.Side]:
    """Both, as they are understood."""
    settings = StudySettings(target=TargetSettings(model=model, concurrency=2))
    terminal = Terminal(console=rich.console.Console(), log=EventLog(), check=lambda: None)
    found = ab._sides(ab.Order(words=(a, b), settings=settings), terminal)
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
    with pytest.raises(WrongUse, match="A and B are the same"):
        sides(engine, engine, model="echo")


def test_an_engine_file_needs_a_model(engine: str) -> None:
    """It names none."""
    with pytest.raises(WrongUse, match="give --model"):
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
    with pytest.raises(WrongUse, match=r"B: nothing listens at http://127\.0\.0\.1:1/page"):
        sides("echo", "http://127.0.0.1:1/page")


@pytest.mark.parametrize("word", ["nosuch.yaml", "resnett"])
def test_what_is_nothing_is_told_with_its_side(word: str) -> None:
    """A file that is missing, and a name that is mistyped."""
    with pytest.raises(WrongUse, match=f"^A: {word} is no file, no study, and no model: "):
        sides(word, "echo")
