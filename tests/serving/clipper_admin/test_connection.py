"""Clipper's Python API against a server with a hub in memory, over HTTP."""

import json
import sys
import urllib.request

import pytest

from serving import clipper_admin
from serving.clipper_admin import (
    ClipperConnection,
    ClipperException,
    ProcessContainerManager,
    UnconnectedException,
    deployers,
)
from tests.fakes.clipper_hub import FakeHub
from tests.fakes.clipper_server import in_thread
from tests.serving.clipper_admin import functions

pytestmark = pytest.mark.processes


@pytest.fixture
def connection(tmp_path):
    """A connection to a server that runs in a thread."""
    with in_thread(FakeHub()) as (query, management):
        manager = ProcessContainerManager(
            clipper_query_port=query, clipper_management_port=management, folder=tmp_path
        )
        made = ClipperConnection(manager)
        made.connect()
        yield made


def ask(connection, application, body):
    """The answer to a query."""
    request = urllib.request.Request(
        f"http://{connection.get_query_addr()}/{application}/predict",
        data=json.dumps(body).encode(),
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=10) as response:
        return json.loads(response.read())


def test_an_endpoint_answers_queries(connection):
    """From a function to an answer: registered, deployed, linked, asked, measured."""
    deployers.python.create_endpoint(connection, "sums", "doubles", functions.sums)
    assert ask(connection, "sums", {"input": [1.5, 2]})["output"] == 103.5
    assert connection.get_all_apps() == ["sums"]
    assert connection.get_linked_models("sums") == ["sums"]
    assert connection.get_current_model_version("sums") == "1"
    app = connection.get_app_info("sums")
    assert app["default_output"] == "None"
    assert app["latency_slo_micros"] == 3_000_000
    report = connection.inspect_instance()
    assert {"app:sums:num_predictions": {"count": "1"}} in report["counters"]


def test_versions_roll_back_and_forward(connection):
    """The newest version answers, until another one is set; a query may be pinned to one."""
    for version in (1, 2):

        def predict(inputs, said=str(version)):
            return [said for _ in inputs]

        deployers.python.deploy_python_closure(connection, "m", version, "strings", predict)
    connection.register_application("a", "strings", "none", 1_000_000)
    connection.link_model_to_app("a", "m")
    assert ask(connection, "a", {"input": ""})["output"] == 2
    connection.set_model_version("m", 1, num_replicas=3)
    assert ask(connection, "a", {"input": ""})["output"] == 1
    assert ask(connection, "a", {"input": "", "version": "2"})["output"] == 2
    assert connection.get_num_replicas("m") == 3
    assert connection.get_num_replicas("m", 2) == 1
    connection.stop_inactive_model_versions(["m"])
    assert connection.get_num_replicas("m", 2) == 0
    assert sorted(connection.get_all_models()) == ["m:1", "m:2"]
    connection.unlink_model_from_app("a", "m")
    assert ask(connection, "a", {"input": ""})["default"] is True


def test_replicas(connection):
    """Replicas are listed, counted, and their number set."""
    deployers.python.deploy_python_closure(
        connection, "m", "v1", "doubles", functions.sums, num_replicas=2
    )
    assert connection.get_all_model_replicas() == ["m:v1:0", "m:v1:1"]
    connection.set_num_replicas("m", 3)
    assert connection.get_num_replicas("m", "v1") == 3
    info = connection.get_model_replica_info("m", "v1", 2)
    assert info["model_replica_id"] == 2
    assert info["input_type"] == "doubles"
    assert connection.get_model_replica_info("m", "v1", 7) is None
    assert len(connection.get_all_model_replicas(verbose=True)) == 3
    model = connection.get_model_info("m", "v1")
    assert model["is_current_version"] is True
    assert model["container_name"].endswith("model.py:predict")
    connection.stop_all_model_containers()
    assert connection.get_all_model_replicas() == []


def test_stopping_models(connection):
    """Models are stopped by name, or by name and version; what was stopped before is no error."""
    for name in ("a", "b", "c"):
        deployers.python.deploy_python_closure(connection, name, 1, "doubles", functions.sums)
    connection.stop_models(["a"])
    connection.stop_versioned_models({"b": [1]})
    connection.stop_versioned_models({"b": ["1"]})
    assert connection.get_all_model_replicas() == ["c:1:0"]
    connection.stop_all()
    with pytest.raises(ClipperException, match="No response from the server at"):
        connection.stop_all(graceful=False)


