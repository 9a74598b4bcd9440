"""Clipper's Python API against the real server: processes, protocols, selection and all."""

import json
import urllib.request

import pytest

from serving.clipper_admin import (
    ClipperConnection,
    ClipperException,
    ProcessContainerManager,
    container_manager,
    deployers,
)
from tests.serving.clipper_admin import functions


def post(address, path, body):
    """The JSON answer to a POST."""
    request = urllib.request.Request(
        f"http://{address}/{path}", data=json.dumps(body).encode(), method="POST"
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


@pytest.fixture(name="connection")
def _connection(tmp_path):
    manager = ProcessContainerManager(
        clipper_query_port=0, clipper_management_port=0, folder=tmp_path
    )
    made = ClipperConnection(manager)
    made.start_clipper()
    yield made
    made.stop_all()


def test_a_function_becomes_an_endpoint(connection):
    """Registered, deployed, linked, asked by query and by batch, measured, rolled back."""
    deployers.python.create_endpoint(connection, "sums", "doubles", functions.sums)
    address = connection.get_query_addr()
    answer = post(address, "sums/predict", {"input": [1.5, 2]})
    assert (answer["output"], answer["default"]) == (103.5, False)
    answers = post(address, "sums/predict", {"input_batch": [[1.0], [2.0]]})
    assert len(answers["batch_predictions"]) == 2
    assert connection.get_all_apps() == ["sums"]
    assert connection.get_num_replicas("sums") == 1
    assert {"app:sums:num_predictions": {"count": "3"}} in connection.inspect_instance()["counters"]
    connection.set_num_replicas("sums", 2)
    assert connection.get_num_replicas("sums") == 2
    assert post(address, "sums/predict", {"input": [1.0]})["default"] is False
    other = ClipperConnection(
        ProcessContainerManager(
            clipper_query_port=int(address.rpartition(":")[2]),
            clipper_management_port=int(connection.cm.get_admin_addr().rpartition(":")[2]),
        )
    )
    other.connect()
    with pytest.raises(ClipperException, match="graceful is 'maybe', expected true or false"):
        container_manager.post(connection.cm.get_admin_addr(), "/admin/shutdown?graceful=maybe", {})
    other.stop_all()
    with pytest.raises(ClipperException, match="No response from the server at"):
        connection.get_all_apps()
