"""Shared replicas that hang, stop, die or slow down: nobody waits past the deadline, and the others are served on."""

import os
import pathlib
import signal
import threading
import time
from typing import NamedTuple

import pytest

from serving.model_spec import ModelSpec
from serving.spawners.process.spawner import ProcessSpawner
from tests.fakes.running import gateway

pytestmark = pytest.mark.usefixtures("quick_starts")

WAIT_S = 20.0
MODEL = """
import pathlib
import time

PACE = pathlib.Path({pace!r})

class Model:
    '''Takes as long as the file says; 98 does not end, 99 takes half a second.'''
    inputs = outputs = [{{"name": "x", "datatype": "INT32", "shape": [-1, 1]}}]
    sample_inputs = {{"x": [[1]]}}

    def predict_batch(self, inputs):
        time.sleep(float(PACE.read_text()))
        if (inputs["x"] == 98).any():
            time.sleep(600)
        if (inputs["x"] == 99).any():
            time.sleep(0.5)
        return {{"x": inputs["x"]}}
"""


class Asked(NamedTuple):
    """One request that was answered."""

    status: int
    began_s: float
    took_s: float


class Home(ProcessSpawner):
    """Processes."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()


class Pace:
    """How long a batch takes, from now on."""

    def __init__(self, file):
        self.file = file
        self.set(0.003)

    def set(self, seconds):
        """Whole, whoever reads at the same time."""
        written = self.file.with_suffix(".new")
        written.write_text(str(seconds))
        written.replace(self.file)


@pytest.fixture(name="pace")
def _pace(tmp_path):
    return Pace(tmp_path / "pace")


@pytest.fixture(name="card_of")
def _card_of(tmp_path, pace):
    def make(name):
        file = tmp_path / f"{name}.py"
        file.write_text(MODEL.format(pace=str(pace.file)))
        return ModelSpec(name=name, version="1", kind="python", path=pathlib.Path(f"{file}:Model"))

    return make


def served(count, card, **more):
    """A gateway of so many replicas."""
    settings = {"scheduling.policy": "clockwork", "replica.count": count}
    more = {name.replace("__", "."): value for name, value in more.items()}
    return gateway({**settings, **more}, Home(), card)


def ask(running, name, value=1, *, deadline_s=5.0):
    """One request."""
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [value]}]}
    body["parameters"] = {"timeout": int(1e6 * deadline_s)}
    began_s = time.monotonic()
    status, _ = running.json("POST", f"/v2/models/{name}/infer", body)
    return Asked(status, began_s, time.monotonic() - began_s)


def replicas(running):
    """Pids of the replicas that are ready."""
    rows = running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]
    return {one["pid"] for one in rows if one["state"] == "ready"}


def wait_for(condition, what):
    """Fail where it does not come true."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)


class Client(threading.Thread):
    """Asks for a model again and again, until it is stopped."""

    def __init__(self, running, name, deadline_s):
        super().__init__()
        self.asked = []
        self._running = running
        self._name = name
        self._deadline_s = deadline_s
        self._stop_it = threading.Event()
        self.start()

    def run(self):
        while not self._stop_it.wait(0.005):
            self.asked.append(ask(self._running, self._name, deadline_s=self._deadline_s))

    def stop(self):
        """What it was answered."""
        self._stop_it.set()
        self.join(WAIT_S)
        return self.asked


