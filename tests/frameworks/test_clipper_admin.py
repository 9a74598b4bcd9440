"""Clipper's queries and management through the released `clipper_admin`, and `requests`, which it brings.

Its Docker and Kubernetes managers start Clipper's own containers; here its connection is given the
manager of this package, as it is given one of the user's own.
"""

import sys
import warnings

import pytest

from serving.clipper_admin import ProcessContainerManager

with warnings.catch_warnings():  # it compares a string by identity
    warnings.simplefilter("ignore", SyntaxWarning)
    clipper_admin = pytest.importorskip(
        "clipper_admin", reason="clipper_admin is installed by make test-frameworks"
    )
import requests

pytestmark = pytest.mark.frameworks
TIMEOUT_S = 30
PORTS = ("--port", "0", "--admin-port", "0")
COMMAND = (sys.executable, "-m", "serving", "--allow-empty", *PORTS)
PATIENT_US = 30_000_000


@pytest.fixture(scope="module", name="connection")
def _connection(tmp_path_factory):
    """A connection of the released client to a server that runs."""
    manager = ProcessContainerManager(
        clipper_query_port=0,
        clipper_management_port=0,
        folder=tmp_path_factory.mktemp("clipper"),
        command=[*COMMAND, "--no-admin-token"],  # the released client brings no token
    )
    manager.start_clipper(cache_size=0)
    made = clipper_admin.ClipperConnection(manager)
    made.connect()
    yield made
    made.stop_all()


def ask(connection, application, body):
    """The answer to a query, as Clipper's guides ask one."""
    address = connection.get_query_addr()
    answer = requests.post(f"http://{address}/{application}/predict", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_from_an_application_to_its_answers_and_back(connection):
    """Registered, deployed, linked, asked alone and in a batch, scaled, and taken apart again."""
    connection.register_application("copies", "bytes", "none", PATIENT_US)
    assert connection.get_all_apps() == ["copies"]
    assert connection.get_app_info("copies")["latency_slo_micros"] == PATIENT_US
    connection.deploy_model("copy", 1, "bytes", "echo")
    connection.link_model_to_app("copies", "copy")
    assert connection.get_linked_models("copies") == ["copy"]
    answer = ask(connection, "copies", {"input": "NDI="})
    assert (answer["default"], answer["output"]) == (False, [52, 50])
    several = ask(connection, "copies", {"input_batch": ["NDI=", "Nw=="]})["batch_predictions"]
    assert [one["output"] for one in several] == [[52, 50], [55]]
    assert connection.get_num_replicas("copy") == 1
    connection.set_num_replicas("copy", 2)
    assert connection.get_num_replicas("copy") == 2
    assert len(connection.get_all_model_replicas()) == 2
    counters = connection.inspect_instance()["counters"]
    assert {"app:copies:num_predictions": {"count": "3"}} in counters
    connection.unlink_model_from_app("copies", "copy")
    assert ask(connection, "copies", {"input": "NDI="})["default"] is True
    connection.delete_application("copies")
    assert connection.get_all_apps() == []


def test_versions_of_a_model(connection):
    """The newest answers, until an older one is made current."""
    for version in ("1", "2"):
        connection.deploy_model("twice", version, "bytes", "echo")
    assert connection.get_current_model_version("twice") == "2"
    connection.set_model_version("twice", "1")
    assert connection.get_current_model_version("twice") == "1"
    assert connection.get_model_info("twice", "2")["container_name"] == "echo"
    connection.stop_inactive_model_versions(["twice"])
    assert connection.get_num_replicas("twice", "1") == 1
    connection.stop_versioned_models({"twice": ["1"]})
    assert connection.get_num_replicas("twice", "1") == 0


def test_what_is_refused_has_clippers_words(connection):
    """The client's own exception, with the server's message."""
    connection.register_application("once", "ints", "0", PATIENT_US)
    with pytest.raises(clipper_admin.ClipperException, match="once"):
        connection.register_application("once", "ints", "0", PATIENT_US)
    with pytest.raises(clipper_admin.ClipperException, match="missing"):
        connection.link_model_to_app("once", "missing")
