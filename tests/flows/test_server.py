"""`python -m serving` as a process: start, answer, change, lose replicas, stop; nothing is left behind."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import grpc
import numpy as np
import pytest

from serving import zoo
from serving.app.ports import make_connection_limiter
from serving.settings.server import ServerSettings
from serving.system.cgroups import manager
from tests.fakes import control_groups
from tests.fakes.admin import token_fields
from tests.fakes.certificate import certificate_in

CARD = zoo.find("resnet")
TOKEN, OTHER = "one-of-the-queries", "one-of-the-admin"


class Server:
    """One server process, and where it listens."""

    def __init__(self, process, facts):
        self.process = process
        self.port = facts["port"]
        self.admin_port = facts["admin_port"]
        self.facts = facts

    def request(self, method, path, body=None, headers=None, *, admin=False):
        port = self.admin_port if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        with contextlib.closing(connection):
            fields = token_fields(port) if admin else {}
            connection.request(method, path, body, fields | (headers or {}))
            response = connection.getresponse()
            return response.status, response.read()

    def json(self, method, path, data=None, *, admin=False):
        status, body = self.request(method, path, json.dumps(data) if data else None, admin=admin)
        return status, json.loads(body)

    def replicas(self):
        return self.json("GET", "/admin/replicas", admin=True)[1]


def command(*arguments):
    return [sys.executable, "-m", "serving", "--port", "0", "--admin-port", "0", *arguments]


@contextlib.contextmanager
def server(*arguments):
    with subprocess.Popen(
        command("--log-level", "warning", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield Server(process, json.loads(line))
        finally:
            process.kill()


@contextlib.contextmanager
def shared_server(folder, *arguments):
    """A server of many tests, which ends in order whatever they have done, and without a traceback."""
    told = folder / "stderr"
    with (
        told.open("wb") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "serving", "--port", "0", "--log-level", "warning", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            line = process.stdout.readline()
            assert line, told.read_text()
            running = Server(process, json.loads(line))
            yield running
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
            assert "Traceback" not in told.read_text()
            assert not pathlib.Path(running.facts["admin_token_file"]).parent.exists()
        finally:
            process.kill()


@pytest.fixture(scope="module")
def echo(tmp_path_factory):
    """A server of `echo` with free ports, on which tests leave this model as it is."""
    settings = ("model_control=explicit", "hosts=models.example", "max_json_bytes=70000")
    words = [word for setting in settings for word in ("--set", f"server.{setting}")]
    with shared_server(tmp_path_factory.mktemp("echo"), "--model", "echo", *words) as running:
        yield running


@pytest.fixture(scope="module")
def resnet(tmp_path_factory):
    """A server of two replicas of `resnet`, whose settings are after each test what they were before."""
    words = ("--set", "replica.count=2", "--set", "server.metrics=admin")
    with shared_server(tmp_path_factory.mktemp("resnet"), "--model", "resnet", *words) as running:
        yield running


@contextlib.contextmanager
def changed(running, name, value):
    """One setting has another value for a while."""
    group, key = name.split(".")
    before = running.json("GET", "/admin/settings", admin=True)[1]["settings"][group][key]
    for one in (value, before):
        patch = {"settings": {name: one}}
        assert running.json("PATCH", "/admin/settings", patch, admin=True)[0] == 200
        if one is value:
            yield


def until(condition, seconds=10.0):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.02)
    return False


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def image_body(array):
    header = {
        "inputs": [
            {
                "name": "image",
                "shape": list(array.shape),
                "datatype": "UINT8",
                "parameters": {"binary_data_size": array.nbytes},
            }
        ]
    }
    text = json.dumps(header).encode()
    return text + array.tobytes(), {"Inference-Header-Content-Length": str(len(text))}


def family(pid):
    """A process and its descendants."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        one = open_.pop()
        found.append(one)
        open_ += children.get(one, [])
    return found


