"""Clipper's management commands: every success and every message of its table, on a catalogue in memory."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.api.clipper.management import PATHS, execute
from serving.errors import ModelLoadFailed
from tests.fakes.clipper_hub import FakeHub
from tests.fakes.servables import signature

APP = {"name": "a", "input_type": "d", "default_output": "-1", "latency_slo_micros": 100_000}
MODEL = {
    "model_name": "m", "model_version": "1", "labels": ["l"], "input_type": "double",
    "container_name": "file.py:f", "model_data_path": "path", "batch_size": -1,
}  # fmt: skip


def do(hub, path, body):
    """(status, text or JSON) of a command."""
    return asyncio.run(done(hub, path, body))


async def done(hub, path, body):
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, text = await execute(hub, f"/admin{path}", text)
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text


def made(hub, *commands):
    """A hub after commands that must succeed."""
    for path, body in commands:
        status, text = do(hub, path, body)
        assert status == 200, text
    return hub


@pytest.fixture
def hub():
    """Application a (doubles), models m and other (doubles), strange (strings)."""
    return made(
        FakeHub(),
        ("/add_app", APP),
        ("/add_model", MODEL),
        ("/add_model", MODEL | {"model_name": "other"}),
        ("/add_model", MODEL | {"model_name": "strange", "input_type": "strings"}),
    )


def links(*names, app="a"):
    return {"app_name": app, "model_names": list(names)}


SUCCESSES = [
    ("/add_app", APP | {"name": "b"}, "Successfully added application with name 'b'"),
    ("/delete_app", {"name": "a"}, "Successfully deleted application with name 'a'"),
    ("/add_model_links", links("m"), "Successfully linked model with name 'm' to application 'a'"),
    ("/get_linked_models", {"app_name": "a"}, []),
    ("/add_model", MODEL | {"model_version": "2", "input_type": "d"},
     "Successfully added model with name 'm' and input type 'doubles'"),
    ("/set_model_version", {"model_name": "m", "model_version": "1"},
     "Successfully set model with name 'm' to version '1'"),
    ("/delete_versioned_model", {"model_name": "m", "model_version": "1"},
     "Successfully deleted model with name 'm' and version '1'"),
    ("/get_all_applications", {"verbose": False}, ["a"]),
    ("/get_application", {"name": "a"},
     {"name": "a", "input_type": "doubles", "default_output": "-1", "latency_slo_micros": 100_000,
      "linked_models": []}),
    ("/get_application", {"name": "nobody"}, {}),
    ("/get_all_models", {"verbose": False}, ["m:1", "other:1", "strange:1"]),
    ("/get_model", {"model_name": "m", "model_version": "1"},
     {"model_name": "m", "model_version": "1", "input_type": "doubles", "labels": ["l"],
      "container_name": "file.py:f", "model_data_path": "path", "is_current_version": True}),
    ("/get_model", {"model_name": "m", "model_version": "9"}, {}),
    ("/get_all_containers", {"verbose": False}, []),
    ("/get_container", {"model_name": "m", "model_version": "1", "replica_id": 0}, {}),
    ("/get_state", {"app_name": "a", "uid": 0}, {"application": "a", "user": "0"}),
    ("/get_state", {"app_name": "a", "uid": 2**40}, {"application": "a", "user": str(2**40)}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "expected"), SUCCESSES)
def test_successes(hub, path, body, expected):
    """Every command's answer, where it is carried out."""
    assert do(hub, path, body) == (200, expected)


