"""Several gateways, on one machine and behind HAProxy: what is lost when one ends, and what the others know."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error

import pytest
import tritonclient.grpc as triton

from serving import zoo
from tests.fakes.admin import token_fields
from tests.fakes.redis_server import running_redis
from tests.flows.test_state import get, is_alive, post

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "gateways.md"
WAIT_S = 20.0
BODY = json.dumps(
    {"inputs": [{"name": "data", "shape": [1, 4], "datatype": "UINT8", "data": [[1, 2, 3, 4]]}]}
)


@contextlib.contextmanager
def server(*settings, model="echo", stop=True, starting=None):
    """A server on free ports, and its line `ready`; `starting` is called before it is read."""
    words = [sys.executable, "-m", "serving", "--model", model, "--port", "0"]
    words += ["--log-level", "error" if starting is None else "info"]
    for setting in settings:
        words += ["--set", setting]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            if starting is not None:
                starting(process)
            line = process.stdout.readline()
            assert line, process.stderr.read()
            yield process, json.loads(line)
            if stop:
                process.terminate()
                assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


class Clients:
    """Keep-alive clients that count their answers until they are stopped."""

    def __init__(self, port, count=4, path="/v2/models/echo/infer", body=BODY):
        self.answered, self.failed = 0, []
        self._port, self._path, self._body = port, path, body
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(WAIT_S)

    def _ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=WAIT_S)
        while not self._stop.is_set():
            try:
                connection.request("POST", self._path, self._body)
                response = connection.getresponse()
                text = response.read()
                if response.status == 200:
                    self.answered += 1
                else:
                    self.failed.append((response.status, text))
            except (OSError, http.client.HTTPException) as error:
                self.failed.append(error)
                connection.close()
        connection.close()

    def more(self, count):
        """Wait for so many more answers."""
        goal, until_s = self.answered + count, time.monotonic() + WAIT_S
        while self.answered < goal:
            assert time.monotonic() < until_s, self.failed[:3]
            time.sleep(0.01)


def wait_until(holds):
    until_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.02)


def asked_ready(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status


def gateways_of(process):
    """The ids of a parent's gateways, in the order of their start."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            if int(path.read_text().rpartition(")")[2].split()[1]) == process.pid:
                found.append(int(path.parent.name))
    return sorted(filter(is_alive, found))


def hold_the_first(process):
    """Have the first gateway become ready after the second one."""
    wait_until(lambda: len(gateways_of(process)) == 2)
    first, _ = gateways_of(process)
    os.kill(first, signal.SIGSTOP)
    while '"event": "ready"' not in process.stderr.readline():
        assert process.poll() is None
    os.kill(first, signal.SIGCONT)


def test_gateways_of_one_machine_serve_as_one():
    """They share the ports and the record; one that gets SIGTERM loses nothing, and is replaced.

    New connections go to the one that is left, whichever became ready first.
    """
    settings = ("server.gateways=2", "replica.count=3", "server.grpc_port=0")
    with server(*settings, starting=hold_the_first) as (process, facts):
        gateways = facts["gateways"]
        ports = [one["admin_port"] for one in gateways]
        counts = [len(get(port, "admin/replicas")["replicas"]) for port in ports]
        assert sorted(counts) == [1, 2]
        assert facts["grpc_port"]
        late = {"model": str(zoo.find("mnist").path), "name": "late", "version": "1"}
        post(ports[0], "admin/models", late)
        began_s = time.monotonic()
        wait_until(
            lambda: any(one["name"] == "late" for one in get(ports[1], "admin/models")["models"])
        )
        assert time.monotonic() - began_s < 2.0
        with Clients(facts["port"]) as clients:
            clients.more(50)
            os.kill(gateways[0]["pid"], signal.SIGTERM)
            wait_until(lambda: not is_alive(gateways[0]["pid"]))
            clients.more(50)
        # A client may have sent on a connection that was idle: it is told so by the close.
        assert not [
            one
            for one in clients.failed
            if not isinstance(one, OSError | http.client.HTTPException)
        ]
        assert len(clients.failed) <= 4
        wait_until(lambda: sum(map(is_ready, ports)) == 2)
        before = {*gateways_of(process)}
        tokens = [pathlib.Path(one["admin_token_file"]).read_text() for one in gateways]
        os.kill(gateways[1]["pid"], signal.SIGKILL)
        wait_until(lambda: {*gateways_of(process)} - before)
        (started,) = {*gateways_of(process)} - before
        os.kill(started, signal.SIGSTOP)
        assert {asked_ready(facts["port"]) for _ in range(20)} == {200}
        os.kill(started, signal.SIGCONT)
        wait_until(lambda: sum(map(is_ready, ports)) == 2)
        assert {asked_ready(facts["port"]) for _ in range(20)} == {200}
        assert tokens == [pathlib.Path(one["admin_token_file"]).read_text() for one in gateways]
        pids = [gateway["pid"] for gateway in gateways]
        assert not any(map(is_alive, pids))
        assert any(one["name"] == "late" for one in get(ports[1], "admin/models")["models"])