def test_real_images_are_classified(resnet):
    """The bundled resnet answers its own test images, batched or not, as its card promises."""
    sample = np.load(CARD.sample)
    body, headers = image_body(sample["image"][:64])
    status, answer = resnet.request("POST", "/v2/models/resnet/infer", body, headers)
    assert status == 200
    output = json.loads(answer)["outputs"][0]
    scores = np.array(output["data"]).reshape(output["shape"])
    assert (scores.argmax(1) == sample["labels"][:64]).mean() > 0.8
    one, headers = image_body(sample["image"][:1])
    single = json.loads(resnet.request("POST", "/v2/models/resnet/infer", one, headers)[1])
    np.testing.assert_allclose(single["outputs"][0]["data"], scores[0], rtol=1e-4, atol=1e-6)


def test_another_variant_answers_after_a_patch(resnet):
    """The shallow resnet gives other scores, and nearly as often the right class."""
    sample = np.load(CARD.sample)
    body, headers = image_body(sample["image"][:64])

    def scores():
        status, answer = resnet.request("POST", "/v2/models/resnet/infer", body, headers)
        assert status == 200
        return np.array(json.loads(answer)["outputs"][0]["data"]).reshape(64, 10)

    deep = scores()
    with changed(resnet, "model.variant", "resnet8"):
        shallow = scores()
    assert np.abs(deep - shallow).max() > 0.01
    assert (shallow.argmax(1) == sample["labels"][:64]).mean() > 0.8
    np.testing.assert_allclose(scores(), deep, rtol=1e-4, atol=1e-6)


def test_large_json_is_decoded_in_the_replica(resnet):
    """A JSON body over 64 KiB gives the same answer as its binary form."""
    sample = np.load(CARD.sample)["image"][:16]
    with changed(resnet, "batching.max_size", 4):
        body, headers = image_body(sample)
        binary = json.loads(resnet.request("POST", "/v2/models/resnet/infer", body, headers)[1])
        item = {"name": "image", "datatype": "UINT8", "shape": list(sample.shape)}
        text = {"inputs": [item | {"data": sample.tolist()}]}
        assert len(json.dumps(text)) > 65536
        status, answer = resnet.json("POST", "/v2/models/resnet/infer", text)
        assert status == 200
        np.testing.assert_allclose(
            answer["outputs"][0]["data"], binary["outputs"][0]["data"], rtol=1e-4, atol=1e-6
        )


