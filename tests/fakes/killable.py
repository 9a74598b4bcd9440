"""Servers as processes that are killed and started again over one state folder, and asked over REST."""

import contextlib
import http.client
import json
import re
import signal
import subprocess
import sys
import time

from tests.fakes.admin import token_fields

WAIT_S = 20.0


class Server:
    """One server process, and where it listens."""

    def __init__(self, process, facts):
        self.process = process
        self.port = facts["port"]
        self.admin_port = facts["admin_port"]
        self.models = facts["models"]

    def request(self, method, path, data=None, *, admin=False):
        """Status and body of one request."""
        port = self.admin_port if admin else self.port
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        with contextlib.closing(connection):
            fields = token_fields(port) if admin else {}
            connection.request(method, path, None if data is None else json.dumps(data), fields)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def ask(self, model, value=1):
        """What a model of this file answers."""
        tensor = {"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [value]}
        status, body = self.request("POST", f"/v2/models/{model}/infer", {"inputs": [tensor]})
        assert status == 200, body
        return json.loads(body)["outputs"][0]["data"][0]

    def ask_zeros(self, model):
        """The outputs of any model for one item of zeros."""
        said = json.loads(self.request("GET", f"/v2/models/{model}")[1])
        inputs = []
        for spec in said["inputs"]:
            shape = [1, *(max(size, 1) for size in spec["shape"][1:])]
            count = 1
            for size in shape:
                count *= size
            inputs.append({**spec, "shape": shape, "data": [0] * count})
        status, body = self.request("POST", f"/v2/models/{model}/infer", {"inputs": inputs})
        assert status == 200, body
        return json.loads(body)["outputs"]

    def pids(self, model=None):
        """Those of the replicas that are ready, of all models or of one that has its own."""
        rows = json.loads(self.request("GET", "/admin/replicas", admin=True)[1])["replicas"]
        return {
            one["pid"]
            for one in rows
            if one["state"] == "ready" and model in {None, one.get("model")}
        }

    def loads(self):
        """How many models were loaded into replicas since this server began."""
        text = self.request("GET", "/metrics", admin=True)[1]
        found = re.findall(r'luthier_pool_actions_total{action="load",.*"} ([0-9.]+)', text)
        return sum(map(float, found))

    def kill(self):
        """As the kernel does it, or a person."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(WAIT_S)

    def stop(self):
        """In order; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


@contextlib.contextmanager
def servers(tmp_path, defaults):
    """Starts servers whose state is in one folder; none is left at the end.

    Gives `serve(*arguments, settings=(), **of_popen)`; their error output is in the file `log`.
    """
    running = []

    def serve(*arguments, settings=(), **of_popen):
        given = {
            "scheduling.default_deadline_s": 10,
            "server.state_dir": tmp_path / "state",
            **defaults,
            **dict(settings),
        }
        words = [word for item in given.items() for word in ("--set", "{}={}".format(*item))]
        command = [sys.executable, "-m", "serving", "--port", "0", "--admin-port", "0"]
        with (tmp_path / "log").open("a") as log:
            process = subprocess.Popen(
                [*command, *words, *arguments],
                stdout=subprocess.PIPE,
                text=True,
                **{"stderr": log, **of_popen},
            )
        running.append(process)
        line = process.stdout.readline()
        assert line, (tmp_path / "log").read_text()
        return Server(process, json.loads(line))

    yield serve
    for process in running:
        with process:
            process.terminate()


def wait_for(condition, what):
    """Fail where it does not come true."""
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s, what
        time.sleep(0.02)
