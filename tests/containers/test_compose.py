"""A study exported to Docker Compose: the file is taken, the service has its limits, and is confirmed."""

import http.client
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import docker
import pytest
import yaml

from serving.system.cgroups import manager
from tests.fakes.docker_engine import IS_NEEDED, needs_docker
from tuner.cli.commands.confirm import EXIT_CODES

ROOT = pathlib.Path(__file__).parents[2]
WAIT_S = 60.0
STUDY = "exported"


def _compose():
    """The words of the command: a plugin of the client, or the program of before."""
    if shutil.which("docker"):
        done = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        if not done.returncode:
            return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


COMPOSE = _compose()
pytestmark = [
    needs_docker,
    pytest.mark.skipif(
        COMPOSE is None and not IS_NEEDED,
        reason="no docker compose; on Debian: apt-get install docker-compose",
    ),
]


def _run(*words):
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(name="file", scope="module")
def _file(tmp_path_factory):
    """The compose file of a real study of two launches in its limits; its port on this machine is a free one."""
    folder = tmp_path_factory.mktemp("compose")
    for path in (folder, *list(folder.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    tune = (sys.executable, "-m", "tuner.cli.main")
    load = ("--concurrency", "2", "--seconds", "0.4", "--warmup", "0.1")
    budget = ("--trials", "2", "--pairs", "2", "--study", STUDY, "--runs-dir", str(folder))
    whole = ("--for", "compose") if manager.probe().kind else ()
    _run(*tune, "--model", "resnet", *load, *budget, *whole)
    out = folder / "out"
    _run(*tune, "export", STUDY, "--runs-dir", str(folder), "--to", "compose", "--out", str(out))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    file = out / "compose.yaml"
    text = file.read_text()
    assert "127.0.0.1:8000:8000" in text
    text = text.replace("127.0.0.1:8000:8000", f"127.0.0.1:{port}:8000")
    file.write_text(text.replace("127.0.0.1:8001:8001", "127.0.0.1::8001"))
    return file, port


def test_the_file_is_taken_as_it_is(file):
    """`docker compose config` reads it, with the limits and the settings."""
    path, _ = file
    read = yaml.safe_load(_run(*COMPOSE, "--file", str(path), "config"))
    (service,) = read["services"].values()
    (given,) = yaml.safe_load(path.read_text())["services"].values()
    assert float(service["cpus"]) == given["cpus"]
    assert service["read_only"] is True


def test_the_service_answers_within_its_limits_and_is_confirmed(file):
    """Started from the file it is ready, has the limits of the file, and its study gets a verdict on it."""
    path, port = file
    project = (*COMPOSE, "--file", str(path), "--project-name", f"luthier-test-{port}")
    client = docker.from_env()
    try:
        _run(*project, "up", "--detach")
        _until_ready(port)
        assert _answer(port)["model_name"] == "resnet"
        (container,) = client.containers.list(
            filters={"label": f"com.docker.compose.project=luthier-test-{port}"}
        )
        host = container.attrs["HostConfig"]
        (given,) = yaml.safe_load(path.read_text())["services"].values()
        assert host["NanoCpus"] == round(given["cpus"] * 1e9)
        assert host["Memory"] == host["MemorySwap"] == int(given["mem_limit"][:-1]) << 20
        assert host["ReadonlyRootfs"] is True
        assert host["CapDrop"] == ["ALL"]
        assert container.attrs["Config"]["User"] == "65532:65532"
        assert '"limits": "of the whole server"' in container.logs().decode()
        found = _confirmed(path.parents[1], f"http://127.0.0.1:{port}")
        assert found["ratio"] > 0
        assert "replica.count" in found["checked"][1]
        assert found["unchecked"][-1] == "the limits of its container"
    finally:
        _run(*project, "down", "--timeout", "5")
        client.close()


def _confirmed(runs, url):
    """The verdict on the running export; any, as the machine may be busy."""
    tune = (sys.executable, "-m", "tuner.cli.main", "confirm", STUDY, "--runs-dir", str(runs))
    done = subprocess.run(
        [*tune, "--url", url, "--repeats", "2", "--json"],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode in EXIT_CODES.values(), done.stderr
    return json.loads(done.stdout)["confirmation"]


def _until_ready(port):
    until_s = time.monotonic() + WAIT_S
    while True:
        try:
            if _ask(port, "GET", "/v2/health/ready")[0] == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < until_s, "the service does not become ready"
        time.sleep(0.1)


def _answer(port):
    shape = [1, 3, 32, 32]
    (spec,) = json.loads(_ask(port, "GET", "/v2/models/resnet")[1])["inputs"]
    tensor = {"name": spec["name"], "datatype": spec["datatype"], "shape": shape}
    body = json.dumps({"inputs": [{**tensor, "data": [0] * 3072}]})
    status, said = _ask(port, "POST", "/v2/models/resnet/infer", body)
    assert status == 200, said
    return json.loads(said)


def _ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()