def test_early_names_of_the_paper(connection):
    """create_application, replicate_model and inspect_instance do what their successors do."""
    connection.create_application("a", "doubles", "0", 100_000)
    deployers.python.deploy_python_closure(connection, "m", 1, "doubles", functions.sums)
    connection.replicate_model("m", 2)
    assert connection.get_num_replicas("m") == 2
    assert "counters" in connection.inspect_instance()
    connection.delete_application("a")
    assert connection.get_all_apps(verbose=True) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.register_application("a", "x", "0", 1), "x is not a valid input string"),
        (lambda c: c.unregister_application("none"), "Application 'none' does not exist"),
        (lambda c: c.link_model_to_app("none", "m"), "No app with name 'none' exists."),
        (lambda c: c.get_linked_models("none"), "No application with name 'none' exists."),
        (lambda c: c.get_current_model_version("none"), "No versions of model none registered"),
        (lambda c: c.set_model_version("none", 1), "nonexistent model 'none'"),
        (lambda c: c.deploy_model("Upper", 1, "doubles", "echo"), "Invalid value: Upper"),
        (lambda c: c.deploy_model("a", "1.0", "doubles", "echo"), "Invalid value: 1.0"),
        (lambda c: c.deploy_model("a\n", "1", "doubles", "echo"), "Invalid value: a\n"),
        (lambda c: c.deploy_model("a", 1, "doubles", "no-such-model"), "no-such-model"),
        (lambda c: c.deploy_model("a", 1, "doubles", "echo", num_replicas=-1), "num_replicas is -1"),
        (lambda c: c.build_model("a", 1, "nowhere.onnx", "base"), "There is no file or folder"),
        (lambda c: c.build_model("a", 1, __file__, "base", pkgs_to_install=["no-such-package==1"]),
         "no-such-package==1 is not installed"),
        (lambda c: deployers.python.deploy_python_closure(c, "a", 1, "x", functions.sums),
         "x is not a valid input string"),
    ],
)  # fmt: skip
def test_errors(connection, call, message):
    """What the server refuses, and what is wrong before it is asked, is a ClipperException."""
    with pytest.raises(ClipperException) as caught:
        call(connection)
    assert message in caught.value.msg


def test_models_without_containers(connection):
    """A model may be registered only; its replicas are not ours to number."""
    connection.register_model("m", 1, "doubles")
    with pytest.raises(ClipperException, match="containerless model m:1"):
        connection.set_num_replicas("m", 2)
    with pytest.raises(ClipperException, match="non-registered model m:9"):
        connection.set_num_replicas("m", 2, version=9)
    assert connection.get_model_info("m", 9) is None
    assert connection.get_app_info("none") is None


def test_a_version_that_cannot_be_registered_is_stopped_again(connection):
    """No replicas stay behind of a model that nothing would ever ask."""
    with pytest.raises(ClipperException, match="Contains one of"):
        connection.deploy_model("m", 1, "doubles", "echo", labels=["a:b"])
    assert connection.cm.get_num_replicas("m", "1") == 0
    connection.register_model("m", 1, "doubles")
    with pytest.raises(ClipperException, match="already exists"):
        connection.deploy_model("m", 1, "doubles", "echo")


def test_models_of_files(connection, tmp_path):
    """The image of a model in a file is its path."""
    file = tmp_path / "own.py"
    file.write_text("def f(items):\n    return items\n")
    image = connection.build_model("m", 1, f"{file}:f", "base")
    assert image == f"{file}:f"
    connection.build_and_deploy_model("m", 1, "doubles", f"{file}:f", "base", num_replicas=2)
    assert connection.get_num_replicas("m") == 2
    assert connection.build_model("m", 2, str(tmp_path), "base") == str(tmp_path)


def test_calls_before_a_connection():
    """Every call that needs a server says so before there is one."""
    made = ClipperConnection(ProcessContainerManager())
    for call in (
        lambda: made.register_application("a", "doubles", "0", 1),
        made.get_all_models,
        made.get_query_addr,
        made.get_metric_addr,
        made.inspect_instance,
        made.get_clipper_logs,
        lambda: made.set_num_replicas("m"),
        lambda: made.stop_versioned_models({}),
        lambda: made.deploy_model("m", 1, "doubles", "echo"),
        made.stop_all_model_containers,
        lambda: deployers.python.deploy_python_closure(made, "m", 1, "doubles", functions.sums),
    ):
        with pytest.raises(UnconnectedException, match="No connection to Clipper cluster"):
            call()


