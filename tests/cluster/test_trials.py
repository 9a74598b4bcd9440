"""Studies on two machines of a real Ray cluster: one is killed, the hub is killed, and nothing is left."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

import optuna
import pytest

from tests.fakes.ray_machines import ray_machines
from tuner.store.study_store import StudyStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

TRIALS = 8
STUDY = (
    *("--model", "linear", "--concurrency", "4", "--trials", str(TRIALS), "--initial", "4"),
    *("--seconds", "0.5", "--warmup", "0.1", "--pairs", "2", "--space", "waits.yaml"),
    *("--stop-ei", "0"),
)
SPACE = """
name: waits
knobs:
  batching.timeout_us: {type: int, choices: [0, 5000, 10000, 40000], default: 40000, unit: us}
  batching.max_size: {type: int, choices: [8, 16, 32], default: 8, unit: items}
"""
"""The default waits for a batch that never fills."""
TUNE = (sys.executable, "-m", "tests.fakes.measured_once")
ENDED_S = 300.0
GONE_S = 30.0
OURS = ("serving.", "tuner.", "MeasuringNode")
"""In the commands of what a machine runs for a study."""

UNREADABLE = """
from tuner.errors import NodeLost, UsageError
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study.nodes.measuring_node import MeasuringNode
from tuner.study.nodes.ray_nodes import RayFleet

class Unreadable:
    def __reduce__(self):
        return int, ("no number",)

class Node(MeasuringNode):
    def answer(self):
        return Unreadable()
    def fail(self):
        raise OSError(28, "No space left on device")
    def refuse(self):
        raise UsageError("no such setting")

settings = StudySettings(target=TargetSettings(model="echo", concurrency=2))
with RayFleet.open("1", settings, {}, kind=Node) as fleet:
    assert not fleet.nodes[0].is_here, "the head has no cores"
    for method in ("answer", "fail", "refuse"):
        try:
            fleet.nodes[0].ask(method)
        except NodeLost as error:
            print(error)
"""
HELD = """
import sys
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study.nodes.ray_nodes import RayFleet

settings = StudySettings(target=TargetSettings(model="echo", concurrency=2))
with RayFleet.open("1", settings, {}) as fleet:
    print(fleet.nodes[0].name, flush=True)
    sys.stdin.read()
"""
BUSY = """
import threading, time
from tuner.errors import NodeLost
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study.nodes.measuring_node import MeasuringNode
from tuner.study.nodes.ray_nodes import RayFleet

class Node(MeasuringNode):
    def wait(self, seconds):
        time.sleep(seconds)

def wait(node):
    try:
        node.ask("wait", 1000.0)
    except NodeLost as error:
        print(error)
        lost.set()

settings = StudySettings(target=TargetSettings(model="echo", concurrency=2))
lost = threading.Event()
with RayFleet.open("2", settings, {}, kind=Node) as fleet:
    for node in fleet.nodes:
        node.ask("wait", 0.0)
        threading.Thread(target=wait, args=[node], daemon=True).start()
    print("begun", flush=True)
    lost.wait(600.0)
"""
SILENT_S = 150.0
"""Ray's health checks take 65 s by default."""


@pytest.fixture(scope="module", name="machines")
def _machines():
    with ray_machines() as found:
        yield found


