"""Versions of a watched folder under load, with real replicas: a switch loses no request and costs none time."""

import concurrent.futures
import contextlib
import http.client
import json
import re
import threading

import numpy as np
import pytest

from tests.flows.test_server import server, until

CONNECTIONS = 20
COLD_S = 0.5
"""What the first call of a version costs that is not warm."""

SLOW_AT_FIRST = f"""
import time

class Model:
    inputs = outputs = [{{"name": "x", "datatype": "FP32", "shape": [-1, 1]}}]
    is_warm = not COLD

    def predict_batch(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("less than nothing")
        if not self.is_warm:
            time.sleep({COLD_S})
            self.is_warm = True
        return inputs
"""

EXEC_MS = re.compile(r"exec;dur=([0-9.]+)")
BODY = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})


def put(root, version, sample, *, cold=True):
    """A version in the folder, its samples first, so that no look sees it without them."""
    folder = root / "m" / version
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "samples.npz", x=np.full((3, 1), sample, np.float32))
    (folder / "model.py").write_text(SLOW_AT_FIRST.replace("COLD", str(cold), 1))


class Load:
    """Requests over so many connections, one after another on each, until it is left."""

    def __init__(self, port):
        self.answers = []
        """(status, version, seconds in the model) in the order of arrival."""
        self._port = port
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(CONNECTIONS)

    def __enter__(self):
        self._asking = [self._pool.submit(self._ask) for _ in range(CONNECTIONS)]
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._pool.shutdown()
        for one in self._asking:
            one.result(0)

    def _ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=20)
        with contextlib.closing(connection):
            while not self._stop.is_set():
                connection.request("POST", "/v2/models/m/infer", BODY)
                response = connection.getresponse()
                version = json.loads(response.read()).get("model_version")
                took = EXEC_MS.search(response.getheader("Server-Timing", ""))
                exec_s = float(took[1]) / 1000 if took else None
                self.answers.append((response.status, version, exec_s))

    def has(self, version, after=0):
        return until(lambda: any(one[1] == version for one in self.answers[after:]))


@pytest.fixture(name="root")
def _root(tmp_path):
    put(tmp_path, "1", 1.0)
    return tmp_path


def test_versions_switch_warm_and_without_a_lost_request(root):
    """New version, failing sample, roll-back, changed files: every answer is a 200, and none of them is late."""
    settings = (
        "server.repository_poll_s=0.05",
        "server.repository_loaded_versions=2",
        "server.timing=header",
    )
    arguments = [word for one in settings for word in ("--set", one)]
    with server("--model-repository", str(root), *arguments) as running, Load(running.port) as load:

        def versions():
            return running.json("GET", "/admin/models/m", admin=True)[1]["versions"]

        assert load.has("1")
        put(root, "2", 1.0)
        assert load.has("2")
        told = versions()["2"]
        assert told["warmup"]["source"] == "file"
        assert set(told["warmup"]["batch_s"]) == {"1", "8"}
        assert told["load_s"] > told["warmup"]["warmup_s"] > COLD_S
        put(root, "3", -1.0)
        assert until(lambda: versions().get("3", {}).get("state") == "failed")
        assert "less than nothing" in versions()["3"]["reason"]
        assert running.json("POST", "/admin/models/m/rollback", admin=True)[1]["current"] == "1"
        seen = len(load.answers)
        assert load.has("1", seen)
        put(root, "2", 2.0)  # other files: the same version anew
        assert until(lambda: versions()["2"]["load_s"] != told["load_s"])
        running.json("PUT", "/admin/models/m/current", {"version": "2"}, admin=True)
        assert load.has("2", len(load.answers))
        assert {status for status, _, _ in load.answers} == {200}
        assert {version for _, version, _ in load.answers} == {"1", "2"}
        assert max(exec_s for _, _, exec_s in load.answers) < COLD_S
