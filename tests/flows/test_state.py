"""`kill -9` of a whole server, and the next one over the same folder: nothing is lost, and nothing needs Redis."""

import contextlib
import json
import math
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

from serving import zoo
from serving.clipper_admin import ClipperConnection, ProcessContainerManager
from tests.fakes import control_groups
from tests.fakes.admin import token_fields

FUNCTIONS = """
from serving.models.clipper_function import wrap_function

one = wrap_function(lambda inputs: ["1"] * len(inputs), input_type="doubles")
two = wrap_function(lambda inputs: ["2"] * len(inputs), input_type="doubles")
"""
WAIT_S = 20.0


def command(state, *arguments):
    """The command of a server over a folder."""
    ports = ["--port", "0", "--admin-port", "0", "--log-level", "warning"]
    state = f"server.state_dir={state}"
    return [sys.executable, "-m", "serving", "--allow-empty", *ports, "--set", state, *arguments]


@contextlib.contextmanager
def server(state, *arguments):
    """A running server and its line `ready`; killed at the end."""
    with subprocess.Popen(
        command(state, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
        finally:
            process.kill()


def clipper(facts, folder):
    """Clipper's admin API over a running server."""
    manager = ProcessContainerManager(
        clipper_query_port=facts["port"],
        clipper_management_port=facts["admin_port"],
        folder=folder,
    )
    connection = ClipperConnection(manager)
    connection.connect()
    return connection


def post(port, path, body):
    """The JSON answer to a POST, or its text."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/{path}",
        data=json.dumps(body).encode(),
        headers=token_fields(port),
        method="POST",
    )
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        text = response.read().decode()
    with contextlib.suppress(ValueError):
        return json.loads(text)
    return text


def get(port, path):
    """The JSON answer to a GET."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers=token_fields(port))
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        return json.loads(response.read())


def answered(port, model):
    """The outputs of a model for one item of zeros."""
    inputs = []
    for spec in get(port, f"v2/models/{model}")["inputs"]:
        shape = [1, *(max(size, 1) for size in spec["shape"][1:])]
        inputs.append({**spec, "shape": shape, "data": [0] * math.prod(shape)})
    return post(port, f"v2/models/{model}/infer", {"inputs": inputs})["outputs"]


def is_alive(pid):
    """Whether a process runs."""
    try:
        return (
            pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
        )
    except OSError:
        return False


def wait_for_the_end(pids):
    """Fail where a replica stays."""
    until_s = time.monotonic() + WAIT_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < until_s, "a replica outlived its server"
        time.sleep(0.02)


def facts_of(connection, admin_port):
    """What a client of the management sees of the state."""
    learnt = post(admin_port, "admin/get_state", {"app_name": "app", "uid": 0})
    return {
        "applications": connection.get_all_apps(verbose=True),
        "links": connection.get_linked_models("app"),
        "models": connection.get_all_models(verbose=True),
        "current": connection.get_current_model_version("m"),
        "replicas": {v: connection.get_num_replicas("m", v) for v in ("1", "2")},
        "learnt": {part: learnt[part] for part in ("policy", "weights", "state")},
    }


def replicas(admin_port):
    """The processes of the replicas."""
    return [one["pid"] for one in get(admin_port, "admin/replicas")["replicas"]]


def test_a_killed_server_goes_on_where_it_was(tmp_path):
    """Applications, links, versions and what the policy has learnt; the replicas of the killed one are gone."""
    functions = tmp_path / "functions.py"
    functions.write_text(FUNCTIONS)
    state = tmp_path / "state"
    query = {"input": [1.0]}
    with server(state) as (process, facts):
        port, admin_port = facts["port"], facts["admin_port"]
        connection = clipper(facts, tmp_path)
        connection.deploy_model("m", "1", "doubles", f"{functions}:one", num_replicas=2)
        connection.deploy_model("m", "2", "doubles", f"{functions}:two", num_replicas=2)
        connection.deploy_model("other", "1", "doubles", f"{functions}:two")
        connection.register_application("plain", "doubles", "none", slo_micros=5_000_000)
        connection.link_model_to_app("plain", "m")
        app = {"name": "app", "input_type": "doubles", "default_output": "none"}
        app |= {"latency_slo_micros": 5_000_000, "policy": "exp3"}
        post(admin_port, "admin/add_app", app)
        connection.link_model_to_app("app", "m")
        connection.link_model_to_app("app", "other")
        for _ in range(5):
            post(port, "app/predict", query)
            post(port, "app/update", {**query, "uid": 0, "label": 1.0})
        refused = subprocess.run(
            command(state), capture_output=True, text=True, check=False, timeout=WAIT_S
        )
        pids = replicas(admin_port)
        connection.set_model_version("m", "1")
        before = facts_of(connection, admin_port)
        connection.register_application("late", "doubles", "none", slo_micros=5_000_000)
        os.kill(process.pid, signal.SIGKILL)  # at once: what was answered is on the disk
        process.wait(WAIT_S)
        wait_for_the_end(pids)
    assert len(pids) == 5
    assert refused.returncode == 1
    assert f"is in use by another server (process {process.pid})" in refused.stderr
    assert refused.stderr.count("\n") == 1
    with server(state) as (_, facts):
        found = facts_of(clipper(facts, tmp_path), facts["admin_port"])
        answers = [post(facts["port"], "plain/predict", query)["output"] for _ in range(5)]
    assert found["applications"].pop()["name"] == "late"
    assert found == before
    assert found["current"] == "1"
    assert found["replicas"] == {"1": 2, "2": 2}
    assert found["learnt"]["state"]["models"], "feedback has taught something"
    assert answers == [1] * 5


def test_a_killed_server_whose_models_share_replicas_loads_them_again(tmp_path):
    """Nothing of the killed one is left, what it measured is not measured again, and what came late is there, too."""
    words = ["--model", "gan"]
    for setting in ("scheduling.policy=clockwork", "scheduling.default_deadline_s=10"):
        words += ["--set", setting]
    state = tmp_path / "state"
    late = {"model": str(zoo.find("mnist").path), "name": "late", "version": "1"}

    def seen(facts):
        names = ("gan", "late")
        profiles = [get(facts["admin_port"], f"admin/models/{name}") for name in names]
        profiles = [one["versions"]["1"]["profile"] for one in profiles]
        return [answered(facts["port"], name) for name in names], profiles

    with server(state, *words) as (process, facts):
        post(facts["admin_port"], "admin/models", late)
        before, pids = seen(facts), replicas(facts["admin_port"])
        os.kill(process.pid, signal.SIGKILL)
        process.wait(WAIT_S)
        wait_for_the_end(pids)
    with server(state, *words) as (_, facts):
        assert seen(facts) == before
        assert not set(replicas(facts["admin_port"])) & set(pids)
        left = f"luthier-{process.pid}-*"
        assert not [*pathlib.Path(tempfile.gettempdir()).glob(left), *control_groups.named(left)]
    assert len(pids) == 1