@contextlib.contextmanager
def hub(machines, folder, *arguments):
    """`tune` in a process of its own; killed at the end, however the test ends."""
    with subprocess.Popen(
        [*TUNE, *arguments],
        cwd=folder,
        env=machines.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def tune(machines, folder, *arguments):
    """`tune` to its end."""
    return subprocess.run(
        [*TUNE, *arguments],
        cwd=folder,
        env=machines.environment,
        capture_output=True,
        text=True,
        timeout=ENDED_S,
        check=False,
    )


def wait_for_trials(process, count):
    """Read progress until so many trials have ended."""
    lines = []
    for line in process.stderr:
        lines.append(line)
        count -= " left | on " in line
        if not count:
            return
    pytest.fail(f"ended early: {''.join(lines)}")


def states(folder, name):
    """States of the trials, and those that were interrupted."""
    store = StudyStore.open_study(name, database=folder / f"runs/{name}/study.db", url=None)
    trials = store.study.get_trials(deepcopy=False)
    cut = [one for one in trials if one.state is optuna.trial.TrialState.FAIL]
    return trials, cut


def commands_of(machines):
    """Commands that run for a study in the cluster's processes, or anywhere with its token."""
    token = f"RAY_AUTH_TOKEN={machines.environment['RAY_AUTH_TOKEN']}".encode()
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if any(word in command for word in OURS) and token in (path / "environ").read_bytes():
                found.append(command)
    return found


def all_gone(machines):
    """Whether everything of studies ends in time."""
    until_s = time.monotonic() + GONE_S
    while (found := commands_of(machines)) and time.monotonic() < until_s:
        time.sleep(0.1)
    assert not found


@pytest.fixture(name="folder")
def _folder(tmp_path):
    (tmp_path / "waits.yaml").write_text(SPACE, encoding="utf-8")
    return tmp_path


def test_a_study_survives_the_loss_of_a_machine(machines, folder):
    """Its trial is interrupted and evaluated elsewhere; the study ends with a verdict."""
    with hub(machines, folder, *STUDY, "--workers", "2", "--study", "k", "--json") as process:
        wait_for_trials(process, 3)
        assert commands_of(machines)
        machines.kill()
        out, err = process.communicate(timeout=ENDED_S)
    machines.add()
    assert process.returncode == 0, err
    told = json.loads(out)
    assert told["verdict"]["outcome"] == "better"
    assert told["trials"] == TRIALS
    trials, (lost,) = states(folder, "k")
    assert "is lost" in lost.user_attrs["interrupted"]
    configuration = lost.user_attrs["configuration"]
    again = [one for one in trials if one.user_attrs.get("configuration") == configuration]
    assert any("facts" in one.user_attrs for one in again)
    nodes = {one.user_attrs["facts"]["node"] for one in trials if "facts" in one.user_attrs}
    assert len(nodes) == 2
    assert " is lost: Ray does not reach" in err
    all_gone(machines)


def test_a_killed_hub_leaves_nothing_and_its_study_goes_on(machines, folder):
    with hub(machines, folder, *STUDY, "--workers", "auto", "--study", "h") as process:
        wait_for_trials(process, 3)
        process.kill()
        process.communicate()
    all_gone(machines)
    kept = sum(one.state.is_finished() for one in states(folder, "h")[0])
    done = tune(machines, folder, "resume", "h", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"] == TRIALS
    trials, cut = states(folder, "h")
    assert 1 <= len(cut) <= 2
    assert len(trials) == TRIALS + len(cut)
    assert kept >= 3
    all_gone(machines)


def test_a_call_that_brings_no_answer_loses_its_machine(machines, folder):
    """Whatever the error; that of an answer that cannot be unpickled is Ray's own."""
    done = subprocess.run(
        [sys.executable, "-c", UNREADABLE],
        cwd=folder,
        env=machines.environment,
        capture_output=True,
        text=True,
        timeout=ENDED_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    unreadable, full, refused = done.stdout.splitlines()
    assert "is lost: Ray fails: " in unreadable
    assert full.endswith("is lost: [Errno 28] No space left on device")
    assert refused.endswith("is lost: no such setting")


def test_two_studies_share_a_cluster(machines, folder):
    """Each takes a machine that is free, whichever it is."""
    with contextlib.ExitStack() as ends:
        held = []
        for _ in range(2):
            process = subprocess.Popen(
                [sys.executable, "-c", HELD],
                cwd=folder,
                env=machines.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            ends.enter_context(process)
            held.append(process.stdout.readline().strip())
            ends.callback(process.stdin.close)
    assert all(held)
    assert len(set(held)) == 2


def test_a_silent_machine_is_lost_long_before_a_call_may_end(machines, folder):
    """Ray's health checks notice it; a call may take as long as the study, and longer."""
    with subprocess.Popen(
        [sys.executable, "-c", BUSY],
        cwd=folder,
        env=machines.environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            machines.freeze()
            out, _ = process.communicate(timeout=SILENT_S)
        finally:
            process.kill()
            machines.kill()
            machines.add()
    assert "is lost: Ray does not reach what measures there" in out


@pytest.mark.parametrize(
    ("workers", "changed", "told"),
    [
        ("3", {}, "the Ray cluster has 2 machines with cores"),
        ("2", {"RAY_AUTH_MODE": ""}, "set RAY_AUTH_MODE=token and a token on all machines"),
        ("2", {"RAY_AUTH_TOKEN": "0" * 64}, "Ray cannot be reached"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_line(machines, folder, workers, changed, told):
    environment = {**machines.environment, **changed}
    done = subprocess.run(
        [*TUNE, *STUDY, "--workers", workers],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=ENDED_S,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tune: ")]
    assert line.startswith(f"tune: --workers {workers}: ")
    assert told in line
