"""What `tune export --to triton` writes, served by Triton itself: the binary of the wheel nvidia-pytriton.

The wheel has the python backend alone, so the model is of a kind that runs in it.
"""

import dataclasses
import http.client
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest

from serving.values import Signature
from serving.zoo import find
from tests.fakes import studies
from tuner import export
from tuner.values.configuration import Configuration

ROOT = pathlib.Path(__file__).parent.parent.parent
READY_S = 60.0
MODEL = '''
import numpy as np


class Doubled:
    """Doubles its rows and tells how many ran together."""

    inputs = [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
    outputs = [
        {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
        {"name": "together", "datatype": "INT64", "shape": [-1]},
    ]

    def predict_batch(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return {"y": inputs["x"] * 2, "together": np.full(len(inputs["x"]), len(inputs["x"]))}
'''
SIGNATURE = Signature.from_json(
    {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 3]},
            {"name": "together", "datatype": "INT64", "shape": [-1]},
        ],
    }
)
BEST = {
    "replica.count": 2,
    "replica.cpu": 0.5,
    "replica.memory_mb": 128,
    "replica.threads": 1,
    "batching.max_size": 8,
    "batching.timeout_us": 20_000,
}


def tritonserver(folder: pathlib.Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment of the server, with a backend that can write beside itself in `folder`."""
    found = importlib.util.find_spec("pytriton")
    if found is None or found.origin is None:
        pytest.skip("nvidia-pytriton, which ships tritonserver, is not installed here")
    site = pathlib.Path(found.origin).parent.parent
    server = site / "pytriton" / "tritonserver"
    # The stub that runs the model is built for one version of Python.
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = server / "python_backend_stubs" / python / "triton_python_backend_stub"
    shutil.copytree(server / "backends", folder / "backends")
    shutil.copy(stub, folder / "backends" / "python" / stub.name)
    libraries = (str(site / "nvidia_pytriton.libs"), f"{sys.base_prefix}/lib")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        # The stub finds its packages through the first python3 of the PATH.
        "PATH": os.pathsep.join((f"{sys.prefix}/bin", os.environ["PATH"])),
        "PYTHONPATH": str(ROOT),
    }
    return [
        str(server / "bin" / "tritonserver"),
        f"--backend-directory={folder}/backends",
    ], environment


def ask(port, method, path, body=None):
    """Status and answer, or None where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    except ConnectionError:
        return None
    finally:
        connection.close()


@pytest.fixture(scope="module", name="port")
def _port(tmp_path_factory):
    """The port of a Triton that serves the exported repository."""
    folder = tmp_path_factory.mktemp("triton")
    command, environment = tritonserver(folder)
    file = folder / "doubled.py"
    file.write_text(MODEL, encoding="utf-8")
    card = find(f"{file}:Doubled")
    study = dataclasses.replace(
        studies.study(trials=4),
        model=card.name,
        best=Configuration(BEST),
        settings={"target": {"model": f"{file}:Doubled"}},
        signature=SIGNATURE,
    )
    for name, content in export.export(study, "triton", card=card).items():
        path = folder / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command += [f"--model-repository={folder}/models", "--http-address=127.0.0.1"]
    command += [f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false"]
    log = folder / "triton.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, env=environment, stdout=output, stderr=output) as server,
    ):
        try:
            until_s = time.monotonic() + READY_S
            while (ask(port, "GET", "/v2/health/ready") or (0,))[0] != 200:
                if server.poll() is not None or time.monotonic() > until_s:
                    pytest.fail(f"Triton is not ready:\n{log.read_text(errors='replace')[-4000:]}")
                time.sleep(0.1)
            yield port
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def infer(port, *rows):
    """One request."""
    item = {"name": "x", "datatype": "FP32", "shape": [len(rows), 3], "data": rows}
    return ask(port, "POST", "/v2/models/doubled/infer", {"inputs": [item]})


def test_triton_has_the_exported_configuration(port):
    """Read back from the server: instances, batches, delay."""
    status, config = ask(port, "GET", "/v2/models/doubled/config")
    assert status == 200
    assert config["max_batch_size"] == BEST["batching.max_size"]
    delay_us = config["dynamic_batching"]["max_queue_delay_microseconds"]
    assert delay_us == BEST["batching.timeout_us"]
    (group,) = config["instance_group"]
    assert (group["count"], group["kind"]) == (BEST["replica.count"], "KIND_CPU")


def test_triton_answers_with_the_model(port):
    """Each output in its datatype, item by item."""
    status, answer = infer(port, [1, 2, 3], [4, 5, 6])
    assert status == 200
    outputs = {output["name"]: output for output in answer["outputs"]}
    assert outputs["y"]["data"] == [2, 4, 6, 8, 10, 12]
    assert outputs["together"] == {
        "name": "together",
        "datatype": "INT64",
        "shape": [2, 1],  # Triton has no [2] where 2 is the batch
        "data": [2, 2],
    }


def test_what_the_model_raises_is_an_error_of_its_request(port):
    """The server goes on."""
    status, answer = infer(port, [-1, 0, 0])
    assert status >= 400
    assert "ValueError: negative" in answer["error"]
    assert infer(port, [1, 1, 1])[0] == 200