def test_a_replica_that_hangs(card_of):
    """Who is with it is answered at the deadline, the others by the other replica; it is replaced."""
    deadline_s, hang_s = 1.2, 3.0
    with served(2, card_of("a"), replica__hang_timeout_s=hang_s) as running:
        running.call(running.engine.deploy(card_of("b")))
        before = replicas(running)
        clients = {name: Client(running, name, deadline_s) for name in ("a", "b")}
        patient = Client(running, "a", WAIT_S)
        wait_for(lambda: all(len(one.asked) > 20 for one in clients.values()), "no answers")
        hung = ask(running, "a", 98, deadline_s=deadline_s)
        hung_s = hung.began_s
        wait_for(lambda: replicas(running) - before, "it is not replaced")
        found = {name: client.stop() for name, client in clients.items()}
        found["patient"] = patient.stop()
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
    assert hung.status == 504
    assert deadline_s <= hung.took_s < hang_s, "at the deadline, and not when the replica ends"
    assert [death["reason"] for death in deaths] == ["hang"]
    for name in ("a", "b"):
        lost = [one for one in found[name] if one.status != 200]
        assert len(lost) <= 3, "those that were with it, and hardly a request more"
        assert all(one.took_s < hang_s for one in found[name])
        meanwhile = [
            one for one in found[name] if 0 < one.began_s - hung_s - deadline_s < hang_s / 3
        ]
        assert meanwhile, "it is asked for while the replica hangs"
        assert all(one.status == 200 for one in meanwhile)
    assert {one.status for one in found["patient"]} == {200}, "what has time is run again"


@pytest.mark.parametrize("count", [1, 2])
def test_a_replica_that_dies_in_a_batch(card_of, count):
    """What it ran is run again by another one, in time."""
    with served(count, card_of("a")) as running:
        assert ask(running, "a").status == 200
        before = replicas(running)
        found = []
        asking = threading.Thread(target=lambda: found.append(ask(running, "a", 99)))
        asking.start()
        wait_for(lambda: running.engine.inflight_count, "it is not asked")
        time.sleep(0.1)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        asking.join(WAIT_S)
        assert [one.status for one in found] == [200]
        wait_for(lambda: len(replicas(running)) == count, "none comes instead")
        assert not replicas(running) & before


def test_a_replica_that_stands_still_and_comes_back(card_of):
    """It is worked around, and is no dead one: it takes requests again."""
    deadline_s, stop_s = 1.2, 3.0
    with served(2, card_of("a")) as running:
        running.call(running.engine.deploy(card_of("b")))
        clients = [Client(running, name, deadline_s) for name in ("a", "b")]
        wait_for(lambda: all(len(one.asked) > 20 for one in clients), "no answers")
        pids = replicas(running)
        stopped = min(pids)
        os.kill(stopped, signal.SIGSTOP)
        stopped_s = time.monotonic()
        time.sleep(stop_s)
        os.kill(stopped, signal.SIGCONT)
        asked = [one for client in clients for one in client.stop()]
        lost = [one for one in asked if one.status != 200]
        assert len(lost) <= 6
        assert all(one.took_s < stop_s for one in asked), "nobody waits until it comes back"
        soon_s, late_s = deadline_s + 0.3, stop_s - 0.6
        meanwhile = [one for one in asked if soon_s < one.began_s - stopped_s < late_s]
        assert meanwhile
        assert all(one.status == 200 for one in meanwhile)
        assert replicas(running) == pids
        os.kill(max(pids), signal.SIGKILL)
        wait_for(lambda: ask(running, "a").status == 200, "the one that came back does not answer")


def test_a_replica_that_slows_down(card_of, pace):
    """What cannot be in time any more is refused at once rather than late; fast again, it is admitted again."""
    deadline_s = 1.0
    with served(1, card_of("a")) as running:
        wait_for(lambda: ask(running, "a", deadline_s=deadline_s).status == 200, "never in time")
        pace.set(2.0 * deadline_s)
        client = Client(running, "a", deadline_s)
        wait_for(lambda: len(client.asked) > 100, "no answers")
        slow = client.stop()
        pace.set(0.003)
        wait_for(
            lambda: ask(running, "a", deadline_s=deadline_s).status == 200, "not admitted again"
        )
        again = [ask(running, "a", deadline_s=deadline_s).status for _ in range(30)]
    assert {one.status for one in slow} <= {503, 504}
    refused = [one for one in slow if one.status == 503]
    assert len(refused) > len(slow) / 2, (
        "most of them, beside those that try whether it is fast again"
    )
    assert sorted(one.took_s for one in refused)[len(refused) // 2] < deadline_s / 2
    assert all(one.took_s < 2.0 * deadline_s for one in slow), "nobody waits for the batch"
    assert again.count(200) > 20
