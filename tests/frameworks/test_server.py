"""A model of each framework through a whole server, over the Open Inference Protocol."""

import contextlib
import http.client
import json
import subprocess
import sys

import numpy as np
import pytest

from tests.frameworks.conftest import import_tensorflow, import_torch

pytestmark = pytest.mark.frameworks
WEIGHTS = np.arange(8, dtype=np.float32).reshape(4, 2)
X = np.arange(12, dtype=np.float32).reshape(3, 4)


def make_torch(torch, path):
    """An exported program."""

    class Linear(torch.nn.Module):
        def forward(self, x):
            return {"y": x @ torch.from_numpy(WEIGHTS)}

    free = {"x": {0: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Linear(), (torch.zeros(2, 4),), dynamic_shapes=free)
    torch.export.save(program, path)


def make_tensorflow(tf, path):
    """A SavedModel."""
    model = tf.Module()
    model.linear = tf.function(
        lambda x: {"y": x @ WEIGHTS}, input_signature=[tf.TensorSpec([None, 4], tf.float32, "x")]
    )
    tf.saved_model.save(model, path, signatures=model.linear)


KINDS = {
    "torch": (import_torch, make_torch, "linear.pt2"),
    "tensorflow": (import_tensorflow, make_tensorflow, "linear"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_is_served_by_replicas_with_threads(tmp_path, kind):
    """Two replicas, forked from one template, answer a request that is split over them."""
    load, make, file = KINDS[kind]
    path = tmp_path / file
    make(load(), path)
    command = [sys.executable, "-m", "serving", "--model", str(path), "--port", "0"]
    command += ["--admin-port", "0", "--log-level", "warning", "--set", "replica.count=2"]
    command += ["--set", "replica.threads=2", "--set", "batching.max_size=1"]
    command += ["--set", "replica.ready_timeout_s=90"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            line = server.stdout.readline()
            assert line, server.stderr.read()
            item = {"name": "x", "datatype": "FP32", "shape": [3, 4], "data": X.tolist()}
            port = json.loads(line)["port"]
            with contextlib.closing(
                http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            ) as connection:
                connection.request(
                    "POST", "/v2/models/linear/infer", json.dumps({"inputs": [item]})
                )
                response = connection.getresponse()
                answer = json.loads(response.read())
            assert response.status == 200, answer
            (output,) = answer["outputs"]
            assert (output["name"], output["datatype"], output["shape"]) == ("y", "FP32", [3, 2])
            np.testing.assert_allclose(np.reshape(output["data"], (3, 2)), X @ WEIGHTS)
            server.terminate()
            assert server.wait(30) == 0
            assert "replicas start slowly" not in server.stderr.read()
        finally:
            server.kill()