MESSAGES = [
    ("/add_app", APP, "application 'a' already exists"),
    ("/add_app", APP | {"name": "b", "input_type": "x"}, "x is not a valid input string"),
    ("/add_app", APP | {"name": "v1"}, "Invalid application name supplied: 'v1'"),
    ("/add_app", APP | {"name": "V2"}, "Invalid application name supplied: 'V2'"),
    ("/add_app", APP | {"name": "monitoring"}, "Invalid application name supplied: 'monitoring'"),
    ("/add_app", APP | {"name": "b", "latency_slo_micros": 0}, "expected microseconds above 0"),
    ("/add_app", APP | {"name": "b", "policy": "guess"}, "policy 'guess' is not known"),
    ("/add_app", APP | {"name": "b", "polcy": "exp3"},
     "JSON key 'polcy' is not known, did you mean 'policy'?"),
    ("/delete_app", {"name": "b"}, "Application 'b' does not exist"),
    ("/add_model_links", links("m", app="b"), "No app with name 'b' exists."),
    ("/add_model_links", links("nothing"), "No model with name 'nothing' exists."),
    ("/add_model_links", links("strange"),
     ("Model with name 'strange' has incompatible input_type 'strings'. "
     "Requested app to link to has input_type 'doubles'.")),
    ("/add_model_links", links(),
     "Please provide the name of the model that you want to link to the application 'a'"),
    ("/add_model_links", links("m", "other"),
     "Applications must be linked with at most one model. Attempted to add links to 2 models."),
    ("/delete_model_links", links("m", app="b"), "No app with name b exists."),
    ("/delete_model_links", links("m"), "Cannot remove nonexistent link between app a and model m"),
    ("/get_linked_models", {"app_name": "b"}, "No application with name 'b' exists."),
    ("/add_model", MODEL, "model with name 'm' and version '1' already exists"),
    ("/add_model", MODEL | {"batch_size": 0},
     "The batch size must be positive or DEFAULT_BATCH_SIZE, which is -1"),
    ("/add_model", MODEL | {"batch_size": -2}, "The batch size must be positive"),
    ("/add_model", MODEL | {"model_name": "m,n"},
     "Invalid model name supplied: m,n. Contains one of: ',', ':'"),
    ("/add_model", MODEL | {"model_version": "1:2"}, "Invalid model version supplied: 1:2."),
    ("/add_model", MODEL | {"labels": ["a", "b:c"]}, "Invalid label supplied: b:c."),
    ("/set_model_version", {"model_name": "n", "model_version": "1"},
     "Cannot set version for nonexistent model 'n'"),
    ("/set_model_version", {"model_name": "m", "model_version": "7"},
     "Cannot set non-existent version '7' for model with name 'm'"),
    ("/delete_versioned_model", {"model_name": "m", "model_version": "7"},
     "model with name 'm' and version '7' does not exist"),
    ("/get_state", {"app_name": "b", "uid": "0"}, "No application with name 'b' exists."),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "message"), MESSAGES)
def test_messages(hub, path, body, message):
    """Every message of a command that is not carried out, with 400, in one line."""
    status, text = do(hub, path, body)
    assert status == 400
    assert message in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/add_app", b"", "Error parsing JSON: JSON parse error: "),
        ("/add_app", b"[" * 200, "nested 200 levels"),
        ("/add_app", b"[]", "Can only get key-value pair from an object"),
        ("/add_app", {}, "JSON object does not have required key: name. Expected JSON schema: "),
        ("/add_app", {"name": 1}, "Type mismatch! JSON key name expected type Stringbut found type Number"),
        ("/add_app", APP | {"name": "\ud800"}, "JSON key name is not valid text"),
        ("/add_app", APP | {"latency_slo_micros": 1.5}, "is not of type int"),
        ("/add_app", APP | {"latency_slo_micros": 2**31}, "is not of type int"),
        ("/add_app", APP | {"latency_slo_micros": True}, "found type True"),
        ("/add_model", MODEL | {"labels": "l"}, "expected type Arraybut found type String"),
        ("/add_model", MODEL | {"labels": [1]}, "Array input of type Number is not of type string"),
        ("/add_model", {k: v for k, v in MODEL.items() if k != "batch_size"},
         "does not have required key: batch_size"),
        ("/get_all_models", {"verbose": 1}, "expected type bool but found type Number"),
        ("/get_all_models", {}, "required key: verbose"),
    ],
)  # fmt: skip
def test_bodies(path, body, message):
    """What is wrong with a body is said with the schema that was expected."""
    status, text = do(FakeHub(), path, body)
    assert status == 400
    assert message in text
    assert "Expected JSON schema: {" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("nothing", "strange"), "No model with name 'nothing'"),
        (("strange", "nothing"), "Model with name 'strange' has incompatible"),
        (("m", "nothing"), "No model with name 'nothing'"),
        (("m", "other"), "at most one model"),
        ((), "Please provide the name"),
        (("m",), "The model with name 'm' is already linked to 'a'"),
        (("other",), "A model with name m is already linked to 'a'."),
    ],
)
def test_order_of_the_checks_of_links(hub, names, message):
    """Application, then each model and its type, then how many, then what is linked already."""
    made(hub, ("/add_model_links", links("m")))
    assert "No app with name 'b'" in do(hub, "/add_model_links", links(*names, app="b"))[1]
    status, text = do(hub, "/add_model_links", links(*names))
    assert status == 400
    assert message in text


