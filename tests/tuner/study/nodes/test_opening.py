"""Opening machines: errors name the machine, and a signal waits for none."""

from __future__ import annotations

import threading
import time

import pytest

from tests.tuner.study.nodes.test_fleet import ToyNode
from tuner.errors import NodeLost, UsageError
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.study import targets
from tuner.study.nodes.opening import notes_on, open_fleet, open_node, thread_for_each
from tuner.values.configuration import Configuration

WAIT_S = 30.0


class Refusing(ToyNode):
    """A machine on which the model does not start."""

    def open(self, first: Configuration) -> dict[str, object]:
        raise NodeLost(self.name, "no licence")


def test_a_model_that_does_not_start_comes_with_the_machine() -> None:
    with pytest.raises(UsageError, match=r"^--workers: on the machine b: no licence$"):
        open_node(Refusing("b"), Configuration({}))


def test_a_hub_that_measures_too_is_noted_once() -> None:
    nodes = [ToyNode("a"), ToyNode("b")]
    assert not list(notes_on(nodes))
    nodes[1].is_here = True
    (note,) = notes_on(nodes)
    assert note.startswith("`tune` runs on the machine b, which measures: ")


def test_a_signal_does_not_wait_for_the_machines() -> None:
    release = threading.Event()
    begun_s = time.monotonic()
    with pytest.raises(KeyboardInterrupt), thread_for_each([ToyNode("a")]) as threads:
        threads.submit(release.wait, WAIT_S)
        raise KeyboardInterrupt
    assert time.monotonic() - begun_s < WAIT_S / 2
    release.set()


def test_a_running_server_is_not_measured_from_several_machines() -> None:
    """Each would set its own configuration on the same server."""
    target = TargetSettings(model="m", concurrency=1, engine="url:http://h:1", hook="true")
    settings = StudySettings(target=target, search=SearchSettings(workers="2"))
    with (
        pytest.raises(UsageError, match=r"^--workers 2: .*--engine url:http://h:1 is one server"),
        open_fleet(settings, targets.find_target(target)),
    ):
        pass
