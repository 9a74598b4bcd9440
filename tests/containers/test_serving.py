"""The server and the tuner with replicas in containers: limits that bite, and what is said where they cannot be had."""

import json
import os
import pathlib
import subprocess
import sys
import threading
import time
import urllib.request

import docker
import numpy as np
import pytest

import serving
from serving import zoo
from serving.spawners.docker.containers import OWNER_LABEL
from tests.fakes.admin import token_fields
from tests.fakes.docker_engine import needs_docker

ROOT = pathlib.Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
HUNGRY = """
import numpy as np


class Model:
    \"\"\"Needs 100 MiB.\"\"\"

    inputs = outputs = [{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}]

    def __init__(self):
        self.weights = np.ones(100 << 20, np.uint8)

    def predict_batch(self, inputs):
        return {"x": inputs["x"]}
"""


def _run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        cwd=ROOT,
        env={**ENVIRONMENT, **environment},
    )


@pytest.mark.parametrize(
    ("environment", "text"),
    [
        (
            {"DOCKER_HOST": "unix:///nowhere/docker.sock"},
            "no Docker engine at /nowhere/docker.sock",
        ),
        ({"DOCKER_HOST": "tcp://127.0.0.1:2375"}, "expected unix://PATH"),
    ],
    ids=["no engine", "another machine's"],
)
def test_without_an_engine_it_says_what_is_missing(environment, text):
    """One line, and the exit code of what could not be done."""
    done = _run(
        "serving",
        "--model",
        "echo",
        "--port",
        "0",
        "--set",
        "replica.spawner=docker",
        **environment,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert text in line


@needs_docker
@pytest.mark.parametrize("role", ["server", "replica"])
def test_the_images_hold_the_compiled_form(role):
    """Where the base has the Python for which `make images` compiled; their own Python loads the libraries."""
    code = "import serving, sys; print(serving.form(), *sys.version_info[:2])"
    form, major, minor = (
        docker.from_env()
        .containers.run(
            f"luthier-{role}:{serving.__version__}",
            ["-c", code],
            entrypoint="python3",
            network_mode="none",
            remove=True,
        )
        .decode()
        .split()
    )
    if (int(major), int(minor)) != sys.version_info[:2]:
        pytest.skip(f"the base has Python {major}.{minor}: its images hold the form in pure Python")
    assert form == "compiled"


@needs_docker
def test_without_the_image_it_says_how_to_build_it():
    """The image is named, and the command."""
    words = ("--set", "replica.spawner=docker", "--set", "replica.image=nobody/has:this")
    done = _run("serving", "--model", "echo", "--port", "0", *words)
    assert done.returncode == 1
    assert "no image nobody/has:this; `make images` builds it" in done.stderr


@pytest.fixture(name="served", scope="module")
def _served():
    """resnet on one container of one core, and its ports."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "serving", "--model", "resnet", "--port", "0"),
            *("--set", "replica.spawner=docker", "--set", "replica.cpu=1.0"),
        ],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    with process:
        yield json.loads(process.stdout.readline())
        process.terminate()


def _settings(served, **values):
    request = urllib.request.Request(
        f"http://127.0.0.1:{served['admin_port']}/admin/settings",
        json.dumps({"settings": values}).encode(),
        {"Content-Type": "application/json", **token_fields(served["admin_port"])},
        method="PATCH",
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        assert response.status == 200


def _request(served):
    """Eight images for resnet."""
    url = f"http://127.0.0.1:{served['port']}/v2/models/resnet"
    with urllib.request.urlopen(url, timeout=20) as response:
        (spec,) = json.loads(response.read())["inputs"]
    with np.load(zoo.find("resnet").sample) as sample:
        images = sample[spec["name"]][:8]
    datatype = spec["datatype"]
    tensor = {"name": spec["name"], "datatype": datatype, "shape": list(images.shape)}
    tensor["parameters"] = {"binary_data_size": images.nbytes}
    head = json.dumps({"inputs": [tensor]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    return urllib.request.Request(f"{url}/infer", head + images.tobytes(), headers)


def _used_s(served):
    """CPU time of the one replica."""
    url = f"http://127.0.0.1:{served['admin_port']}/admin/replicas"
    request = urllib.request.Request(url, headers=token_fields(served["admin_port"]))
    with urllib.request.urlopen(request, timeout=20) as response:
        (replica,) = json.loads(response.read())["replicas"]
    return replica["cpu_s"]


def _rate(served, seconds):
    """Requests per second of four clients, and the cores that the replica used."""
    request = _request(served)
    counts = [0] * 4
    before_s, began_s = _used_s(served), time.monotonic()

    def ask(client):
        while time.monotonic() - began_s < seconds:
            with urllib.request.urlopen(request, timeout=20) as response:
                response.read()
            counts[client] += 1

    clients = [threading.Thread(target=ask, args=(n,)) for n in range(len(counts))]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    took_s = time.monotonic() - began_s
    return sum(counts) / took_s, (_used_s(served) - before_s) / took_s


@needs_docker
def test_half_the_quota_is_half_the_processor(served):
    """Limits change live on one and the same container, and bite.

    What a core answers in a second varies with the machine's neighbours; how much of a core it is does not.
    """
    client = docker.from_env()
    labelled = {"label": OWNER_LABEL}
    found = {container.id for container in client.containers.list(filters=labelled)}
    for _ in range(4):
        rates, cores = {}, {}
        for cpu in (1.0, 0.5):
            _settings(served, **{"replica.cpu": cpu})
            _rate(served, 0.3)
            rates[cpu], cores[cpu] = _rate(served, 1.5)
        assert cores[0.5] < 0.55
        if cores[1.0] > 0.9:  # else others used the machine, and a whole core was not to be had
            break
    else:
        pytest.skip(f"others use this machine: of one core the replica got {cores[1.0]:.2f}")
    assert {container.id for container in client.containers.list(filters=labelled)} == found
    client.close()
    assert 0.4 < cores[0.5] / cores[1.0] < 0.6, cores
    assert rates[0.5] < 0.85 * rates[1.0], rates


@needs_docker
def test_a_model_that_does_not_fit_is_refused_for_its_memory(tmp_path):
    """64 MiB for a model of 100: the kernel kills it, the engine reports it, the server says so."""
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    (tmp_path / "hungry.py").write_text(HUNGRY)
    words = ("--set", "replica.spawner=docker", "--set", "replica.memory_mb=64")
    done = _run("serving", "--model", f"{tmp_path}/hungry.py:Model", "--port", "0", *words)
    assert done.returncode == 1
    assert "killed it for memory (limit 64 MiB); raise replica.memory_mb" in done.stderr


@needs_docker
@pytest.mark.skipif(
    os.geteuid() != 0, reason="containers of another user than root are of that user"
)
def test_a_file_that_its_user_may_not_read_is_said_to_be_one(tmp_path):
    """ONNX Runtime tells a number: the right that is lacking is named."""
    for path in (tmp_path, *list(tmp_path.parents)[:3]):
        path.chmod(path.stat().st_mode | 0o055)
    file = tmp_path / "secret.onnx"
    file.write_bytes(b"x")
    file.chmod(0o600)
    done = _run("serving", "--model", str(file), "--port", "0", "--set", "replica.spawner=docker")
    assert done.returncode == 1
    assert "user 65532 of the container needs the right to read it" in done.stderr
