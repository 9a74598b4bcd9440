"""Models that share containers, under a whole server: they come and go, are killed and limited, and leave nothing."""

import contextlib
import http.client
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import docker
import numpy as np
import pytest

from serving import zoo
from serving.spawners.docker.containers import OWNER_LABEL
from tests.fakes.admin import token_fields
from tests.fakes.docker_engine import needs_docker

pytestmark = needs_docker
ROOT = pathlib.Path(__file__).parents[2]
WAIT_S = 30.0
COPIES = 3


class Server:
    """A server whose models share two containers, and the files of its models."""

    def __init__(self, folder):
        zoo_model = zoo.find("mnist")
        self.folder = folder
        self.files = [folder / f"m{number}.onnx" for number in range(COPIES)]
        for file in self.files:
            shutil.copy(zoo_model.path, file)
        with np.load(zoo_model.sample) as sample:
            self.images = {name: array[:1].tolist() for name, array in sample.items()}
        # Its runtime folder is on the models' file system and nobody else's.
        (folder / "tmp").mkdir()
        words = ("--model", str(self.files[0]), "--port", "0", "--admin-port", "0")
        for setting in (
            "replica.spawner=docker",
            "replica.count=2",
            "replica.cpu=1.0",
            "scheduling.policy=clockwork",
            "scheduling.default_deadline_s=5.0",
        ):
            words += ("--set", setting)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "serving", *words],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder / "tmp")},
        )
        line = self.process.stdout.readline()
        assert line, "it did not start"
        self.facts = json.loads(line)
        (self.runtime,) = (folder / "tmp").glob("luthier-*")

    def ask(self, port, method, path, data=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.facts[port], timeout=WAIT_S)
        with contextlib.closing(connection):
            fields = token_fields(self.facts[port]) if port == "admin_port" else {}
            connection.request(method, path, None if data is None else json.dumps(data), fields)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")

    def admin(self, method, path, data=None):
        status, answer = self.ask("admin_port", method, f"/admin/{path}", data)
        assert status < 300, answer
        return answer

    def predict(self, model):
        """The status of one request."""
        status, facts = self.ask("port", "GET", f"/v2/models/{model}")
        if status != 200:
            return status
        (spec,) = facts["inputs"]
        (values,) = (self.images[name] for name in self.images if name == spec["name"])
        array = np.asarray(values)
        tensor = {"name": spec["name"], "datatype": spec["datatype"], "shape": list(array.shape)}
        tensor["data"] = array.ravel().tolist()
        return self.ask("port", "POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})[0]

    def containers(self, client):
        """Running ones, by id."""
        filters = {"label": f"{OWNER_LABEL}={self.runtime.name}"}
        found = client.containers.list(filters=filters, ignore_removed=True)
        return {container.id: container for container in found}

    def links(self):
        """Names that each of the models' files has."""
        return [file.stat().st_nlink for file in self.files]


@contextlib.contextmanager
def _running():
    # A short name, for sockets; one that the containers' user may enter.
    with tempfile.TemporaryDirectory() as name:
        pathlib.Path(name).chmod(0o755)
        server = Server(pathlib.Path(name))
        with server.process:
            try:
                yield server
            finally:
                server.process.terminate()


@pytest.fixture(name="client", scope="module")
def _client():
    client = docker.from_env()
    yield client
    client.close()


@pytest.fixture(name="server", scope="module")
def _server():
    with _running() as server:
        yield server


def _until(done):
    until_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < until_s, "it takes too long"
        time.sleep(0.02)


def test_models_come_and_go_while_containers_run(client, server):
    """No container is started for them, and the files of one that has gone are nobody's but the user's."""
    before = server.containers(client)
    assert len(before) == 2
    for file in server.files[1:]:
        server.admin("POST", "models", {"model": str(file)})
    assert server.links() == [2, 2, 2]
    assert [server.predict(file.stem) for file in server.files] == [200] * COPIES
    for file in server.files[1:]:
        (version,) = server.admin("GET", f"models/{file.stem}")["versions"]
        status, _ = server.ask(
            "admin_port", "DELETE", f"/admin/models/{file.stem}/versions/{version}"
        )
        assert status in {200, 404}
        assert server.predict(file.stem) == 404
    assert server.links() == [2, 1, 1]
    assert server.predict("m0") == 200
    assert server.containers(client).keys() == before.keys()


def test_a_container_that_is_killed_is_replaced(client, server):
    """Who asks meanwhile is answered or told why not; what is left serves on."""
    victim = next(iter(server.containers(client)))
    statuses = []
    ends = threading.Event()

    def ask():
        while not ends.is_set():
            statuses.append(server.predict("m0"))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    _until(lambda: len(statuses) > 20)
    client.containers.get(victim).kill()

    def is_replaced():
        told = server.admin("GET", "replicas")
        states = [replica["state"] for replica in told["replicas"]]
        return bool(told["deaths"]) and states == ["ready"] * 2

    _until(is_replaced)
    assert victim not in server.containers(client)
    answered = len(statuses)
    _until(lambda: len(statuses) > answered + 20)
    ends.set()
    for thread in threads:
        thread.join(WAIT_S)
    assert set(statuses) <= {200, 503, 504}
    assert statuses.count(200) > 40
    (death,) = server.admin("GET", "replicas")["deaths"]
    assert (death["pool"], death["reason"]) == ("onnx", "killed")
    assert server.links()[0] == 2


def test_limits_change_on_the_same_containers(client, server):
    """As `docker update` does it."""
    before = server.containers(client)
    server.admin("PATCH", "settings", {"settings": {"replica.cpu": 0.75}})
    after = server.containers(client)
    assert after.keys() == before.keys()
    for container in after.values():
        host = container.attrs["HostConfig"]
        assert host["CpuQuota"] / host["CpuPeriod"] == 0.75
    assert server.predict("m0") == 200
    server.admin("PATCH", "settings", {"settings": {"clockwork.memory_mb": 64}})
    assert not server.containers(client).keys() & before.keys()  # another budget, other replicas
    assert server.predict("m0") == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_ends_leaves_nothing(client, number):
    """No container, no folder, and no link to a model's file, however it ends."""
    with _running() as server:
        assert server.links()[0] == 2
        assert len(server.containers(client)) == 2
        server.process.send_signal(number)
        server.process.wait(WAIT_S)
        _until(lambda: not server.containers(client))
        _until(lambda: not server.runtime.exists())
        assert server.links() == [1, 1, 1]
