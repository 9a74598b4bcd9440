"""What `tune export --to ray` writes: held against Ray's own schema, and run by Ray Serve itself."""

import concurrent.futures
import dataclasses
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import pytest
import yaml

from serving import models
from serving.zoo import find
from tests.fakes import studies
from tuner import export
from tuner.values.configuration import Configuration

ROOT = pathlib.Path(__file__).parent.parent.parent
READY_S = 90.0
schema = pytest.importorskip(
    "ray.serve.schema", reason="ray[serve] is installed by make test-engines"
)


@pytest.fixture(scope="module", name="exported")
def _exported(tmp_path_factory):
    """The folder of the export, and its configuration."""
    folder = tmp_path_factory.mktemp("ray")
    study = studies.study(trials=12)
    values = {"replica.count": 1, "replica.cpu": 0.5, "batching.timeout_us": 20_000}
    values["model.variant"] = "resnet8"
    study = dataclasses.replace(study, best=Configuration({**study.best, **values}))
    for name, text in export.export(study, "ray", card=find("resnet")).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder, yaml.safe_load((folder / "ray.yaml").read_text(encoding="utf-8"))


def test_ray_takes_the_configuration(exported):
    """Every field is one of the schema, with a value of its kind."""
    _, data = exported
    read = schema.ServeDeploySchema.model_validate(data)
    (application,) = read.applications
    (deployment,) = application.deployments
    assert application.import_path == "luthier_app:app"
    assert deployment.num_replicas == 1
    assert deployment.ray_actor_options.num_cpus == 0.5
    told = json.loads(read.model_dump_json(exclude_unset=True))
    assert told == data, "nothing was dropped or changed"


@pytest.fixture(scope="module", name="port")
def _port(exported):
    """The port of Ray Serve, which runs the export; everything of Ray's is in a folder that goes."""
    folder, data = exported
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = data["http_options"]["port"] = free.getsockname()[1]
    (folder / "here.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    # Ray's sockets lie below its folder, and their paths may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as home:
        environment = {
            **os.environ,
            "HOME": home,
            "PYTHONPATH": str(ROOT),
            "RAY_AUTH_MODE": "disabled",
            "RAY_TMPDIR": home,
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        log = folder / "ray.log"
        command = [f"{sys.prefix}/bin/serve", "run", "here.yaml"]
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=output
            ) as server,
        ):
            try:
                until_s = time.monotonic() + READY_S
                while ask(port, "GET", "/v2/health/ready")[0] != 200:
                    if server.poll() is not None or time.monotonic() > until_s:
                        pytest.fail(f"not ready:\n{log.read_text(errors='replace')[-4000:]}")
                    time.sleep(0.2)
                yield port
            finally:
                server.send_signal(signal.SIGINT)  # Ray ends its processes in order
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    server.kill()


def ask(port, method, path, body=None):
    """Status and text; 0 where nobody listens."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except ConnectionError:
        return 0, ""
    finally:
        connection.close()


@pytest.mark.slow
def test_ray_serves_the_model(port):
    """Clients at the same time get the variant's scores of their own images; what is wrong is told."""
    with np.load(ROOT / "serving" / "zoo" / "samples.npz") as samples:
        images = samples["image"][:4]
    alone = models.load("onnx", find("resnet").weights("resnet8"), threads=1)
    expected = alone.predict_batch({"image": images})["scores"]

    def infer(index):
        item = {"name": "image", "datatype": "UINT8", "shape": [1, 3, 32, 32]}
        item["data"] = images[index].ravel().tolist()
        body = json.dumps({"inputs": [item]})
        return ask(port, "POST", "/v2/models/resnet/infer", body)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for index, (status, text) in enumerate(pool.map(infer, range(4))):
            assert status == 200, text
            (output,) = json.loads(text)["outputs"]
            assert output["shape"] == [1, 10]
            assert np.allclose(output["data"], expected[index], atol=1e-4)
    status, text = ask(port, "POST", "/v2/models/resnet/infer", "{}")
    assert (status, "no array `inputs`" in text) == (400, True)
    assert ask(port, "GET", "/v2/models/other")[0] == 404
