"""A request that was answered leaves nothing to the garbage collector, which stops the server while it runs."""

import gc
import json
import random
import socket

import pytest

from serving.api.clipper.routes import ClipperRoutes
from serving.api.clipper.service import ClipperService
from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from serving.engine.applications import Applications
from serving.metrics.clipper_metrics import Registry
from serving.selection.application import Application
from serving.selection.stores.state_store import MemoryStore
from tests.fakes.running import gateway

REQUESTS = 100

OIP = "/v2/models/echo/infer"
TFS = "/v1/models/echo:predict"


@pytest.fixture(scope="module", params=[0, 8], ids=["no cache", "cache"])
def running(request):
    """A gateway with the REST protocols, and an application of Clipper's over its model."""
    with gateway({"cache.capacity_mb": request.param}) as running:
        engine = running.engine
        applications = running.do(lambda: Applications(engine, MemoryStore()))
        clipper = ClipperService(engine, applications)
        application = Application(
            name="app", input_type="integers", default_output="-1", models=("echo",)
        )
        running.do(applications.add, application)
        running.listener.routes = Router(
            oip=OpenInferenceRoutes(engine),
            tfs=TensorFlowRoutes(engine),
            otherwise=ClipperRoutes(clipper, metrics=Registry(random.Random(0))),
        )
        yield running


def bodies(path, turn=0):
    """Bodies for a path; each is used twice, so that a cache has something to keep."""
    for number in range(turn * REQUESTS // 2, (turn + 1) * REQUESTS // 2):
        if path == OIP:
            tensor = {"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [number]}
            text = json.dumps({"inputs": [tensor]})
        elif path == TFS:
            text = json.dumps({"instances": [[number]]})
        else:
            text = json.dumps({"input": [number]})
        yield from (text, text)


def answered(stream, path, text):
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n"
    stream.write(head.encode() + text.encode())
    stream.flush()
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    stream.read(length)
    return status


@pytest.mark.parametrize("path", [OIP, TFS, "/app/predict"])
def test_answered_requests_are_no_garbage(running, path):
    """What a request had is freed when it is answered, without the collector's help."""
    with (
        socket.create_connection(("127.0.0.1", running.port), 10) as sock,
        sock.makefile("rwb") as stream,
    ):
        assert answered(stream, path, next(bodies(path))) == 200
        left = []
        gc.disable()
        try:
            for turn in range(3):  # other threads of the process leave something now and then
                gc.collect()
                assert {answered(stream, path, text) for text in bodies(path, turn)} == {200}
                left.append(gc.collect())
                if left[-1] < REQUESTS // 2:
                    break
        finally:
            gc.enable()
    assert min(left) < REQUESTS // 2