def test_links_come_and_go(hub):
    """A link that is removed can be made again, to another model."""
    made(hub, ("/add_model_links", links("m")))
    assert do(hub, "/get_linked_models", {"app_name": "a"}) == (200, ["m"])
    assert do(hub, "/delete_model_links", links("m")) == (200, "Success!")
    made(hub, ("/add_model_links", links("other")))
    assert do(hub, "/get_application", {"name": "a"})[1]["linked_models"] == ["other"]


def test_applications_of_a_policy_link_several_models(hub):
    """Where a policy chooses among models, there may be several; none twice."""
    made(hub, ("/add_app", APP | {"name": "b", "policy": "exp3"}))
    assert do(hub, "/add_model_links", links("m", "other", app="b")) == (
        200,
        "Successfully linked models with names 'm', 'other' to application 'b'",
    )
    for names in (("m",), ("m", "m")):
        text = do(hub, "/add_model_links", links(*names, app="b"))[1]
        assert text == "The model with name 'm' is already linked to 'b'"


def test_the_newest_version_is_current_until_another_one_is_set(hub):
    """A new version becomes the current one; it can be rolled back, and then forward."""
    made(hub, ("/add_model", MODEL | {"model_version": "2"}))
    assert do(hub, "/get_model", {"model_name": "m", "model_version": "2"})[1]["is_current_version"]
    made(hub, ("/set_model_version", {"model_name": "m", "model_version": "1"}))
    current = {
        model["model_version"]: model["is_current_version"]
        for model in do(hub, "/get_all_models", {"verbose": True})[1]
        if model["model_name"] == "m"
    }
    assert current == {"1": True, "2": False}


def test_a_linked_model_keeps_its_input_type(hub):
    """A version of another type cannot become current under applications that send the old one."""
    made(hub, ("/add_model_links", links("m")))
    status, text = do(hub, "/add_model", MODEL | {"model_version": "2", "input_type": "ints"})
    assert status == 400
    assert text == (
        "Model with name 'm' is already linked to app 'a' using input type 'doubles'. The input "
        "type you provided for a new version of the model, 'integers', is not compatible."
    )
    made(hub, ("/delete_model_links", links("m")),
         ("/add_model", MODEL | {"model_version": "2", "input_type": "ints"}),
         ("/set_model_version", {"model_name": "m", "model_version": "1"}),
         ("/add_model_links", links("m")))  # fmt: skip
    status, text = do(hub, "/set_model_version", {"model_name": "m", "model_version": "2"})
    assert (status, "is not compatible" in text) == (400, True)


def test_a_version_is_deleted_once(hub):
    """A deleted version stays in the lists, marked as invalid."""
    which = {"model_name": "m", "model_version": "1"}
    made(hub, ("/delete_versioned_model", which))
    assert do(hub, "/delete_versioned_model", which) == (
        400, "model with name 'm' and version '1' is already marked as 'invalid'",
    )  # fmt: skip
    assert "m:1" in do(hub, "/get_all_models", {"verbose": False})[1]


