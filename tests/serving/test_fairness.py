"""Applications that share a model, from their clients' side: floods, priorities, copies, and clients that leave."""

import asyncio
import contextlib
import json
import random
import socket
import time

import pytest

from serving.api.clipper.routes import ClipperRoutes
from serving.api.clipper.service import ClipperService
from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.engine.applications import Applications
from serving.metrics.clipper_metrics import Registry
from serving.model_spec import ModelSpec
from serving.scheduling.interface import BACKGROUND
from serving.selection.application import Application
from serving.selection.stores.state_store import MemoryStore
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway
from tests.fakes.submissions import heard, submissions

INFER = "/v2/models/echo/infer"
QUESTION = 2
"""The value of the questions that are asked beside a flood."""


def body(value=1, **parameters):
    tensor = {"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [value]}
    return json.dumps({"inputs": [tensor], "parameters": parameters})


def until(condition, seconds=5.0):
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.005)
    return False


def deploy(running, name, version="1", *, current=True):
    card = ModelSpec(name=name, version=version, kind="echo", path=None)
    running.call(running.engine.deploy(card, current=current))


@contextlib.contextmanager
def port(home=None, **values):
    """A gateway with the three REST protocols on its port, and Clipper's applications."""
    with gateway(values, home) as running:
        engine = running.engine
        running.applications = running.do(lambda: Applications(engine, MemoryStore()))
        clipper = ClipperService(engine, running.applications)
        running.listener.routes = Router(
            oip=OpenInferenceRoutes(engine),
            tfs=TensorFlowRoutes(engine),
            otherwise=ClipperRoutes(clipper, metrics=Registry(random.Random(0))),
        )
        yield running


@pytest.fixture(name="running", scope="module")
def _running():
    with port() as running:
        yield running


def flood_and_ask(running, *, clients, pause_s, questions):
    """One application asks from many connections, whatever the answers; the other one question after another.

    Returns:
        Statuses of the flood; those of the questions.
    """

    def request(application):
        text = body(QUESTION if application == "quiet" else 1).encode()
        head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nX-Application: {application}\r\nContent-Length: {len(text)}\r\n"
        return head.encode() + b"\r\n" + text

    async def ask(streams, application):
        reader, writer = streams
        writer.write(request(application))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await reader.readexactly(length)
        return int(head.split()[1])

    async def flood(statuses):
        streams = await asyncio.open_connection("127.0.0.1", running.port)
        try:
            while True:
                statuses.append(await ask(streams, "flood"))
                await asyncio.sleep(pause_s)
        finally:
            streams[1].close()

    async def work():
        statuses = []
        floods = [asyncio.create_task(flood(statuses)) for _ in range(clients)]
        streams = await asyncio.open_connection("127.0.0.1", running.port)
        await asyncio.sleep(0.3)
        answers = [await ask(streams, "quiet") for _ in range(questions)]
        streams[1].close()
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        return statuses, answers

    return asyncio.run(work())


class Turns(FakeHome):
    """Batches of 50 ms; it writes down the numbers of those that questions were in."""

    def __init__(self):
        super().__init__()
        self.exec_s = 0.05
        self.turns = []

    def begun(self):
        """How many batches its replica has begun."""
        return len(self.replicas[0].batches)

    def answer(self, model, frame):
        if bytes(frame).endswith(bytes([QUESTION])):
            self.turns.append(self.begun())
        return frame


def test_a_flood_does_not_starve_another_application():
    """80 requests a second can be answered, ten times as many come: the other's wait for a few batches at most."""
    home, asked = Turns(), []

    def hear(event):
        if event.flow == "quiet":
            asked.append(home.begun())

    settings = {"batching.max_size": 4, "scheduling.queue_capacity": 64}
    with gateway(settings, home) as running, heard(running, hear):
        statuses, answers = flood_and_ask(running, clients=120, pause_s=0.1, questions=6)
    assert statuses.count(429) > 100
    assert statuses.count(200) > 30
    assert answers == [200] * 6
    # One batch runs, one is buffered, the third is its own; behind the full queue it were the 18th.
    assert all(turn - before <= 6 for before, turn in zip(asked, home.turns, strict=True))


