"""Machines that are lost under load: every request is answered, whatever was with them."""

import os
import pathlib
import re
import signal
import threading
import time

import pytest

from serving.model_spec import ModelSpec
from serving.spawners.node.credentials import Credentials
from serving.spawners.node.spawner import Machines, NodeSpawner
from tests.fakes.local_cluster import LocalCluster
from tests.fakes.running import gateway

WAIT_S = 30.0
MODEL = """
import time

class Model:
    '''Takes 5 ms.'''
    inputs = outputs = [{"name": "x", "datatype": "INT32", "shape": [-1, 1]}]
    sample_inputs = {"x": [[1]]}

    def predict_batch(self, inputs):
        time.sleep(0.005)
        return {"x": inputs["x"]}
"""


class Home(NodeSpawner):
    """Replicas behind two agents."""

    def __init__(self, folder):
        credentials = Credentials.make(tls=True)
        self.cluster = LocalCluster(credentials, folder, count=2, timeout_s=1.0)
        super().__init__(Machines(self.cluster, credentials, timeout_s=1.0))
        self.release = threading.Event()


@pytest.fixture(name="spec")
def _spec(tmp_path):
    file = tmp_path / "paced.py"
    file.write_text(MODEL)
    return ModelSpec(name="paced", version="1", kind="python", path=pathlib.Path(f"{file}:Model"))


class Client(threading.Thread):
    """Asks again and again, until it is stopped."""

    def __init__(self, running):
        super().__init__()
        self.answers = []
        self._running = running
        self._stop_it = threading.Event()
        self.start()

    def run(self):
        body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [7]}]}
        while not self._stop_it.is_set():
            begun_s = time.monotonic()
            status, _ = self._running.json("POST", "/v2/models/paced/infer", body)
            self.answers.append((status, time.monotonic() - begun_s))

    def stop(self):
        self._stop_it.set()
        self.join(WAIT_S)
        return self.answers


def _ready(running):
    rows = running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]
    return sum(row["state"] == "ready" for row in rows)


def _wait_for_replicas(running, count):
    until_s = time.monotonic() + WAIT_S
    while _ready(running) < count:
        assert time.monotonic() < until_s, f"{_ready(running)} of {count} replicas are ready"
        time.sleep(0.02)


@pytest.mark.parametrize("policy", ["adaptive", "clockwork"])
@pytest.mark.parametrize("how", ["killed", "silent"])
def test_no_request_fails_when_a_machine_is_lost(tmp_path, spec, how, policy):
    """Its batches run on the other machine, and so do its replicas from then on."""
    home = Home(tmp_path / "artefacts")
    settings = {"replica.count": 4, "batching.max_size": 4, "scheduling.policy": policy}
    with gateway(settings, home, spec) as running:
        clients = [Client(running) for _ in range(8)]
        time.sleep(0.3)
        lost = home.cluster.agents[0].process.pid
        home.cluster.use_only(1)
        os.kill(lost, signal.SIGKILL if how == "killed" else signal.SIGSTOP)
        time.sleep(1.0 if how == "killed" else 3.0)
        _wait_for_replicas(running, 4)
        time.sleep(0.3)
        rows = running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]
        assert {row["node"] for row in rows} == {"node-1"}
        metrics = running.request("GET", "/metrics", admin=True)[2].decode()
        assert re.search(r'_node_replicas{.*node="node-1".*} 4.0', metrics)
        answers = [answer for client in clients for answer in client.stop()]
        if how == "silent":
            os.kill(lost, signal.SIGCONT)
    assert {status for status, _ in answers} == {200}
    assert len(answers) > 50  # some while the machine was being lost
