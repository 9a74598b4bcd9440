"""Owning a real server: start, launches, refusals, death, and nothing left behind."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from serving.system.secret_variables import SECRETS
from tuner.errors import LaunchFailed, UsageError
from tuner.launching.admin import AdminClient
from tuner.launching.engine_process import LuthierProcess
from tuner.values.configuration import Configuration

ROOT = pathlib.Path(__file__).resolve().parents[3]


def is_alive(pid: int) -> bool:
    """Whether a process is there and is no zombie."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def gone(pids: list[int], *, within_s: float = 10.0) -> bool:
    """Whether all processes end in time."""
    until_s = time.monotonic() + within_s
    while any(map(is_alive, pids)) and time.monotonic() < until_s:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


@pytest.fixture(scope="module")
def engine() -> Iterator[LuthierProcess]:
    with LuthierProcess.start("echo") as started:
        yield started


def test_a_configuration_is_launched_on_new_replicas(engine: LuthierProcess) -> None:
    """After apply the engine has the configuration's settings and replicas that were not there."""
    before = engine.replica_facts().pids
    launched_s = engine.apply(Configuration({"replica.count": 2, "batching.max_size": 4}))
    facts = engine.replica_facts()
    settings = engine.admin.settings()["settings"]
    assert launched_s > 0
    assert (settings["replica"]["count"], settings["batching"]["max_size"]) == (2, 4)
    assert len(facts.replicas) == 2
    assert set(before).isdisjoint(facts.pids)
    assert facts.deaths == ()


def test_the_server_has_no_port_that_a_study_does_not_need(engine: LuthierProcess) -> None:
    """gRPC is off: the load comes over REST."""
    assert engine.admin.settings()["settings"]["server"]["grpc_port"] is None


def test_nothing_of_the_configuration_before_is_left(engine: LuthierProcess) -> None:
    """A configuration that is silent on a knob gets the default, not what ran before."""
    engine.apply(Configuration({"batching.timeout_us": 500}))
    engine.apply(Configuration({"replica.count": 1}))
    assert engine.admin.settings()["settings"]["batching"]["timeout_us"] == 0


def test_a_refused_configuration_leaves_the_engine_serving(engine: LuthierProcess) -> None:
    """Settings out of their range are a launch that failed, and the old ones still serve."""
    with pytest.raises(LaunchFailed) as caught:
        engine.admin.apply({"batching.max_size": 100_000}, timeout_s=10)
    assert caught.value.cause == "constraint"
    assert engine.is_running()
    assert engine.replica_facts().replicas


def test_stop_leaves_no_process() -> None:
    """Server and replicas are gone when stop returns, or right after; stop again is harmless."""
    engine = LuthierProcess.start("echo", Configuration({"replica.count": 2}))
    pids = [engine.facts.pid, *engine.replica_facts().pids]
    engine.stop()
    engine.stop()
    assert gone(pids)
    assert not engine.is_running()


def test_a_dead_engine_is_told_as_a_crash() -> None:
    """A server that was killed refuses the next launch with the cause crash."""
    with LuthierProcess.start("echo") as engine:
        os.kill(engine.facts.pid, signal.SIGKILL)
        assert gone([engine.facts.pid])
        with pytest.raises(LaunchFailed) as caught:
            engine.apply(Configuration({"replica.count": 1}))
        assert caught.value.cause == "crash"
        assert "SIGKILL" in engine.last_words()


def test_wrong_use_and_broken_models_are_told_apart(tmp_path: pathlib.Path) -> None:
    """An unknown name is wrong use; a file that is no model is a start that failed, in one line."""
    with pytest.raises(UsageError, match="did you mean 'echo'"):
        LuthierProcess.start("eco")
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"not a model")
    with pytest.raises(LaunchFailed) as caught:
        LuthierProcess.start(str(broken))
    assert caught.value.cause == "start"
    assert "\n" not in str(caught.value)
    pickled = tmp_path / "forest.pkl"
    pickled.write_bytes(b"not a zip file")
    with pytest.raises(LaunchFailed, match=r"model forest .* run where it was made: .*\.skops'\)$"):
        LuthierProcess.start(str(pickled))


def test_a_killed_owner_leaves_no_server() -> None:
    """After `kill -9` of the process that started it, server and replicas end by themselves."""
    code = (
        "import time\n"
        "from tuner.launching.engine_process import LuthierProcess\n"
        "engine = LuthierProcess.start('echo')\n"
        "print(engine.facts.pid, *engine.replica_facts().pids, flush=True)\n"
        "time.sleep(60)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with owner:
        assert owner.stdout is not None
        pids = [int(word) for word in owner.stdout.readline().split()]
        assert len(pids) >= 2
        owner.kill()
        assert gone(pids)


def test_what_a_library_does_at_a_fork_does_not_reach_the_server() -> None:
    """One that ends the child, as gRPC's poller now and then does: the server starts all the same."""
    code = (
        "import os\n"
        "from tuner.launching.engine_process import LuthierProcess\n"
        "os.register_at_fork(after_in_child=lambda: os._exit(1))\n"
        "with LuthierProcess.start('echo') as engine:\n"
        "    print(engine.is_running())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        cwd=ROOT,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "True\n"


def test_a_study_has_its_own_token_and_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's tokens and password stay with the tuner; the admin port asks for one that the server made."""
    for name in SECRETS:
        monkeypatch.setenv(name, "a-secret-of-sixteen")
    with LuthierProcess.start("echo") as engine:
        given = pathlib.Path(f"/proc/{engine.facts.pid}/environ").read_bytes().decode()
        assert not {one.partition("=")[0] for one in given.split("\0")} & set(SECRETS)
        assert engine.admin.settings()["settings"]["server"]["admin_access"] == "token"
        with pytest.raises(LaunchFailed, match="answered 401 to GET /admin/settings"):
            AdminClient(engine.host, engine.facts.admin_port).settings()
