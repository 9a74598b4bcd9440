"""Servers of an engine file: started, limited, ended whole, and what is said of their faults."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator

import pytest

from serving.system.cgroups import manager
from serving.system.secret_variables import SECRETS
from tests.fakes import other_engines
from tuner.engines import engine_lookup
from tuner.engines import file as engine_file
from tuner.errors import LaunchFailed
from tuner.launching.command_engine import CommandLauncher, CommandServer
from tuner.launching.readiness import ReadinessCheck
from tuner.values.configuration import Configuration

ROOT = pathlib.Path(__file__).resolve().parents[3]
QUICK = Configuration({"delay.ms": 1})
SUPPORT = manager.probe()
needs_limits = pytest.mark.skipif(SUPPORT.kind is None, reason=f"limits are {SUPPORT.text}")
Launch = Callable[..., CommandLauncher]


@pytest.fixture(name="launcher_of")
def _launcher_of(tmp_path: pathlib.Path) -> Iterator[Launch]:
    """Makes launchers of the tiny server with a fault; all are closed at the end."""
    made: list[CommandLauncher] = []

    def launcher_of(fault: str = "none", **options: object) -> CommandLauncher:
        file = other_engines.written(tmp_path, fault, **options)
        engine = engine_lookup.engine_of(f"command:{file}")
        sign = ReadinessCheck(path="/health")
        usual = Configuration({"delay.ms": 20})
        made.append(CommandLauncher(engine, usual, model="tiny", file="tiny", sign=sign))
        return made[-1]

    yield launcher_of
    for launcher in made:
        launcher.close()
        assert not any(directory.exists() for directory in launcher.limits.directories)


@contextlib.contextmanager
def started(launcher: CommandLauncher, **knobs: float) -> Iterator[CommandServer]:
    """A running server; ended at the end, however the test ends."""
    server = launcher.start(Configuration({**QUICK, **knobs}))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(name="serving")
def _serving(launcher_of: Launch) -> Iterator[CommandServer]:
    with started(launcher_of()) as server:
        yield server


def post(server: CommandServer) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/predict", b"x", 10) as answer:
        return bytes(answer.read())


def test_a_server_answers_and_tells_what_it_uses(serving: CommandServer) -> None:
    """It is up with its knobs, and its processes and their time are known."""
    assert post(serving) == b"answered"
    facts = serving.replica_facts()
    assert facts.deaths == ()
    assert len(serving.pids) >= 1
    assert serving.describe().limits == SUPPORT.text
    if SUPPORT.kind:
        assert facts.cpu_s is not None
        assert facts.cpu_s > 0


def test_a_launch_is_another_server(serving: CommandServer) -> None:
    """The one before is gone, its folder as well, and the new one has another port and folder."""
    before, port, work = set(serving.pids), serving.port, serving._work
    assert work is not None
    assert serving.apply(Configuration({})) > 0
    assert other_engines.gone(before)
    assert not work.exists()
    assert serving.port != port
    assert post(serving) == b"answered"


def test_files_and_ports_are_made_for_each_launch(tmp_path: pathlib.Path) -> None:
    """Templates are filled, in folders of their own; a second port is another one."""
    text = """
    name: files
    command: ["{python}", show.py, "{port}", "{port.more}"]
    environment: {SIZE: "{size}"}
    files:
      sub/a.txt: "size {size} of {model} {keep: it}"
      show.py: |
        import sys, time
        print(open("sub/a.txt").read(), sys.argv[1:], flush=True)
        time.sleep(60)
    ready: {path: /, timeout_s: 3}
    request: {protocol: raw, path: /, method: GET}
    knobs: {size: {type: int, choices: [1, 2], default: 1}}
    """
    engine = engine_file.parse(text, tmp_path / "engine.yaml")
    sign, usual = ReadinessCheck(path="/"), Configuration({"size": 1})
    launcher = CommandLauncher(engine, usual, model="m", file="/models/m", sign=sign)
    try:
        with pytest.raises(LaunchFailed) as caught:
            launcher.start(Configuration({"size": 2}))
    finally:
        launcher.close()
    said = str(caught.value)
    assert "not ready after 3 s" in said
    assert "last output: size 2 of /models/m {keep: it} ['" in said
    ports = said.rpartition("[")[2].strip("]").split(", ")
    assert len(set(ports)) == 2


@pytest.mark.parametrize(
    ("fault", "ready_s", "cause", "said"),
    [
        ("crash", 20, "start", "exit status 1; last output: there is no such model"),
        ("never", 3, "timeout", "not ready after 3 s: GET /health got status 503"),
    ],
)
def test_a_server_that_does_not_start_is_told_with_its_words(
    launcher_of: Launch, fault: str, ready_s: float, cause: str, said: str
) -> None:
    """The cause, how it ended, and its last line; nothing of it is left."""
    launcher = launcher_of(fault, ready_s=ready_s)
    with pytest.raises(LaunchFailed) as caught:
        launcher.start(QUICK)
    assert caught.value.cause == cause
    assert said in str(caught.value)


def test_a_program_that_is_not_there_is_named(launcher_of: Launch, tmp_path: pathlib.Path) -> None:
    """In one line, as a start that failed."""
    text = other_engines.text().replace("{python}", "no-such-program")
    engine = engine_file.parse(text, tmp_path / "engine.yaml")
    launcher = launcher_of()
    launcher.engine = engine
    with pytest.raises(LaunchFailed, match="no-such-program: No such file or directory") as caught:
        launcher.start(QUICK)
    assert caught.value.cause == "start"


def test_a_server_that_ends_is_a_crash(launcher_of: Launch) -> None:
    """With its exit status and its last words."""
    with started(launcher_of("die")) as server:
        pids = set(server.pids)
        for _ in range(5):
            post(server)
        with pytest.raises(OSError):
            post(server)
        assert other_engines.gone(pids)  # its connections end a moment before it does
        with pytest.raises(LaunchFailed) as caught:
            server.replica_facts()
    assert caught.value.cause == "crash"
    assert "exit status 7; last output: a fault in the model" in str(caught.value)


def test_what_ignores_the_signal_is_killed_with_its_children(launcher_of: Launch) -> None:
    """Also a child in a session of its own."""
    with started(launcher_of("hold")) as server:
        children = other_engines.with_argument(f"300.{server.port}") | set(server.pids)
        assert len(children) >= 2
        server.stop()
    assert not any(map(other_engines.is_alive, children))
    assert not server.is_running()


def killed(kill: str, tmp_path: pathlib.Path) -> set[int]:
    """Start a server from a process, kill that process or the guardian, return what should be gone."""
    path = other_engines.written(tmp_path, "hold")
    code = f"""