@pytest.mark.parametrize(
    ("path", "text", "fields", "expected"),
    [
        (INFER, body(), {}, (0, "")),
        (INFER, body(priority=3), {}, (3, "")),
        (INFER, body(priority=1), {"X-Application": "digits"}, (1, "digits")),
        ("/v1/models/echo:predict", '{"instances": [[1]]}', {}, (0, "")),
        ("/v1/models/echo:predict", '{"instances": [[1]]}', {"x-application": "a b"}, (0, "a b")),
    ],
)
def test_whose_request_it_is_and_how_urgent(running, path, text, fields, expected):
    """The field X-Application and the parameter priority reach the queue."""
    with submissions(running) as seen:
        for _ in range(2):  # the second head is remembered
            assert running.request("POST", path, text, fields)[0] == 200
    assert seen == [expected] * 2


def test_an_application_of_clipper_is_a_flow(running):
    """By its name, over its own route."""
    application = Application(
        name="digits",
        input_type="integers",
        default_output="-1",
        models=("echo",),
        latency_slo_s=30.0,
    )
    running.do(running.applications.add, application)
    with submissions(running) as seen:
        status, answer = running.json("POST", "/digits/predict", {"input": [5]})
    assert (status, answer["output"]) == (200, [5])
    assert seen == [(0, "digits")]


def test_a_shadow_gets_its_copies_in_the_background():
    """They are of the application that asked, and less urgent than all that can be asked for."""
    with gateway() as running:
        deploy(running, "echo", "2", current=False)
        running.do(running.engine.catalogue.set_shadow, "echo", "2")
        with submissions(running) as seen, submissions(running, 1) as copies:
            fields = {"X-Application": "digits"}
            assert running.request("POST", INFER, body(priority=1), fields)[0] == 200
            assert until(lambda: copies)
        assert (seen, copies) == ([(1, "digits")], [(BACKGROUND, "digits")])


def test_equal_requests_of_two_applications_wait_apart():
    """Neither waits in the other's turn; what one was answered is kept for both."""
    home = FakeHome()
    home.hold.set()
    with gateway({"cache.capacity_mb": 1, "batching.max_size": 1}, home) as running:
        clients = [connected(running) for _ in range(3)]
        for client, name in zip(clients, ["a", "b", "a"], strict=True):
            post(client, INFER, body(5), name)
        cache = running.engine.deployments()[0].cache
        assert until(lambda: running.do(lambda: cache.shared) == 1)
        assert until(lambda: running.do(lambda: running.engine.inflight_count) == 2)
        home.hold.clear()
        home.release.set()
        for client in clients:
            assert client.recv(4096).startswith(b"HTTP/1.1 200")
            client.close()
        status, _, _ = running.request("POST", INFER, body(5), {"X-Application": "c"})
        assert status == 200
        assert sum(len(replica.batches) for replica in home.replicas) == 2


def connected(running):
    return socket.create_connection(("127.0.0.1", running.port), 5)


def post(client, path, text, application=""):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nX-Application: {application}\r\nContent-Length: {len(text)}\r\n\r\n"
    client.sendall((head + text).encode())


def test_a_client_of_clipper_that_leaves_takes_all_its_queries_back():
    """A batch of queries to several models: what waits of it, for whichever model, never reaches a replica."""
    home = FakeHome()
    home.hold.set()
    with port(home, **{"batching.max_size": 1}) as running:
        for name in ("two", "three"):
            deploy(running, name)
        application = Application(
            name="votes",
            input_type="integers",
            default_output="-1",
            models=("echo", "two", "three"),
            policy="exp4",
            latency_slo_s=30.0,
        )
        running.do(running.applications.add, application)
        with connected(running) as client:
            post(client, "/votes/predict", '{"input_batch": [[1], [2], [3], [4]]}')
            assert until(lambda: running.do(lambda: running.engine.inflight_count) == 12)
        assert until(lambda: running.do(lambda: running.engine.inflight_count) == 0)
        waiting = [one.dispatcher.waiting_of(one.id) for one in running.engine.deployments()]
        assert waiting == [0, 0, 0]
        home.hold.clear()
        home.release.set()
        status, answer = running.json("POST", "/votes/predict", {"input": [7]})
        assert (status, answer["default"]) == (200, False)
        # Two batches of each model were with its replica before the client left, then the question.
        assert [sum(replica.batches) for replica in home.replicas] == [3, 3, 3]