def test_containers_are_listed(hub):
    """One entry per replica, by name or in full."""
    hub.run("m", "1", signature({}, {}), None, replicas=2)
    assert do(hub, "/get_all_containers", {"verbose": False}) == (200, ["m:1:0", "m:1:1"])
    one = {
        "model_id": "m:1", "model_name": "m", "model_version": "1", "model_replica_id": 1,
        "input_type": "doubles",
    }  # fmt: skip
    assert do(hub, "/get_all_containers", {"verbose": True})[1][1] == one
    which = {"model_name": "m", "model_version": "1", "replica_id": 1}
    assert do(hub, "/get_container", which) == (200, one)


def test_verbose_applications(hub):
    """In full each is what /get_application says."""
    (one,) = do(hub, "/get_all_applications", {"verbose": True})[1]
    assert one == do(hub, "/get_application", {"name": "a"})[1]


def test_ping_and_the_number_of_paths():
    """PONG without a body; Clipper's commands and four for replicas."""
    assert do(FakeHub(), "/ping", b"") == (200, "PONG")
    assert len(PATHS) == 15 + 4


commands = st.sampled_from(PATHS)
members = st.dictionaries(
    st.sampled_from(sorted({*APP, *MODEL, "app_name", "model_names", "verbose", "uid", "models",
                            "num_replicas", "replica_id"})),
    st.sampled_from(["a", "m", "1", "d"]) | st.integers() | st.booleans() | st.none()
    | st.lists(st.text(max_size=3), max_size=2)
    | st.dictionaries(st.text(max_size=2), st.lists(st.text(max_size=2)), max_size=2),
)  # fmt: skip


@given(st.lists(st.tuples(commands, members), max_size=6))
def test_any_commands_are_answered(given_commands):
    """Any sequence of commands gets 200 or 400 with one line, and leaves a catalogue that can be listed."""
    hub = FakeHub()
    hub.start_error = ModelLoadFailed("m", "not here")
    for path, body in given_commands:
        status, text = asyncio.run(execute(hub, path, json.dumps(body).encode()))
        assert status in {200, 400}
        assert "\n" not in text
    assert do(hub, "/get_all_applications", {"verbose": True})[0] == 200
    assert do(hub, "/get_all_models", {"verbose": True})[0] == 200


# Containers


async def test_replicas_are_started_counted_resized_and_stopped(tmp_path):
    """The commands that stand for Clipper's container managers."""
    file = tmp_path / "doubled.py"
    file.write_text("def f(items):\n    return [item * 2 for item in items]\n")
    hub = FakeHub()
    which = {"model_name": "m", "model_version": "1"}
    start = which | {"container_name": f"{file}:f", "input_type": "d", "num_replicas": 2}
    assert await done(hub, "/get_num_replicas", which) == (200, 0)
    assert await done(hub, "/start_containers", start) == (
        200, "Successfully started 2 replicas of model 'm:1'",
    )  # fmt: skip
    assert await done(hub, "/get_num_replicas", which) == (200, 2)
    assert (await done(hub, "/set_num_replicas", which | {"num_replicas": 3}))[0] == 200
    assert await done(hub, "/get_num_replicas", which) == (200, 3)
    assert (await done(hub, "/stop_containers", {"models": {"m": ["1"]}}))[0] == 200
    assert await done(hub, "/get_num_replicas", which) == (200, 0)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/start_containers", MODEL | {"num_replicas": -1}, "num_replicas is -1"),
        ("/start_containers", MODEL | {"batch_size": 0}, "The batch size must be positive"),
        ("/start_containers", MODEL | {"container_name": "nothing.onnx"}, "no file"),
        ("/start_containers", MODEL | {"input_type": "x"}, "not a valid input string"),
        ("/set_num_replicas", MODEL | {"num_replicas": 1}, "model 'm' version '1' is not known"),
        ("/stop_containers", {"models": {"m": "1"}}, "expected type Arraybut found type String"),
    ],
)
async def test_messages_of_containers(path, body, message):
    """What cannot be done is said with 400, in one line."""
    status, text = await done(FakeHub(), path, body)
    assert status == 400
    assert message in text
    assert "\n" not in text
