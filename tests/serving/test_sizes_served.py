"""Requests of different sizes, and models that are served whole, through a gateway with real replicas."""

import concurrent.futures
import json

import pytest

from serving.errors import ServingError
from serving.model_spec import ModelSpec
from tests.fakes.running import gateway
from tests.serving.deployment.test_shared_pool import Processes
from tests.serving.models.test_onnx import FLOAT32, identity

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("quick_starts")]

INFER = "/v2/models/m/infer"


@pytest.fixture
def card(tmp_path):
    """Cards of identities of FP32 with these shapes."""

    def made(*shape, **told):
        path = tmp_path / "m.onnx"
        path.write_bytes(identity(FLOAT32, list(shape)))
        return ModelSpec(name="m", version="1", kind="onnx", path=path, **told)

    return made


def ask(running, *values):
    """One request of one row; returns what comes back, or the error."""
    tensor = {"name": "in", "shape": [1, len(values)], "datatype": "FP32", "data": values}
    status, answer = running.json("POST", INFER, {"inputs": [tensor]})
    assert status == 200, answer
    (output,) = answer["outputs"]
    return output["shape"], output["data"]


def test_requests_of_all_lengths_share_a_call_where_they_are_filled_up(card):
    """And each gets its own length back; with another multiple new replicas are made, without a failed request."""
    settings = {"batching.pad_to": 8, "batching.max_size": 16, "batching.timeout_us": 100_000}
    with gateway(settings, Processes(), card("n", "t", shapes=("t=5..20",), pad={"in": 7})) as got:
        metadata = got.json("GET", "/v2/models/m")[1]
        assert metadata["parameters"] == {"unbatched": "", "padding": ""}
        lengths = [1, 3, 5, 7, 8, 9, 15, 16, 2, 4, 6, 8, 1, 3, 5, 7]
        requests = [[float(place)] * length for place, length in enumerate(lengths)]
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda values: ask(got, *values), requests))
        assert answers == [([1, len(values)], values) for values in requests]
        body = json.dumps({"settings": {"batching.pad_to": 4}})
        assert got.request("PATCH", "/admin/settings", body, admin=True)[0] == 200
        assert ask(got, 1.0, 2.0, 3.0) == ([1, 3], [1.0, 2.0, 3.0])


def test_nothing_is_filled_up_without_a_value(card, caplog):
    """The setting does nothing, and the log says what is missing."""
    with gateway({"batching.pad_to": 8}, Processes(), card("n", "t", shapes=("t=5",))) as got:
        assert got.engine.settings.batching.pad_to == 8
        assert ask(got, 1.0) == ([1, 1], [1.0])
    assert any("model.pad" in getattr(record, "reason", "") for record in caplog.records)


def test_a_size_that_nobody_told_is_said_once(card, caplog):
    """By name, with what to add; two replicas do not say it twice."""
    with gateway({"replica.count": 2}, Processes(), card("n", "t")) as got:
        assert ask(got, 1.0, 2.0) == ([1, 2], [1.0, 2.0])
    said = [record for record in caplog.records if record.getMessage() == "not warmed up"]
    assert len(said) == 1
    assert "input 'in', axis 1 (t)" in said[0].reason


def test_a_model_without_items_is_served_whole(card):
    """Its reason stands in the metadata; requests come back as they went, whatever their first dimension."""
    with gateway({"batching.max_size": 8}, Processes(), card("sequence", "t")) as got:
        assert "'sequence'" in got.json("GET", "/v2/models/m")[1]["parameters"]["unbatched"]
        tensor = {"name": "in", "shape": [20, 1], "datatype": "FP32", "data": [1.0] * 20}
        status, answer = got.json("POST", INFER, {"inputs": [tensor]})
        assert (status, answer["outputs"][0]["shape"]) == (200, [20, 1])


def test_a_size_of_an_unknown_name_is_refused(card):
    with (
        pytest.raises(ServingError, match="no such input or free dimension"),
        gateway({}, Processes(), card("n", "t", shapes=("height=5",))),
    ):
        pass