import time
from tuner.engines import engine_lookup
from tuner.launching.command_engine import *
from tuner.launching.readiness import ReadinessCheck
engine = engine_lookup.engine_of("command:" + {str(path)!r})
usual, sign = Configuration({{"delay.ms": 1}}), ReadinessCheck(path="/health")
server = CommandLauncher(engine, usual, model="t", file="t", sign=sign).start(None)
print(server._process._keeper.process.pid, *server.pids, server._process.pid, flush=True)
time.sleep(60)
"""
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with owner:
        assert owner.stdout is not None
        keeper, *pids = (int(word) for word in owner.stdout.readline().split())
        os.kill(keeper if kill == "guardian" else owner.pid, signal.SIGKILL)
        owner.stdout.close()
        if kill == "guardian":
            assert other_engines.gone({pids[-1]})
            owner.kill()
    return set(pids)


def test_a_killed_tuner_leaves_nothing(tmp_path: pathlib.Path) -> None:
    """After kill -9 the guardian ends the server with all it started; its group goes with the next."""
    pids = killed("tuner", tmp_path)
    assert other_engines.gone(pids)
    manager.cleanup_stale()


def test_a_killed_guardian_takes_the_server_along(tmp_path: pathlib.Path) -> None:
    """The kernel ends the server; what that started is found by its group."""
    pids = killed("guardian", tmp_path)
    manager.cleanup_stale()
    if SUPPORT.kind:
        assert other_engines.gone(pids)


@pytest.mark.limits
@needs_limits
def test_memory_of_the_whole_server_is_limited(launcher_of: Launch) -> None:
    """A server that takes more is killed, and that is told as what it is."""
    launcher = launcher_of("oom", knobs=other_engines.MEMORY)
    with started(launcher, **{"engine.memory_mb": 64}) as server:
        with pytest.raises(OSError):
            post(server)
        (death,) = server.replica_facts().deaths
    assert death.reason == "oom"
    assert "limit 64 MiB); raise engine.memory_mb" in death.text


@pytest.mark.limits
@needs_limits
def test_a_server_killed_for_memory_at_its_start_says_so(
    launcher_of: Launch, tmp_path: pathlib.Path
) -> None:
    """The cause is oom, not a crash."""
    launcher = launcher_of(knobs=other_engines.MEMORY)
    eat = '"-c", "x = bytearray(200 << 20); x[::4096] = bytes(len(x[::4096]))", "{port}"'
    text = launcher.engine.text.replace(f'"{other_engines.TINY}", "{{port}}"', eat)
    launcher.engine = engine_file.parse(text, tmp_path / "engine.yaml")
    with pytest.raises(LaunchFailed) as caught:
        launcher.start(Configuration({**QUICK, "engine.memory_mb": 64}))
    assert caught.value.cause == "oom"


@pytest.mark.limits
@needs_limits
def test_the_cpu_of_the_whole_server_is_limited(launcher_of: Launch) -> None:
    """The quota stands in the group, and the server is in it."""
    with started(launcher_of(), **{"engine.cpu": 0.5}) as server:
        group, process = server._group, server._process
        assert group is not None
        assert process is not None
        quotas = [
            (directory / name).read_text().split()[0]
            for directory in group.directories
            for name in ("cpu.cfs_quota_us", "cpu.max")
            if (directory / name).exists()
        ]
        assert "50000" in quotas
        assert process.pid in server.pids


def test_the_owners_secrets_are_not_given_away(
    launcher_of: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens and the password are for the owner's own servers; all else is inherited."""
    for name in SECRETS:
        monkeypatch.setenv(name, "a-secret-of-sixteen")
    monkeypatch.setenv("NO_SECRET", "yes")
    with started(launcher_of()) as server:
        (pid, *_) = server.pids
        given = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    names = {one.partition("=")[0] for one in given}
    assert "NO_SECRET" in names
    assert not names & set(SECRETS)
