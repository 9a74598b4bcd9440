"""Replicas that must leave their machine, and replacements that wait for a place."""

import asyncio
import time

from tests.fakes.replicas import FakeHome
from tests.fakes.running import WAIT_S, gateway


class Places(FakeHome):
    """Replicas of fakes, of which replacements get a place a second late."""

    def __init__(self):
        super().__init__()
        self.late_s = 0.0

    async def start(self, worker, **wanted):
        if wanted["may_wait"]:
            await asyncio.sleep(self.late_s)
        return await super().start(worker, **wanted)


def _states(running):
    rows = running.json("GET", "/admin/replicas", admin=True)[1]["replicas"]
    return {row["worker"]: row["state"] for row in rows}


def _wait_for(running, is_so):
    until_s = time.monotonic() + WAIT_S
    while not is_so(_states(running)):
        assert time.monotonic() < until_s, _states(running)
        time.sleep(0.01)


def test_a_replica_of_a_machine_to_be_emptied_leaves_once_there_is_another():
    """Never are there fewer than wanted, and its end is no failure."""
    home = Places()
    with gateway({"replica.count": 2}, home) as running:
        first = home.replicas[0]
        at_end = []

        def leave():
            first.ended.add_done_callback(lambda _: at_end.append(len(home.replicas)))
            first.leaving.set_result("its machine is to be emptied")

        running.loop.call_soon_threadsafe(leave)
        _wait_for(running, lambda states: states == {2: "ready", 3: "ready"})
        deaths = running.json("GET", "/admin/replicas", admin=True)[1]["deaths"]
    assert at_end == [3]
    assert deaths == []


def test_new_settings_keep_no_replica_that_must_leave():
    """It is replaced with them."""
    home = Places()
    with gateway({"replica.count": 1}, home) as running:
        leaving = home.replicas[0].leaving
        running.loop.call_soon_threadsafe(leaving.set_result, "its machine is to be emptied")
        status, _ = running.json(
            "PATCH", "/admin/settings", {"settings": {"replica.count": 2}}, admin=True
        )
        assert status == 200
        _wait_for(running, lambda states: list(states.values()) == ["ready", "ready"])
        assert 1 not in _states(running)


def test_a_replacement_waits_for_a_place_for_as_long_as_it_takes():
    """`ready_timeout_s` is for its start; without a place at first, the model is not served."""
    home = Places()
    home.late_s = 0.5
    with gateway({"replica.count": 1, "replica.ready_timeout_s": 0.2}, home) as running:
        home.replicas[0].die()
        _wait_for(running, lambda states: states == {2: "ready"})
