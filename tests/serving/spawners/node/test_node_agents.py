"""Node agents by machine: which are held, and which machines are the last choice for how long."""

import concurrent.futures
import weakref

from hypothesis import given
from hypothesis import strategies as st

from serving.spawners.node.node_agents import FIRST_PAUSE_S, LONGEST_S, NodeAgents

NODE = "node-1"


class Ended(Exception):
    """What Ray says of an actor that has ended."""


class Parent:
    """An agent's parent, which ends with its last handle."""

    def __init__(self, number, tell):
        self.number = number
        self._tell = tell

    def ask(self):
        return self._tell(self.number)


def _answer(outcome):
    future = concurrent.futures.Future()
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(("host", outcome, None))
    return future


class Cluster:
    """Machines whose agents' parents answer as they are told."""

    def __init__(self, tell):
        self.parents = []
        self.now_s = 0.0
        self.agents = NodeAgents(self._start, ended=Ended, clock=lambda: self.now_s)
        self._tell = tell

    def _start(self, _node):
        parent = Parent(len(self.parents), self._tell)
        self.parents.append(weakref.ref(parent))
        return parent.ask

    def lives(self, number):
        return self.parents[number]() is not None


MEANWHILE = st.lists(st.sampled_from(["reach", "look"]), max_size=3)
OUTCOMES = st.sampled_from(["ok", "late", "ended"])


@given(st.lists(st.tuples(MEANWHILE, OUTCOMES)))
def test_an_agent_that_somebody_uses_is_held(script):
    """Whatever others are told of it or of its predecessors, before or after, while somebody asks."""
    given_out, failed, dead = set(), set(), set()
    left = iter(script)

    def tell(number):
        meanwhile, outcome = next(left, ((), "ok"))
        for what in meanwhile:
            reach() if what == "reach" else cluster.agents.look()
        if outcome == "ended":
            dead.add(number)
        if number in dead or outcome == "late":
            failed.add(number)
            return _answer(Ended() if number in dead else TimeoutError())
        return _answer(number)

    def reach():
        try:
            _, number, _ = cluster.agents.reach(NODE)
        except (Ended, TimeoutError):
            return
        assert cluster.lives(number)
        given_out.add(number)

    cluster = Cluster(tell)
    for _ in range(len(script) + 1):
        reach()
        cluster.agents.look()
        assert all(cluster.lives(number) for number in given_out - failed)


@given(st.lists(st.floats(0.01, 40.0), min_size=1))
def test_a_machine_whose_starts_fail_is_tried_more_and_more_rarely(gaps_s):
    """Though its agent answers Ray, and also if several starts fail there at once."""
    cluster = Cluster(_answer)
    cluster.agents.reach(NODE)
    pause_s, free_s = FIRST_PAUSE_S, 0.0
    for gap_s in gaps_s:
        cluster.now_s += gap_s
        cluster.agents.look()
        assert cluster.agents.is_avoided(NODE) == (cluster.now_s < free_s)
        if not cluster.agents.is_avoided(NODE):
            for _ in range(4):
                cluster.agents.avoid(NODE)
            free_s = cluster.now_s + pause_s
            pause_s = min(LONGEST_S, 2 * pause_s)
    cluster.agents.trust(NODE)
    assert not cluster.agents.is_avoided(NODE)
    cluster.agents.avoid(NODE)
    cluster.now_s += FIRST_PAUSE_S
    cluster.agents.look()
    assert not cluster.agents.is_avoided(NODE)


@given(st.lists(st.floats(0.0, 2 * LONGEST_S), min_size=1, max_size=4))
def test_a_lost_machine_is_used_again_once_its_agent_answers(silences_s):
    """Or after the longest time, if it is silent: Ray may know by then. An answer before does not count."""
    reply = _answer(0)
    cluster = Cluster(lambda _: reply)
    cluster.agents.reach(NODE)
    pause_s = FIRST_PAUSE_S
    for silence_s in silences_s:
        reply, lost_s = concurrent.futures.Future(), cluster.now_s
        cluster.agents.avoid(NODE)
        for at_s in (lost_s + silence_s / 2, lost_s + silence_s):
            cluster.now_s = at_s
            cluster.agents.look()
            assert cluster.agents.is_avoided(NODE) == (at_s < lost_s + LONGEST_S)
        reply.set_result(("host", 0, None))
        cluster.agents.look()
        assert cluster.agents.is_avoided(NODE) == (cluster.now_s < lost_s + pause_s)
        cluster.now_s = max(cluster.now_s, lost_s + pause_s)
        pause_s *= 2