def is_ready(admin_port):
    """Whether a gateway answers on its admin port."""
    try:
        return get(admin_port, "health")["ready"]
    except OSError:
        return False


def test_a_server_that_drains_refuses_new_clients():
    """At once, though a gateway still has a request: nobody waits for what does not come."""
    with (
        server("server.gateways=2", "server.drain_s=20", stop=False) as (process, facts),
        socket.create_connection(("127.0.0.1", facts["port"]), timeout=WAIT_S) as unfinished,
    ):
        unfinished.sendall(b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: localhost\r\n")
        time.sleep(0.3)
        began_s = time.monotonic()
        assert post(facts["gateways"][1]["admin_port"], "admin/shutdown", {}) == {"stopping": True}
        wait_until(lambda: not can_connect(facts["port"]))
        assert time.monotonic() - began_s < 5.0
        assert process.poll() is None
        unfinished.close()
        assert process.wait(WAIT_S) == 0


def test_gateways_end_with_their_parent():
    """Also if it is killed; and its folder goes with the next server."""
    with server("server.gateways=2", stop=False) as (process, facts):
        process.kill()
        process.wait(WAIT_S)
        wait_until(lambda: not any(is_alive(one["pid"]) for one in facts["gateways"]))
    with server("server.gateways=2"):
        pass
    left = pathlib.Path(tempfile.gettempdir()).glob(f"luthier-{process.pid}-*")
    assert not list(left)


def test_a_server_that_cannot_start_says_so_once(tmp_path):
    """Whatever the number of its gateways: one line, and the exit code of one."""
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"nothing")
    words = [sys.executable, "-m", "serving", "--model", str(broken), "--port", "0"]
    words += ["--log-level", "error"]
    done = subprocess.run(
        [*words, "--set", "server.gateways=2"],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 1
    told = [line for line in done.stderr.splitlines() if line.startswith("python -m serving")]
    assert len(told) == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = [sys.executable, "-m", "serving", "--model", "echo", "--port", str(port)]
        done = subprocess.run(
            [*words, "--set", "server.gateways=2"],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "is in use" in done.stderr


# Behind HAProxy


@contextlib.contextmanager
def haproxy(folder, servers):
    """The real HAProxy, with the page's files, before servers; yields its ports for HTTP and gRPC."""
    binary = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin")
    if binary is None:
        pytest.skip("no haproxy here; on Debian: apt-get install haproxy")
    text = "\n".join(
        re.findall(r"```haproxy\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    )
    with (
        socket.create_server(("127.0.0.1", 0)) as one,
        socket.create_server(("127.0.0.1", 0)) as two,
    ):
        port, grpc_port = one.getsockname()[1], two.getsockname()[1]
    places = {"bind :8000": f"bind 127.0.0.1:{port}", "bind :8001": f"bind 127.0.0.1:{grpc_port}"}
    for host, facts in zip(("10.0.0.1", "10.0.0.2"), servers, strict=True):
        own, grpc = facts["port"], facts["grpc_port"]
        places |= {
            f"{host}:8000": f"127.0.0.1:{own}",
            f"{host}:8001": f"127.0.0.1:{grpc} port {own}",
        }
    for name, own in places.items():
        assert name in text
        text = text.replace(name, own)
    file = folder / "haproxy.cfg"
    file.write_text(text)
    with subprocess.Popen(
        [binary, "-db", "-f", str(file)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_until(lambda: process.poll() is None and can_connect(port))
            yield port, grpc_port
        finally:
            process.kill()
            process.stderr.close()


def can_connect(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def test_behind_haproxy_no_request_is_lost():
    """SIGTERM of one of two: none fails. `kill -9` of one: at most what it held."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = pathlib.Path(name)
        _, url = running.enter_context(running_redis(folder))
        settings = (f"server.state_store={url}", "server.drain_delay_s=2.5", "server.grpc_port=0")
        servers = [running.enter_context(server(*settings, stop=False)) for _ in range(3)]
        processes = [process for process, _ in servers]
        facts = [facts for _, facts in servers]
        port, grpc_port = running.enter_context(haproxy(folder, facts[:2]))
        with triton.InferenceServerClient(f"127.0.0.1:{grpc_port}") as client:
            assert client.is_server_ready()
        with Clients(port) as clients:
            clients.more(50)
            processes[0].terminate()
            assert processes[0].wait(WAIT_S) == 0
            clients.more(50)
        assert clients.failed == []
        port, _ = running.enter_context(haproxy(folder, facts[1:]))
        with Clients(port) as clients:
            clients.more(50)
            processes[1].kill()
            clients.more(200)
        assert len(clients.failed) <= 4


def change(port, method, path, body, **fields):
    """The status of a change through an admin port."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body), {**token_fields(port), **fields})
        response = connection.getresponse()
        response.read()
        return response.status, response.headers["ETag"]


def test_two_servers_over_one_redis_are_one_group():
    """A deployment on one is served by the other within 2 s; a stale change is 409; all feedback counts once."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        _, url = running.enter_context(running_redis(pathlib.Path(name)))
        servers = [running.enter_context(server(f"server.state_store={url}")) for _ in range(2)]
        (one, one_admin), (other, other_admin) = (
            (facts["port"], facts["admin_port"]) for _, facts in servers
        )
        _, revision = change(one_admin, "PATCH", "/admin/settings", {"settings": {}})
        app = {"name": "app", "input_type": "bytes", "default_output": "none", "policy": "exp3"}
        post(one_admin, "admin/add_app", {**app, "latency_slo_micros": 5_000_000})
        post(one_admin, "admin/add_model_links", {"app_name": "app", "model_names": ["echo"]})
        began_s = time.monotonic()
        wait_until(lambda: status_of(other, "app") == 200)
        assert time.monotonic() - began_s < 2.0
        stale = {"settings": {"batching.max_size": 2}}
        status, _ = change(other_admin, "PATCH", "/admin/settings", stale, **{"If-Match": revision})
        assert status == 409
        status, _ = change(other_admin, "PATCH", "/admin/settings", stale, **{"If-Match": "seven"})
        assert status == 400
        assert get(other_admin, "admin/settings")["settings"]["batching"]["max_size"] != 2
        told = 100
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            taken = list(
                pool.map(lambda at: teach((one, other)[at % 2], (other, one)[at % 2]), range(told))
            )
        assert taken == [True] * told
        wait_until(lambda: learnt(one_admin) == learnt(other_admin))
        decisions = [
            post(port, "admin/get_state", {"app_name": "app", "uid": ""})["decisions"]
            for port in (one_admin, other_admin)
        ]
        assert sum(one["joined"] for one in decisions) == told


def status_of(port, application):
    """The status of a query; the input is four bytes."""
    try:
        return query(port, application)[0]
    except OSError:
        return 0


def query(port, application):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    with contextlib.closing(connection):
        connection.request("POST", f"/{application}/predict", json.dumps({"input": "AQIDBA=="}))
        response = connection.getresponse()
        return response.status, json.loads(response.read() or b"null")


def teach(asked, told):
    """Ask one gateway, and tell another the true label, at once."""
    _, answer = query(asked, "app")
    label = {"uid": "", "input": "AQIDBA==", "label": "x", "query_id": answer["query_id"]}
    answers = []

    def is_answered():
        # On a busy machine Redis may not answer in 0.1 s: then the feedback may be sent again.
        try:
            answers.append(post(told, "app/update", label))
        except urllib.error.HTTPError as error:
            answers.append((error.code, error.read().decode()))
        return answers[-1][0] != 503

    wait_until(is_answered)
    assert all("does not answer" in text for _, text in answers[:-1])
    return answers[-1] == "Feedback received? 1"


def learnt(admin_port):
    """What the policy has learnt."""
    return post(admin_port, "admin/get_state", {"app_name": "app", "uid": ""})["state"]
