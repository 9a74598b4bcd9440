"""The frameworks, a gateway's half of the wire to a host, and a server for clients of its protocols.

Where a framework or a client is not installed, its tests are skipped.
"""

import importlib
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import threading
import urllib.request
import warnings
from typing import NamedTuple

import pytest

from serving import wire
from serving.replica import main_loop
from serving.values import Tensor
from tests.fakes.admin import token_fields
from tests.serving.conftest import Talk

SLOW, SLOW_S = [[-3.0, 0.0]], 0.3
"""What makes the served model `scaled` take so long."""
SERVED = pathlib.Path(__file__).parent / "served"
"""Models in Python."""

THREADS = 2
"""Of every load by TensorFlow in this process: it has one number, set before anything is computed."""


def import_torch():
    """PyTorch, or a skipped test."""
    return pytest.importorskip("torch", reason="PyTorch is installed by make test-frameworks")


def import_tensorflow():
    """TensorFlow with its threads set, or a skipped test."""
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is installed by make test-frameworks")
    tf.config.threading.set_intra_op_parallelism_threads(THREADS)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    return tf


def import_mlflow():
    """MLflow with its flavors, and what makes its signatures, or a skipped test."""
    with warnings.catch_warnings():  # it warns of its own type hints
        warnings.simplefilter("ignore")
        mlflow = pytest.importorskip("mlflow", reason="MLflow is installed by make test-frameworks")
        for flavor in ("catboost", "lightgbm", "pyfunc", "sklearn", "xgboost"):
            importlib.import_module(f"mlflow.{flavor}")
        return mlflow, importlib.import_module("mlflow.models").infer_signature


def frame(*tensors):
    """A request in the tensors encoding, from (name, datatype, array)."""
    values = [
        Tensor(name, datatype, array.shape, array.tobytes()) for name, datatype, array in tensors
    ]
    data = wire.encode_descriptor(values) + b"".join(value.data for value in values)
    return data, wire.Encoding.TENSORS, 0, 0


@pytest.fixture(name="talk")
def _talk():
    """A conversation with a real host, which greeted."""
    ours, theirs = socket.socketpair()

    def run():
        with theirs:
            main_loop.serve(theirs)

    thread = threading.Thread(target=run)
    thread.start()
    talk = Talk(ours)
    talk.hello()
    yield talk
    ours.close()
    thread.join(20)
    assert not thread.is_alive()


class Serving(NamedTuple):
    """A running server."""

    url: str
    """Of its query port."""
    grpc: str
    """Address of its gRPC port."""


@pytest.fixture(scope="session", name="serving")
def _serving(tmp_path_factory):
    """A server of three models; of `scaled`, which multiplies by its version, 2 is current, and 1 `canary`."""
    folder = tmp_path_factory.mktemp("models")
    older = folder.parent / "older" / "1" / "model.py"
    for model, target in (
        ("mixed", folder / "mixed" / "1" / "model.py"),
        ("scored", folder / "scored" / "1" / "model.py"),
        ("scaled", folder / "scaled" / "2" / "model.py"),
        ("scaled", older),
    ):
        target.parent.mkdir(parents=True)
        shutil.copy(SERVED / f"{model}.py", target)
    command = [sys.executable, "-m", "serving", "--model-repository", str(folder), "--port", "0"]
    command += ["--admin-port", "0", "--log-level", "error", "--set", "server.grpc_port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            facts = json.loads(server.stdout.readline())

            def manage(method, path, data):
                request = urllib.request.Request(
                    f"http://127.0.0.1:{facts['admin_port']}/admin/models{path}",
                    json.dumps(data).encode(),
                    token_fields(facts["admin_port"]),
                    method=method,
                )
                with urllib.request.urlopen(request, timeout=30) as answer:
                    answer.read()

            first = {"model": f"{older}:Model", "name": "scaled", "version": "1"}
            manage("POST", "", first | {"current": False})
            manage("PUT", "/scaled/labels/canary", {"version": "1"})
            yield Serving(f"http://127.0.0.1:{facts['port']}", f"127.0.0.1:{facts['grpc_port']}")
            server.terminate()
            assert server.wait(30) == 0
        finally:
            server.kill()
