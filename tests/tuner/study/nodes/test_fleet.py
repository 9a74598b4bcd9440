"""Machines of one study: they must be alike, and each measures whole rounds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.benches import ToyBench
from tuner.errors import NodeLost, TunerError, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import OpenLoopPlan, Race
from tuner.measurement.outcome import EvaluationRequirements
from tuner.study import verification
from tuner.study.nodes.fleet import (
    FAILURES,
    TOLERATED,
    FleetRounds,
    StudyNode,
    check_alike,
    on_one,
)
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.trial import Outcome

ARMS = {
    "default": Configuration({"replica.count": 1}),
    "best": Configuration({"replica.count": 2}),
}
WAIT_S = 30.0
BROKEN = Outcome(status="failed", cause="errors", reason="its disk is full")
FACTS = {"host": {"cores": 4, "cpu": "x"}, "versions": {"onnxruntime": "1.2"}, "files": {}}


class ToyNode:
    """A machine of the toy that measures rounds."""

    is_here = False

    def __init__(self, name: str, *, rounds: int | None = None, fails: float = 0) -> None:
        """`rounds` until it is lost, of which the first `fails` fail."""
        self.name = name
        self.orders: list[tuple[str, ...]] = []
        self.streams: list[int] = []
        self.first, self.third = threading.Event(), threading.Event()
        """Set once it is to measure its first round, and has measured its third."""
        self.awaits: list[threading.Event] = []
        self.awaited_from = 0
        """Number of the round that waits for these, and so do the next."""
        self._rounds = rounds
        self._fails = fails
        self._bench = ToyBench()

    def open(self, first: Configuration) -> Mapping[str, Any]:
        raise NotImplementedError

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        raise NotImplementedError

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        raise NotImplementedError

    def open_rounds(self, arms: Mapping[str, Configuration], *, latency_s: float) -> Sequence[str]:
        return ["in turn"]

    def round(self, arms: Sequence[str], *, stream: int) -> Sequence[tuple[str, Evaluation]]:
        self.first.set()
        if len(self.orders) >= self.awaited_from:
            assert all(event.wait(WAIT_S) for event in self.awaits)
        if len(self.orders) == self._rounds:
            raise NodeLost(self.name, "it was unplugged")
        self._bench.failure = BROKEN if len(self.orders) < self._fails else None
        self.orders.append(tuple(arms))
        self.streams.append(stream)
        if len(self.orders) == 3:
            self.third.set()
        found = ((role, self._bench.evaluate(ARMS[role])) for role in arms)
        return [(role, _on(self.name, one)) for role, one in found]


def _on(node: str, evaluation: Evaluation) -> Evaluation:
    return dataclasses.replace(evaluation, node=node)


@contextlib.contextmanager
def opened(nodes: list[ToyNode]) -> Iterator[tuple[FleetRounds, list[str]]]:
    said: list[str] = []
    with FleetRounds(nodes, ARMS, latency_s=0.01, first=0, say=said.append) as rounds:
        yield rounds, said


def test_a_round_is_measured_on_one_machine_in_alternating_order() -> None:
    nodes = [ToyNode("a"), ToyNode("b")]
    with opened([*nodes]) as (rounds, said):
        for order in [("default", "best"), ("best", "default")] * 4:
            found = list(rounds.round(order))
            assert [role for role, _ in found] == list(order)
            assert len({evaluation.node for _, evaluation in found}) == 1
            assert [evaluation.configuration for _, evaluation in found] == [
                ARMS[role] for role in order
            ]
    assert set(said) <= {"a: in turn", "b: in turn"}
    for place, node in enumerate(nodes):
        first = tuple(ARMS) if place == 0 else tuple(reversed(ARMS))
        for turn, order in enumerate(node.orders):
            assert order == (first if turn % 2 == 0 else first[::-1])


def test_each_round_evaluation_keeps_its_machine() -> None:
    """Also in its file."""
    nodes = [ToyNode("a"), ToyNode("b")]
    needs = EvaluationRequirements(objective="mean")
    with opened(list(nodes)) as (source, _):
        rounds = verification.alternate(source, rounds=8, needs=needs, report=lambda *_: None)
    began = sorted((stream, node.name) for node in nodes for stream in node.streams)
    assert rounds.nodes == tuple(name for _, name in began[:8])
    read = [
        RoundEvaluation.from_json(json.loads(json.dumps(one.as_json())))
        for one in rounds.evaluations
    ]
    assert verification.count_rounds(read, tuple(ARMS)) == rounds


def test_rounds_come_in_the_order_in_which_they_began() -> None:
    """A slow machine's are waited for, and a lost one's are skipped."""
    quick, slow, lost = ToyNode("quick"), ToyNode("slow"), ToyNode("lost", rounds=0)
    quick.awaits = [slow.first, lost.first]
    slow.awaits = lost.awaits = [quick.third]
    nodes = [slow, lost, quick]
    with opened(nodes) as (rounds, _):
        found = [list(rounds.round(tuple(ARMS)))[-1][1].node for _ in range(12)]
    began = sorted((stream, node.name) for node in (quick, slow) for stream in node.streams)
    assert found == [name for _, name in began[:12]]
    assert "slow" in found
    assert set(nodes) == {slow, quick}


def test_rounds_go_on_without_a_lost_machine() -> None:
    nodes = [ToyNode("a"), ToyNode("b", rounds=0)]
    with opened(nodes) as (rounds, said):
        while len(nodes) > 1:
            list(rounds.round(tuple(ARMS)))
        found = [list(rounds.round(tuple(ARMS))) for _ in range(3)]
    assert {evaluation.node for one in found for _, evaluation in one} == {"a"}
    assert "the machine b is lost: it was unplugged" in said


def test_rounds_of_a_broken_machine_are_measured_elsewhere() -> None:
    """It fails at once, and so takes most rounds, until another one has shown that the arms work."""
    broken, works = ToyNode("broken", fails=math.inf), ToyNode("works")
    works.awaits = [broken.third]
    nodes = [broken, works]
    with opened(nodes) as (rounds, said):
        found = [one for _ in range(8) for one in rounds.round(tuple(ARMS))]
    assert {evaluation.node for _, evaluation in found} == {"works"}
    assert nodes == [works]
    (left_out,) = [one for one in said if "left out" in one]
    assert left_out.startswith("the machine broken is left out: every arm failed there in ")
    assert left_out.endswith("rounds in a row (its disk is full), though others work")


def test_a_round_that_failed_once_is_measured_again() -> None:
    """Its machine stays, as it works again."""
    hasty, works = ToyNode("hasty", fails=1), ToyNode("works")
    hasty.awaits, hasty.awaited_from = [works.third], 1
    works.awaits = [hasty.first]
    nodes = [hasty, works]
    with opened(nodes) as (rounds, _):
        found = [one for _ in range(8) for one in rounds.round(tuple(ARMS))]
    assert all(evaluation.measurement for _, evaluation in found)
    assert {evaluation.node for _, evaluation in found} == {"hasty", "works"}
    assert set(nodes) == {hasty, works}


@pytest.mark.parametrize("names", ["a", "ab"])
def test_arms_that_fail_on_all_machines_are_told(names: str) -> None:
    """They count, as on one machine, and every machine stays."""
    with opened([ToyNode(name, fails=math.inf) for name in names]) as (rounds, said):
        found = [one for _ in range(3 * FAILURES) for one in rounds.round(tuple(ARMS))]
    assert {evaluation.outcome for _, evaluation in found} == {BROKEN}
    assert not any("left out" in one for one in said)


def test_the_end_does_not_wait_for_a_machine_that_hangs() -> None:
    """It comes last, where one machine is needed."""
    hangs, quick = ToyNode("hangs"), ToyNode("quick")
    release = threading.Event()
    hangs.awaits, hangs.awaited_from = [release], 1
    quick.awaits = [hangs.first]
    nodes = [hangs, quick]
    with opened(nodes) as (rounds, _):
        list(rounds.round(tuple(ARMS)))
        rounds._longest_s = 0.5  # for the quick one to end also on a busy machine
        begun_s = time.monotonic()
    assert time.monotonic() - begun_s < WAIT_S / 2
    assert nodes == [quick, hangs]
    release.set()


def test_without_machines_there_are_no_rounds() -> None:
    nodes = [ToyNode("a", rounds=1)]
    with pytest.raises(TunerError, match="no machine is left"), opened(nodes) as (rounds, _):
        for _ in range(2):
            list(rounds.round(tuple(ARMS)))


@given(losses=st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_what_is_compared_is_measured_on_one_machine(losses: list[int]) -> None:
    """Each machine is lost after so many of two evaluations; the first that has both is asked alone."""
    nodes: list[StudyNode] = [ToyNode(str(place)) for place in range(len(losses))]
    measured: dict[str, int] = {}
    said: list[str] = []

    def measure(node: StudyNode) -> list[str]:
        for number in range(2):
            if number == losses[int(node.name)]:
                raise NodeLost(node.name, "it was unplugged")
            measured[node.name] = number + 1
        return [node.name] * 2

    last = next((place for place, count in enumerate(losses) if count == 2), None)
    if last is None:
        with pytest.raises(NodeLost):
            on_one(nodes, measure, say=said.append)
        assert not nodes
        return
    assert on_one(nodes, measure, say=said.append) == [str(last)] * 2
    assert [node.name for node in nodes] == [str(place) for place in range(last, len(losses))]
    assert len(said) == last


def test_machines_that_are_alike_may_measure() -> None:
    check_alike({"a": FACTS, "b": {**FACTS}, "c": {**FACTS}})


@given(share=st.floats(0.0, 0.2), memory_mb=st.integers(1_000, 10**7))
def test_memory_may_differ_a_little(share: float, memory_mb: int) -> None:
    """Whatever round number lies between."""
    less = round(memory_mb * (1 - share))
    told = {name: {"host": {"memory_mb": one}} for name, one in {"a": memory_mb, "b": less}.items()}
    if memory_mb - less <= TOLERATED["memory_mb"] * memory_mb:
        check_alike(told)
    else:
        with pytest.raises(UsageError, match="differ in host memory_mb"):
            check_alike(told)


@given(
    path=st.sampled_from([("host", "cores"), ("versions", "onnxruntime"), ("files", "model.onnx")])
)
def test_the_first_difference_is_named(path: tuple[str, str]) -> None:
    """Also one that only one of the two has."""
    group, key = path
    other = {**FACTS, group: {**FACTS[group], key: "other"}}
    with pytest.raises(UsageError) as caught:
        check_alike({"a": FACTS, "b": FACTS, "c": other})
    assert f"the machines a and c differ in {group} {key} (" in str(caught.value)
    assert "and other)" in str(caught.value)
