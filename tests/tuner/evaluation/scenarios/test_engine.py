"""A scenario as an engine that a study launches: live where that is the same, anew where it is not."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import sqlite3
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from serving import zoo
from tuner.errors import LaunchFailed
from tuner.evaluation.scenarios import files
from tuner.evaluation.scenarios.engine import ScenarioLauncher, ScenarioServer, is_live
from tuner.evaluation.scenarios.requests import ScenarioRequests
from tuner.evaluation.scenarios.values import Scenario
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.processes

TEXT = """
seconds: 60
seed: 7
memory_pages: 2
models:
  one: {model: mnist}
  two: {copies: 2, model: echo}
traffic:
  one: {rate: 40, deadline_ms: 100}
  two: {rate: 40, deadline_ms: 100}
settings: {batching.max_size: 4}
"""


OWN = """
seconds: 60
models: {m: {model: net.onnx}}
traffic: {m: {rate: 40, deadline_ms: 100}}
"""


@pytest.fixture(name="scenario", scope="module")
def _scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    path = tmp_path_factory.mktemp("engine") / "toy.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return files.read(path)


@pytest.fixture(name="server", scope="module")
def _server(scenario: Scenario) -> Iterator[ScenarioServer]:
    launcher = ScenarioLauncher(scenario)
    server = launcher.start(None)
    yield server
    server.stop()
    launcher.close()
    assert not server.is_running()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, True),
        ({"clockwork.duration_margin": 0.3}, True),
        ({"clockwork.memory_mb": 64, "replica.count": 2}, True),
        ({"batching.max_size": 8}, False),  # the sizes that a profile has
        ({"clockwork.page_mb": 2.0}, False),
        ({"scheduling.policy": "adaptive"}, False),
        ({"clockwork.schedule_ahead_ms": 10.0}, True),
    ],
)
def test_what_a_running_server_can_become(
    scenario: Scenario, changed: dict[str, int | float | str], *, expected: bool
) -> None:
    """Whatever is live, but for what models are profiled for when they are deployed."""
    now = ScenarioLauncher(scenario).defaults
    assert is_live(now, Configuration({**now, **changed})) is expected


def test_it_tells_of_itself(server: ScenarioServer) -> None:
    """The scenario's name stands for its models."""
    told = server.describe()
    assert (told.model, told.kind, told.signature) == ("toy", "scenario", None)
    assert told.engine == "luthier"
    assert told.max_model_mb is not None
    assert told.max_model_mb <= 2.0, "they have room in two pages of 1 MiB"
    facts = server.replica_facts()
    assert facts.deaths == ()
    assert len(facts.pids) >= 1


def test_launches_are_live_or_anew(server: ScenarioServer) -> None:
    """The same process for a live setting, another one for the size of batches."""
    server.apply(Configuration({}))
    (first,) = server.pids
    server.apply(Configuration({"clockwork.duration_margin": 0.3}))
    assert server.pids == (first,)
    server.apply(Configuration({"batching.max_size": 2}))
    assert server.pids != (first,)
    now = server._process
    assert now is not None
    settings = now.admin.settings()["settings"]
    assert settings["batching"]["max_size"] == 2
    assert (settings["clockwork"]["duration_margin"], settings["clockwork"]["memory_mb"]) == (
        0.1,
        2,
    )


def test_a_budget_without_room_for_a_model_is_a_launch_that_failed(server: ScenarioServer) -> None:
    """With the server's line; the next launch starts another one."""
    with pytest.raises(LaunchFailed, match="takes 1 pages of 4 MiB, but a replica's budget is 0"):
        server.apply(Configuration({"clockwork.page_mb": 4.0}))
    assert not server.is_running()
    with pytest.raises(LaunchFailed, match="there is no server"):
        server.replica_facts()
    server.apply(Configuration({}))
    assert server.is_running()


def test_requests_are_drawn_for_each_seed(server: ScenarioServer, scenario: Scenario) -> None:
    """One seed is one schedule; another one is another; all for as long as a launch lasts."""
    server.apply(Configuration({}))
    requests = ScenarioRequests(scenario)
    first = requests.load(server.host, server.port, seed=0, seconds=2.0)
    assert requests.load(server.host, server.port, seed=0, seconds=2.0) is first
    other = requests.load(server.host, server.port, seed=1, seconds=2.0)
    again = requests.load(server.host, server.port, seed=0, seconds=2.0)
    assert again.plan.offsets_s == first.plan.offsets_s != other.plan.offsets_s
    for load in (first, other):
        assert 0 < len(load.plan.offsets_s) == len(load.mixture.order)
        assert np.all(np.diff(load.plan.offsets_s) > 0)
        assert load.plan.offsets_s[-1] < 2.0
    assert requests.description == "random inputs for two", "mnist has samples"


def test_samples_of_a_model_of_one_s_own_are_sent(tmp_path: pathlib.Path) -> None:
    """`net.samples.npz` beside `net.onnx`, as where it is tuned alone; without it inputs are random."""
    model = zoo.find("mnist").path
    assert model is not None
    shutil.copy(model, tmp_path / "net.onnx")
    (tmp_path / "own.yaml").write_text(OWN, encoding="utf-8")
    scenario = files.read(tmp_path / "own.yaml")
    assert ScenarioRequests(scenario).description == "random inputs for m"
    given = (np.arange(3 * 784) % 251).astype(np.uint8).reshape(3, 1, 28, 28)
    np.savez(tmp_path / "net.samples.npz", image=given)
    requests = ScenarioRequests(scenario)
    assert (requests.is_synthetic, requests.description) == (False, "samples of the models")
    launcher = ScenarioLauncher(scenario)
    server = launcher.start(None)
    try:
        load = requests.load(server.host, server.port, seed=0, seconds=1.0)
    finally:
        server.stop()
        launcher.close()
    sent = {body[-given[0].nbytes :] for body in load.mixture.bodies}
    assert sent == {one.tobytes() for one in given}


def test_what_one_launch_has_measured_the_next_one_knows(scenario: Scenario) -> None:
    """A new server measures nothing anew where nothing changed for a profile, and all where its limits did."""
    launcher = ScenarioLauncher(scenario)

    def measured_after(changes: Mapping[str, float]) -> dict[str, str]:
        """What is kept, by what it depends on, when a server has started and ended."""
        launcher.start(Configuration(changes)).stop()
        with contextlib.closing(sqlite3.connect(launcher.profiles / "profiles.db")) as disk:
            return dict(disk.execute("SELECT name, text FROM records"))

    try:
        first = measured_after({})
        assert len(first) == 1, "mnist; echo has no file by which it could be known"
        assert measured_after({"clockwork.duration_margin": 0.5, "replica.count": 2}) == first
        slower = measured_after({"replica.cpu": 0.5})
        assert len(slower) == 2
        assert slower.items() > first.items()
        folder = launcher.profiles
    finally:
        launcher.close()
    assert not folder.exists()