def test_a_killed_replica_is_replaced_under_load(resnet):
    """kill -9 of a replica costs no request: its work is given to the other, and a new one comes."""
    statuses = []
    stop = threading.Event()
    body, headers = image_body(np.load(CARD.sample)["image"][:1])

    def client():
        while not stop.is_set():
            statuses.append(resnet.request("POST", "/v2/models/resnet/infer", body, headers)[0])

    before = len(resnet.replicas()["deaths"])
    threads = [threading.Thread(target=client) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        victim = resnet.replicas()["replicas"][0]["pid"]
        os.kill(victim, signal.SIGKILL)
        assert until(
            lambda victim=victim: (
                [(r["state"], r["pid"] != victim) for r in resnet.replicas()["replicas"]]
                == [("ready", True)] * 2
            )
        )
    stop.set()
    for thread in threads:
        thread.join(20)
    deaths = resnet.replicas()["deaths"][before:]
    assert [death["reason"] for death in deaths] == ["killed"] * 3
    assert not [death["text"] for death in deaths if "asked" in death["text"]]
    assert set(statuses) == {200}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_in_order(number):
    """SIGTERM and SIGINT: not ready at once, exit 0, no process and no cgroup left."""
    with server(
        "--model", "echo", "--set", "replica.count=2", "--set", "replica.cpu=0.5"
    ) as running:
        members = family(running.process.pid)
        assert len(members) >= 4
        assert bool(leftovers(running.process.pid)) == (running.facts["limits"] == "enforced")
        running.process.send_signal(number)
        assert running.process.wait(10) == 0
        assert until(lambda: not any(alive(pid) for pid in members))
        assert leftovers(running.process.pid) == []


def test_kill_9_leaves_a_token_until_the_next_server_and_nothing_else():
    """After kill -9 of the gateway its replicas, template and cgroups are gone by themselves.

    The file of its token lasts until somebody comes by.
    """
    with server(
        "--model", "echo", "--set", "replica.count=2", "--set", "replica.cpu=0.5"
    ) as running:
        members = family(running.process.pid)
        file = pathlib.Path(running.facts["admin_token_file"])
        running.process.kill()
        running.process.wait(10)
        assert until(lambda: not any(alive(pid) for pid in members))
        assert until(lambda: leftovers(running.process.pid) == [])
        assert file.exists()
    with server("--model", "echo", "--no-admin-token") as running:
        assert running.facts["admin_token_file"] is None
        assert running.request("GET", "/admin/settings", admin=True)[0] == 200
        assert file.exists(), "it makes no token, and looks for none"
    with server("--model", "echo"):
        assert not file.exists()


def leftovers(pid):
    """Cgroups that carry the gateway's pid."""
    return control_groups.named(f"luthier-{pid}-*")


def test_drain_answers_what_was_taken():
    """A request in flight at SIGTERM is answered before the end."""
    body, headers = image_body(np.load(CARD.sample)["image"][:256])
    answers = []
    with server("--model", "resnet", "--set", "batching.max_size=1") as running:
        thread = threading.Thread(
            target=lambda: answers.append(
                running.request("POST", "/v2/models/resnet/infer", body, headers)[0]
            )
        )
        thread.start()
        assert until(
            lambda: (
                b'inflight_requests{model="resnet",version="1"} 1.0'
                in running.request("GET", "/metrics", admin=True)[1]
            )
        )
        running.process.send_signal(signal.SIGTERM)
        thread.join(20)
        assert running.process.wait(20) == 0
    assert answers == [200]


@pytest.mark.limits
@pytest.mark.skipif(manager.probe().kind is None, reason=str(manager.probe().reason))
def test_out_of_memory_is_told_as_such(resnet):
    """A replica over its memory limit is out of memory, at start or at work, never just a crash."""
    status, answer = resnet.json(
        "PATCH", "/admin/settings", {"settings": {"replica.memory_mb": 8}}, admin=True
    )
    assert status == 409
    assert answer["reason"] == "oom"
    assert "memory" in answer["error"]
    assert resnet.json("GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize(
    ("code", "phrase", "arguments"),
    [
        (2, "did you mean 'resnet'", ["--model", "resnett"]),
        (2, "did you mean '--model'", ["--modle", "echo"]),
        (
            2,
            "did you mean 'batching.max_size'",
            ["--model", "echo", "--set", "batching.max_sise=1"],
        ),
        (2, "expected NAME=VALUE", ["--model", "echo", "--set", "batching.max_size"]),
        (
            2,
            "/nowhere.yaml cannot be read: No such",
            ["--model", "echo", "--settings", "/nowhere.yaml"],
        ),
        (2, "expected a YAML file", ["--model", "echo", "--settings", "/nowhere.yaml"]),
        (2, "no file /tmp/no-such.onnx", ["--model", "/tmp/no-such.onnx"]),
        (2, "--port: invalid int value: 'x'; see", ["--model", "echo", "--port", "x"]),
        (2, "server.port = 70000, expected", ["--model", "echo", "--port", "70000"]),
        (
            2,
            "port 9 is both --port and --admin",
            ["--allow-empty", "--port", "9", "--admin-port", "9"],
        ),
        (2, "model repository /nowhere: No such", ["--model-repository", "/nowhere"]),
        (2, "set both, or neither", ["--model", "echo", "--set", "server.tls_key=key.pem"]),
    ],
)
def test_wrong_use_is_one_clear_line(serve, code, phrase, arguments):
    """What was given, what was expected and what to try, on one line; exit 2 for wrong use, else 1."""
    done = serve(*arguments)
    assert (done.code, done.out) == (code, "")
    assert len(done.err.strip().splitlines()) == 1
    assert phrase in done.err


def test_a_class_that_is_not_in_its_file_is_wrong_use(serve, tmp_path):
    """The line says which are there; nothing is left running."""
    file = tmp_path / "own.py"
    file.write_text("def scale(items): return items")
    done = serve("--model", f"{file}:Scale")
    assert done.code == 2
    assert "no class or function 'Scale' in it" in done.err
    assert "it has scale" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_broken_model_file_is_one_clear_line(serve, tmp_path):
    """A file that is no ONNX model ends the start with the reason, and leaves nothing running."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"this is no model")
    done = serve("--model", str(broken), "--log-level", "error")
    assert done.code == 1
    assert f"model broken ({broken}) cannot be loaded: it is not a readable ONNX" in done.err
    assert len(done.err.strip().splitlines()) == 1


def test_two_servers_with_free_ports_run_beside_one_another(echo):
    """`--port 0` alone takes no fixed port at all, not for the admin port either."""
    with subprocess.Popen(
        [sys.executable, "-m", "serving", "--model", "echo", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            facts = json.loads(process.stdout.readline())
        finally:
            process.kill()
    assert len({facts["port"], facts["admin_port"], echo.port, echo.admin_port}) == 4


def test_a_taken_port_is_one_clear_line(serve):
    """A port in use is named, with what to do, before the model is loaded."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        done = serve("--model", "echo", "--port", port)
    assert done.code == 1
    assert f"port {port}" in done.err
    assert "--port" in done.err


def test_the_limit_of_json_holds_in_every_protocol(echo):
    """What is longer is 413 wherever it is sent; numbers that a replica reads are not counted."""
    text = "a" * 70_000
    item = {"name": "data", "shape": [1, 50_000], "datatype": "UINT8", "data": [1] * 50_000}
    for path, data in (
        ("/v2/models/echo/infer", {"inputs": [item], "id": text}),
        ("/v1/models/echo:predict", {"instances": [[1]], "more": text}),
    ):
        status, answer = echo.json("POST", path, data)
        assert (status, "server.max_json_bytes" in answer["error"]) == (413, True)
    assert echo.json("POST", "/v2/models/echo/infer", {"inputs": [item]})[0] == 200


def test_every_protocol_on_the_query_port(echo):
    """Open Inference, its extensions and TensorFlow Serving answer beside one another."""

    def counted():
        (found,) = echo.json("GET", "/v2/models/echo/stats")[1]["model_stats"]
        return found["inference_count"], found["inference_stats"]["success"]["count"]

    items, requests = counted()
    tensor = {"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [7]}
    status, answer = echo.json("POST", "/v2/models/echo/infer", {"inputs": [tensor]})
    assert (status, answer["outputs"][0]["data"]) == (200, [7])
    asked = echo.json("POST", "/v1/models/echo:predict", {"instances": [[7], [8]]})
    assert asked == (200, {"predictions": [[7], [8]]})
    assert counted() == (items + 3, requests + 2)
    page = echo.request("GET", "/monitoring/prometheus/metrics")[1]
    assert b'model="echo"' in page
    assert echo.request("POST", "/v2/repository/models/linear/load")[0] == 200
    assert echo.json("GET", "/v2/models/linear")[0] == 200
    assert echo.json("GET", "/v1/models/linear")[0] == 200
    assert echo.request("POST", "/v2/repository/models/linear/unload")[0] == 200
    assert echo.json("GET", "/v1/models/linear")[0] == 404
    assert echo.json("GET", "/elsewhere")[0] == 404


def asked(port, raw):
    """The status of the answer to bytes."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(raw)
        return int(sock.recv(65536).split()[1])


def test_names_and_pages_at_the_ports_of_a_server(echo):
    """Bound to loopback both ports are asked as this machine, or by a name that is given; pages change nothing."""
    token = pathlib.Path(echo.facts["admin_token_file"]).read_text().strip()
    token = f"Authorization: Bearer {token}\r\n".encode()
    load = b"/v2/repository/models/linear/load"
    page, own = b"Origin: http://evil.example\r\n", b"Origin: http://localhost:%d\r\n"
    query, admin = echo.port, echo.admin_port
    for port, method, path, host, fields, status in (
        (query, b"GET", b"/v2", b"localhost:%d" % query, b"", 200),
        (query, b"GET", b"/v2", b"models.example", b"", 200),
        (query, b"GET", b"/v2", b"evil.example:%d" % query, b"", 403),
        (query, b"GET", b"/v2/health/ready", b"evil.example", b"", 200),
        (query, b"GET", b"/monitoring/prometheus/metrics", b"evil.example", b"", 403),
        (query, b"POST", load, b"localhost:%d" % query, page, 403),
        (query, b"POST", load, b"localhost:%d" % query, b"Sec-Fetch-Site: cross-site\r\n", 403),
        (query, b"POST", load, b"localhost:%d" % query, own % query, 200),
        (query, b"POST", b"/app/update", b"127.0.0.1", page, 403),
        (admin, b"GET", b"/admin/settings", b"127.0.0.1:%d" % admin, token, 200),
        (admin, b"GET", b"/admin/settings", b"models.example", token, 200),
        (admin, b"GET", b"/admin/settings", b"evil.example", token, 403),
        (admin, b"GET", b"/metrics", b"evil.example", b"", 403),
        (admin, b"GET", b"/health", b"evil.example", b"", 200),
    ):
        head = b"%b %b HTTP/1.1\r\nHost: %b\r\n%bContent-Length: 0\r\n\r\n" % (
            method, path, host, fields,
        )  # fmt: skip
        assert asked(port, head) == status, head


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    return certificate_in(tmp_path_factory.mktemp("tls"))


def test_tls_and_a_token(certificate, tmp_path):
    """Both ports speak TLS and ask for the token; without either nobody gets an answer."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "admin").write_text(f"{OTHER}\n")
    arguments = ["--model", "echo", "--set", "server.grpc_port=0"]
    for name, path in (
        ("tls_certificate", certificate[0]),
        ("tls_key", certificate[1]),
        ("token_file", tmp_path / "token"),
        ("admin_token_file", tmp_path / "admin"),
    ):
        arguments += ["--set", f"server.{name}={path}"]
    context = ssl.create_default_context(cafile=certificate[0])
    tensor = {"name": "data", "shape": [1, 100_000], "datatype": "UINT8", "data": [7] * 100_000}
    body = json.dumps({"inputs": [tensor]})
    with server(*arguments) as running:
        client = http.client.HTTPSConnection("127.0.0.1", running.port, timeout=10, context=context)
        with contextlib.closing(client):
            for headers, status in (({}, 401), ({"Authorization": f"Bearer {TOKEN}"}, 200)):
                for _ in range(2):
                    client.request("POST", "/v2/models/echo/infer", body, headers)
                    response = client.getresponse()
                    data = response.read()
                    assert response.status == status
            assert len(json.loads(data)["outputs"][0]["data"]) == 100_000
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            running.request("GET", "/v2")
        credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
        address = f"127.0.0.1:{running.facts['grpc_port']}"
        with grpc.secure_channel(address, credentials) as channel:
            live = channel.unary_unary("/inference.GRPCInferenceService/ServerLive")
            health = channel.unary_unary("/grpc.health.v1.Health/Check")
            assert health(b"") == b"\x08\x01"
            with pytest.raises(grpc.RpcError) as refused:
                live(b"")
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert live(b"", metadata=[("authorization", f"Bearer {TOKEN}")]) == b"\x08\x01"
        for path, headers, status in (
            ("/health", {}, 200),
            ("/metrics", {}, 401),
            ("/admin/replicas", {"Authorization": f"Bearer {TOKEN}"}, 401),
            ("/admin/replicas", {"Authorization": f"Bearer {OTHER}"}, 200),
        ):
            assert running.request("GET", path, headers=headers, admin=True)[0] == status
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(20) == 0


def has_read_all(port):
    """Whether nothing that was sent to a port of loopback waits in the system."""
    table = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    end = f":{port:04X}"
    unsent = [queues.split(":")[0] for _, _, peer, _, queues, *_ in table if peer.endswith(end)]
    unread = [queues.split(":")[1] for _, own, _, _, queues, *_ in table if own.endswith(end)]
    return not any(int(waiting, 16) for waiting in unsent + unread)


def heard(sock):
    """The status of the next answer."""
    return int(sock.recv(4096).split()[1])


def test_what_clients_send_is_bounded_before_it_is_there(tmp_path):
    """Who has no token is told so by the head, and bodies that are not whole have a bound together."""
    (tmp_path / "token").write_text(TOKEN)
    settings = {"token_file": tmp_path / "token", "max_body_bytes": 2**20, "max_buffered_mb": 1}
    arguments = [f"server.{name}={value}" for name, value in settings.items()]
    with (
        server(
            "--model", "echo", *(word for one in arguments for word in ("--set", one))
        ) as running,
        contextlib.ExitStack() as clients,
    ):
        socks = [
            clients.enter_context(socket.create_connection(("127.0.0.1", running.port), 10))
            for _ in range(4)
        ]
        head = (
            b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n"
        )
        socks[0].sendall(head + b"Expect: 100-continue\r\n\r\n")
        assert heard(socks[0]) == 401
        token = f"Authorization: Bearer {TOKEN}\r\n\r\n".encode()
        for sock in socks[1:3]:
            sock.sendall(head + token + bytes(999_999))
        assert until(lambda: has_read_all(running.port))
        socks[3].sendall(head + token + bytes(1_000_000))
        assert heard(socks[3]) == 503
        for sock in socks[1:3]:
            sock.sendall(b"x")
            assert heard(sock) == 400


@pytest.mark.parametrize(("given", "most"), [(None, 25), (60, 60)])
def test_one_client_has_a_part_of_the_connections(given, most):
    """A quarter, where no other is set."""
    door = make_connection_limiter(
        ServerSettings(max_connections=100, max_connections_per_client=given)
    )
    assert (door.most, door.max_per_client) == (100, most)


@pytest.mark.parametrize(
    ("name", "value"), [("token_file", "not-there"), ("admin_host", "0.0.0.0")]
)
def test_wrong_credentials_end_the_server(serve, tmp_path, name, value):
    """One line, before any model is loaded; an admin port for a network without a token is no port."""
    done = serve("--model", "echo", "--set", f"server.{name}={value}", cwd=tmp_path)
    assert done.code == 2
    assert f"server.{name}" in done.err
    assert len(done.err.splitlines()) == 1


def test_the_admin_port_asks_for_the_token_that_was_made(echo):
    """Health and metrics are open to who watches; all else needs what only this user can read, and it is gone after."""
    file = pathlib.Path(echo.facts["admin_token_file"])
    assert file.name == f"admin-{echo.admin_port}.token"
    token = file.read_text().strip()
    attack = json.dumps({"model": "os:system"})
    for method, path, body, bearer, status in (
        ("GET", "/health", None, "", 200),
        ("GET", "/metrics", None, "", 200),
        ("POST", "/admin/models", attack, "", 401),
        ("POST", "/admin/start_containers", attack, "", 401),
        ("POST", "/admin/shutdown", None, "", 401),
        ("PATCH", "/admin/settings", "{}", "", 401),
        ("GET", "/admin/settings", None, "", 401),
        ("GET", "/admin/settings", None, "guessed", 401),
        ("GET", "/admin/settings", None, token, 200),
    ):
        fields = {"Authorization": f"Bearer {bearer}"}
        assert echo.request(method, path, body, fields, admin=True)[0] == status, path


def test_an_admin_port_for_a_network_speaks_tls(serve, certificate, tmp_path):
    """With the certificate of the query port; in clear text it answers nobody."""
    (tmp_path / "admin").write_text(OTHER)
    arguments = ["--model", "echo", "--set", "server.admin_host=0.0.0.0"]
    arguments += ["--set", f"server.admin_token_file={tmp_path / 'admin'}"]
    done = serve(*arguments)
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "requires TLS" in done.err
    arguments += ["--set", f"server.tls_certificate={certificate[0]}"]
    arguments += ["--set", f"server.tls_key={certificate[1]}"]
    context = ssl.create_default_context(cafile=certificate[0])
    fields = {"Authorization": f"Bearer {OTHER}"}
    with server(*arguments) as running:
        client = http.client.HTTPSConnection(
            "127.0.0.1", running.admin_port, timeout=10, context=context
        )
        with contextlib.closing(client):
            for headers, status in (({}, 401), (fields, 200)):
                client.request("GET", "/admin/settings", headers=headers)
                response = client.getresponse()
                response.read()
                assert response.status == status
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            running.request("GET", "/admin/settings", headers=fields, admin=True)


TELLS = """
import os
import numpy as np

class Tells:
    inputs = [{"name": "x", "datatype": "UINT8", "shape": [-1]}]
    outputs = [{"name": "y", "datatype": "BYTES", "shape": [-1]}]

    def predict_batch(self, inputs):
        names = " ".join(sorted(os.environ))
        return {"y": np.array([names] * len(inputs["x"]), dtype=object)}
"""
SECRETS = ("LUTHIER_TOKEN", "LUTHIER_ADMIN_TOKEN", "LUTHIER_STATE_STORE_PASSWORD")


def test_model_code_gets_no_secrets(tmp_path, monkeypatch):
    """A model, and every process that the server starts, see the environment without them."""
    for name in SECRETS:
        monkeypatch.setenv(name, OTHER)
    monkeypatch.setenv("NO_SECRET", "yes")
    (tmp_path / "tells.py").write_text(TELLS)
    tensor = {"name": "x", "shape": [1], "datatype": "UINT8", "data": [1]}
    fields = {"Authorization": f"Bearer {OTHER}"}
    with server("--model", f"{tmp_path / 'tells.py'}:Tells") as running:
        body = json.dumps({"inputs": [tensor]})
        status, answer = running.request("POST", "/v2/models/tells/infer", body, fields)
        assert status == 200, answer
        (names,) = json.loads(answer)["outputs"][0]["data"]
        assert "NO_SECRET" in names.split()
        assert not set(SECRETS) & set(names.split())
        assert running.request("GET", "/admin/settings", headers=fields, admin=True)[0] == 200
        started = set(family(running.process.pid)) - {running.process.pid}
        assert started
        for pid in started:
            given = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            assert b"NO_SECRET=yes" in given
            assert not [one for one in given if one.startswith(tuple(map(str.encode, SECRETS)))]


def test_metrics_can_be_kept_to_the_admin_port(resnet, echo):
    """In no protocol of the query port, nor statistics of models; the admin port shows what it did."""
    for path, status in (
        ("/monitoring/prometheus/metrics", 404),
        ("/metrics", 404),
        ("/v2/models/stats", 403),
        ("/v2/models/resnet/stats", 403),
        ("/v2/models/resnet", 200),
    ):
        assert resnet.request("GET", path)[0] == status, path
    assert b"luthier_" in resnet.request("GET", "/metrics", admin=True)[1]
    for path in ("/monitoring/prometheus/metrics", "/metrics", "/v2/models/echo/stats"):
        assert echo.request("GET", path)[0] == 200, path


def test_a_crowd_at_the_admin_port_holds_up_nobody(echo):
    """Hundreds of silent connections to it: queries are served meanwhile, and it answers when they are gone."""
    pid = echo.process.pid
    before = open_files(pid)
    address = ("127.0.0.1", echo.admin_port)
    with contextlib.ExitStack() as crowd:
        for _ in range(400):
            sock = crowd.enter_context(socket.create_connection(address, 20))
            with contextlib.suppress(ConnectionError):  # there was no place for it
                sock.sendall(b"GET /health HTTP/1.1\r\n")
        assert echo.request("GET", "/v2/health/ready")[0] == 200
        assert open_files(pid) < before + 100
    assert until(lambda: open_files(pid) < before + 10)
    assert echo.request("GET", "/admin/settings", admin=True)[0] == 200


def open_files(pid):
    """How many a process has."""
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))