def test_predict_functions_are_tested_as_they_are_deployed():
    """A function is written out and loaded before it is tried; wrong inputs are told."""
    made = ClipperConnection(ProcessContainerManager())
    test = made.test_predict_function
    assert test({"input": [1.0, 2.0]}, functions.sums, "doubles") == ["103.0"]
    assert test({"input_batch": [[1], [2]]}, functions.sums, "ints") == ["101.0", "102.0"]
    assert test({"input": "ab"}, lambda texts: [text.upper() for text in texts], "s") == ["AB"]
    assert test({"input": ["a"]}, functions.sums, "doubles") == "Invalid input type"
    assert test({"input": "a"}, functions.sums, "integers") == "Invalid input type"
    assert test({"input": [1.0]}, functions.sums, "strings") == "Invalid input type"
    assert test({"else": [1.0]}, functions.sums, "doubles") == "Invalid input type or JSON key"
    assert test({"input": [1.0]}, functions.sums, "x") == "Invalid input type or JSON key"
    held = object()
    with pytest.raises(ClipperException, match="without pickle"):
        test({"input": [1.0]}, lambda inputs: [str(held)], "doubles")


# The manager


def test_a_server_is_started_and_stopped(tmp_path, monkeypatch):
    """The manager starts a server, finds where it listens, and ends it."""
    command = [sys.executable, "-m", "tests.fakes.clipper_server"]
    manager = ProcessContainerManager(command=command, folder=tmp_path / "cluster")
    made = ClipperConnection(manager)
    made.start_clipper()
    try:
        made.register_application("a", "doubles", "5", 100_000)
        assert ask(made, "a", {"input": [1.0]})["output"] == 5
        with pytest.raises(ClipperException, match="is already running"):
            made.start_clipper()
        other = ClipperConnection(
            ProcessContainerManager(
                clipper_query_port=int(manager.get_query_addr().rpartition(":")[2]),
                clipper_management_port=int(manager.get_admin_addr().rpartition(":")[2]),
                folder=tmp_path / "other",
            )
        )
        other.connect()
        assert other.get_all_apps() == ["a"]
        assert other.get_clipper_logs(str(tmp_path / "other logs")) == []
        (log,) = made.get_clipper_logs(str(tmp_path / "logs"))
        assert log.endswith("default-cluster.log")
        assert made.get_metric_addr() == manager.get_admin_addr()
        other.stop_all()
        with pytest.raises(ClipperException, match="No response from the server at"):
            made.connect()
    finally:
        made.stop_all()
    with pytest.raises(ClipperException, match="No response from the server at"):
        made.get_all_apps()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("import sys; sys.exit('no model of that name')", "ended before it was ready: no model of"),
        ("print('hello')", "printed 'hello' instead of its ready line"),
        ("import time; time.sleep(60)", "was not ready after 0.3 s"),
    ],
)
def test_a_server_that_does_not_start(tmp_path, program, message):
    """Why a server did not start is told, with its last words; nothing is left running."""
    manager = ProcessContainerManager(
        command=[sys.executable, "-c", program], folder=tmp_path, start_timeout_s=0.3
    )
    if "sleep" not in program:
        manager._start_timeout_s = 20.0
    made = ClipperConnection(manager)
    with pytest.raises(ClipperException, match=message):
        made.start_clipper()
    assert not made.connected
    assert manager._process is None


def test_what_answers_must_be_a_management_port(tmp_path):
    """A port that is something else, or nothing, is not taken for a server."""
    with in_thread(FakeHub()) as (query, _):
        manager = ProcessContainerManager(clipper_management_port=query, folder=tmp_path)
        with pytest.raises(ClipperException, match="Received error status code: 404"):
            manager.connect()
    with pytest.raises(ClipperException, match="No response from"):
        manager.connect()


def test_the_command_of_a_server(tmp_path):
    """Without a command of its own the manager starts this project's server on its ports."""
    command = ProcessContainerManager(folder=tmp_path)._default_command(33_554_432)
    assert command[1:3] == ["-m", "serving"]
    assert "cache.capacity_mb=32" in command
    assert command[command.index("--port") + 1] == "1337"
    assert command[command.index("--admin-port") + 1] == "1338"


def test_addresses_of_version_6(tmp_path):
    """An IPv6 address stands in brackets."""
    assert ProcessContainerManager(host="::1").get_query_addr() == "[::1]:1337"


def test_what_the_package_offers():
    """The names of the released API are at hand."""
    assert set(clipper_admin.__all__) == {
        "ClipperConnection", "ClipperException", "ProcessContainerManager",
        "UnconnectedException", "deployers",
    }  # fmt: skip
