"""Forms of one model, changed while it is served: over real sockets, with replicas that are threads."""

import asyncio
import json
import pathlib

import pytest

from serving.errors import InvalidSettings
from serving.model_spec import ModelSpec, Variant
from tests.fakes.replicas import FakeHome
from tests.fakes.running import gateway

LARGE, SMALL = pathlib.Path("/models/large.onnx"), pathlib.Path("/models/small.onnx")
CARD = ModelSpec(
    name="echo",
    version="1",
    kind="echo",
    path=LARGE,
    variants={
        "small": Variant(SMALL, {"metric": "accuracy", "value": 0.8}),
        "large": Variant(LARGE, {"metric": "accuracy", "value": 0.9}),
    },
)
BODY = json.dumps({"inputs": [{"name": "data", "shape": [1, 1], "datatype": "UINT8", "data": [1]}]})


def loaded(home):
    """The files that replicas were told to load, in order."""
    return [pathlib.Path(message.path) for message in home.loads]


def patch(running, settings):
    status, answer = running.json("PATCH", "/admin/settings", {"settings": settings}, admin=True)
    return status, answer


def test_a_variant_is_loaded_by_new_replicas_and_the_old_ones_leave():
    """And back; other settings leave the replicas alone."""
    home = FakeHome()
    with gateway({"replica.count": 2}, home, CARD) as running:
        assert loaded(home) == [LARGE] * 2
        assert patch(running, {"model.variant": "small"})[0] == 200
        assert loaded(home) == [LARGE] * 2 + [SMALL] * 2
        replicas = running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]
        assert [replica["state"] for replica in replicas] == ["ready"] * 2
        assert running.request("POST", "/v2/models/echo/infer", BODY)[0] == 200
        assert patch(running, {"batching.max_size": 2, "replica.count": 1})[0] == 200
        assert len(home.loads) == 4
        assert patch(running, {"models.echo.model.variant": "large"})[0] == 200
        assert loaded(home)[4:] == [LARGE]


def test_it_can_be_chosen_from_the_start():
    """One that dies is replaced by the same variant."""
    home = FakeHome()
    with gateway({"model.variant": "small"}, home, CARD) as running:
        assert loaded(home) == [SMALL]
        running.do(home.replicas[0].die)
        running.call(_until_loaded(home, 2))
        assert loaded(home) == [SMALL] * 2


async def _until_loaded(home, count):
    async with asyncio.timeout(5):
        while len(home.loads) < count:
            await asyncio.sleep(0.005)


def test_a_variant_that_there_is_not_changes_nothing():
    """At the start nothing is left running; while it serves the old one serves on."""
    home = FakeHome()
    with gateway({}, home, CARD) as running:
        status, answer = patch(running, {"model.variant": "smal"})
        assert status == 400
        assert "did you mean 'small'" in answer["error"]
        assert loaded(home) == [LARGE]
        assert running.json("GET", "/admin/settings", admin=True)[1]["generation"] == 1
    with pytest.raises(InvalidSettings, match="its variants are small, large"):  # noqa: SIM117
        with gateway({"model.variant": "none"}, FakeHome(), CARD):
            pass


def test_answers_of_another_variant_are_not_kept():
    """The cache is emptied, also where what was learnt is to be kept."""
    home = FakeHome()
    with gateway({"cache.capacity_mb": 1}, home, CARD) as running:
        for _ in range(2):
            running.request("POST", "/v2/models/echo/infer", BODY)
        assert sum(map(len, (replica.batches for replica in home.replicas))) == 1
        settings = running.engine.settings.with_changes({"model.variant": "small"})
        running.call(running.engine.apply(settings, keep_learned=True))
        running.request("POST", "/v2/models/echo/infer", BODY)
        assert sum(map(len, (replica.batches for replica in home.replicas))) == 2
