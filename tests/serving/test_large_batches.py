"""Requests and answers around the size of a message, with real replicas: a message is made a megabyte here."""

import json
import logging
import pathlib
import threading
import time

import pytest

from serving import wire
from serving.model_spec import ModelSpec
from serving.spawners.process.spawner import ProcessSpawner
from serving.values import Tensor
from serving.wire import batches
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway

pytestmark = pytest.mark.usefixtures("quick_starts")

MESSAGE_BYTES = 1_000_000
MODEL = f"""
import time

import numpy as np

from serving.wire import batches

batches.MAX_RESULT_BYTES = {MESSAGE_BYTES}


class Wide:
    '''Answers with as many hundred thousand elements as it is told; 99 takes a while.'''

    inputs = outputs = [{{"name": "x", "datatype": "UINT8", "shape": [-1, -1]}}]
    sample_inputs = {{"x": np.ones((1, 1), np.uint8)}}

    def predict_batch(self, inputs):
        wanted = int(inputs["x"][0, 0])
        if wanted == 99:
            time.sleep(0.3)
            wanted = 0
        return {{"x": np.full((len(inputs["x"]), 1 + 100_000 * wanted), wanted, np.uint8)}}
"""


class Processes(ProcessSpawner):
    """Replicas are processes."""

    def __init__(self):
        super().__init__()
        self.release = threading.Event()


@pytest.fixture(name="running", params=["adaptive", "clockwork"])
def _running(request, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "DEFAULT_MAX_MESSAGE_BYTES", MESSAGE_BYTES)
    file = tmp_path / "wide.py"
    file.write_text(MODEL)
    path = pathlib.Path(f"{file}:Wide")
    card = ModelSpec(name="wide", version="1", kind="python", path=path)
    settings = {
        "scheduling.policy": request.param,
        "batching.max_size": 8,
        "scheduling.default_deadline_s": 10.0,
    }
    with gateway(settings, Processes(), card) as running:
        yield running


def ask(running, wanted, size):
    """A request of so many bytes for an answer of so many hundred thousand; returns status, and its size or error."""
    tensor = {"name": "x", "shape": [1, size], "datatype": "UINT8"}
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": size}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    fields = {"Inference-Header-Content-Length": str(len(head))}
    body = head + bytes([wanted]) * size
    status, fields, answer = running.request("POST", "/v2/models/wide/infer", body, fields)
    if status != 200:
        return status, json.loads(answer)["error"]
    start = int({name.lower(): value for name, value in fields.items()}[HEADER])
    assert set(answer[start:]) == {wanted % 99}
    return status, len(answer) - start


HEADER = "inference-header-content-length"


def together(running, count, wanted, size):
    """So many such requests, which wait for the same worker."""
    answers = []
    threads = [threading.Thread(target=ask, args=(running, 99, 1)) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)  # the replica is busy
    threads += [
        threading.Thread(target=lambda: answers.append(ask(running, wanted, size)))
        for _ in range(count)
    ]
    for thread in threads[2:]:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers


def test_requests_too_large_for_one_message_go_one_by_one(running, caplog):
    """Each of them fits, and two do not; one that does not fit alone is told so at once."""
    with caplog.at_level(logging.INFO, "serving.deployment.dispatch"):
        for _ in range(10):  # on a busy machine they may come one after the other
            caplog.clear()
            assert together(running, 4, 1, 600_000) == [(200, 100_001)] * 4
            made = [one.message for one in caplog.records if "too large" in one.message]
            if made:
                break
    assert 0 < len(made) <= 4
    status, error = ask(running, 1, MESSAGE_BYTES)
    assert (status, "larger than a message" in error) == (413, True)
    assert running.json("GET", "/admin/replicas", admin=True)[1]["deaths"] == []


def test_answers_too_large_for_one_message_are_asked_for_one_by_one(running):
    """As with requests; one that does not fit alone fails alone."""
    assert together(running, 4, 6, 10) == [(200, 600_001)] * 4
    status, error = ask(running, 10, 10)
    assert (status, "too large for one message" in error) == (500, True)
    assert ask(running, 2, 10) == (200, 200_001)
    assert running.json("GET", "/admin/replicas", admin=True)[1]["deaths"] == []


@pytest.fixture(name="limited", scope="module")
def _limited(tmp_path_factory):
    """Replicas that may answer a megabyte, as a setting says."""
    file = tmp_path_factory.mktemp("limited") / "wide.py"
    file.write_text(MODEL.replace(f"batches.MAX_RESULT_BYTES = {MESSAGE_BYTES}", ""))
    card = ModelSpec(name="wide", version="1", kind="python", path=pathlib.Path(f"{file}:Wide"))
    with gateway({"replica.max_response_mb": 1}, Processes(), card) as running:
        yield running


def test_a_replica_keeps_to_what_the_gateway_takes_of_it(limited):
    """It is told, so that answers that are too large together come one by one, and one alone is an error."""
    assert together(limited, 4, 6, 10) == [(200, 600_001)] * 4
    status, error = ask(limited, 11, 10)
    assert (status, "too large for one message" in error) == (500, True)
    assert ask(limited, 2, 10) == (200, 200_001)
    assert limited.json("GET", "/admin/replicas", admin=True)[1]["deaths"] == []


def test_a_replica_that_answers_more_than_it_may_is_ended():
    """It is a program of its own, which was told; whoever it answers well is answered."""
    home = FakeHome()
    echo, large = home.answer, bytes(2**21)

    def answer(model, frame):
        tensor = Tensor("data", "UINT8", (1, len(large)), large)
        is_large = bytes(frame).endswith(b"\7")
        return wire.encode_descriptor([tensor]) + large if is_large else echo(model, frame)

    home.answer = answer
    with gateway({"replica.max_response_mb": 1}, home) as running:
        found = []
        for value in (7, 8):
            item = {"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [value]}
            found.append(running.json("POST", "/v2/models/echo/infer", {"inputs": [item]}))
        assert [status for status, _ in found] == [500, 200]
        assert "above the limit of 1048576" in found[0][1]["error"]
        assert len(running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]) == 2


def test_answers_of_a_split_request_are_bounded_together():
    """Each of its parts may be answered so, and all of them would be more than a replica may answer at once."""
    home = FakeHome()
    wide = Tensor("data", "UINT8", (1, 2**18), bytes(2**18))
    home.answer = lambda _model, _frame: wire.encode_descriptor([wide]) + wide.data
    settings = {"replica.max_response_mb": 1, "batching.max_size": 1}
    with gateway(settings, home) as running:
        found = []
        for items in (3, 64, 1):
            item = {"name": "data", "shape": [items, 1], "datatype": "UINT8", "data": [1] * items}
            wanted = {"inputs": [item], "parameters": {"binary_data_output": True}}
            status, _, body = running.request(
                "POST", "/v2/models/echo/infer", json.dumps(wanted).encode()
            )
            found.append(status)
            assert status == 200 or b"too large for one message" in body
        assert found == [200, 500, 200]
        assert sum(map(len, (replica.batches for replica in home.replicas))) < 20
        assert running.json("GET", "/admin/replicas", admin=True)[1]["deaths"] == []
