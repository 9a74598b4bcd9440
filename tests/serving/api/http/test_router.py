"""The query port's protocols beside one another, on one kept-alive connection."""

import http.client
import json

import pytest

from serving.api.http.messages import Response
from serving.api.http.router import Router
from serving.api.open_inference.routes import OpenInferenceRoutes
from serving.api.tensorflow.rest_routes import TensorFlowRoutes
from tests.fakes.running import gateway

OIP_BODY = json.dumps(
    {"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [7]}]}
)


class Others:
    """Takes what no protocol takes."""

    def handle(self, head, body, connection):
        return Response(200, b"", head.path.encode())


@pytest.fixture(scope="module")
def running():
    with gateway() as it:
        it.listener.routes = Router(
            oip=OpenInferenceRoutes(it.engine),
            tfs=TensorFlowRoutes(it.engine, metrics=lambda: iter([b"a_metric 1\n"])),
            otherwise=Others(),
        )
        yield it


def test_protocols_take_turns_on_a_connection(running):
    """Each request reaches its protocol, also when its head is known already."""
    client = http.client.HTTPConnection("127.0.0.1", running.port, timeout=10)
    for _ in range(3):
        client.request("POST", "/v2/models/echo/infer", OIP_BODY)
        assert json.load(client.getresponse())["outputs"][0]["data"] == [7]
        client.request("POST", "/v1/models/echo:predict", '{"instances": [[7]]}')
        assert json.load(client.getresponse()) == {"predictions": [[7]]}
        client.request("POST", "/app/predict", "{}")
        assert client.getresponse().read() == b"/app/predict"
    client.close()


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v2", b"luthier"),
        ("/v2?x=/v1/", b"luthier"),
        ("/v2/health/live", b"live"),
        ("/V1/models/echo", b"AVAILABLE"),
        ("/monitoring/prometheus/metrics", b"a_metric 1\n"),
        ("/v1", b"no route '/v1'; the protocol's routes begin with /v1/models"),
        ("/v20/models", b"/v20/models"),
        ("/app/v1/predict", b"/app/v1/predict"),
        ("/", b"/"),
        ("*", b"*"),
    ],
)
def test_paths(running, path, answer):
    """The first part of the path decides."""
    assert answer in running.request("GET", path)[2]
