"""Clipper's management beside replicas that models share, which are processes."""

import pytest

from serving.engine import facts
from tests.fakes.running import gateway
from tests.serving.api.clipper.test_service import Management, model, start
from tests.serving.deployment.test_shared_pool import Processes

pytestmark = pytest.mark.processes


def test_replicas_that_models_share_are_no_model_s_containers():
    """The pool's replicas have no model; those that models have for themselves are listed beside them."""
    settings = {"scheduling.policy": "clockwork", "models.m.scheduling.policy": "adaptive"}
    with gateway(settings, Processes()) as running:
        manage = Management(running)
        assert manage("start_containers", **start("1", num_replicas=1))[0] == 200
        assert manage("add_model", **model("1"))[0] == 200
        assert len(running.do(facts.replicas, running.engine)["replicas"]) == 2
        assert manage.told("get_all_containers", verbose=False) == ["m:1:0"]
