"""Stages after the search, on several machines."""

from __future__ import annotations

import dataclasses
import pathlib

from tests.fakes import studies
from tests.fakes.benches import ToyBench
from tests.tuner.study.nodes.test_fleet import ToyNode
from tests.tuner.study.test_study import setup_of
from tuner.errors import NodeLost
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import OpenLoopPlan
from tuner.study import study_run
from tuner.values.configuration import Configuration
from tuner.values.verification_state import VerificationState


class OpenNode(ToyNode):
    """A machine that is lost after so many evaluations in an open loop."""

    def __init__(self, name: str, *, evaluations: int) -> None:
        super().__init__(name)
        self.measured: list[Configuration] = []
        self._evaluations = evaluations

    def evaluate_at(
        self, configuration: Configuration, load: OpenLoopPlan, *, seconds: float
    ) -> Evaluation:
        if len(self.measured) == self._evaluations:
            raise NodeLost(self.name, "it was unplugged")
        self.measured.append(configuration)
        return ToyBench().evaluate_at(configuration, load, seconds=seconds)


def test_the_final_open_loop_compares_on_one_machine(tmp_path: pathlib.Path) -> None:
    """If it is lost in between, both are measured on the next."""
    nodes = [OpenNode("a", evaluations=1), OpenNode("b", evaluations=2)]
    first, second = nodes
    setup = dataclasses.replace(setup_of(tmp_path, ToyBench()), nodes=nodes)
    verdict = studies.study(trials=12).verdict
    assert verdict is not None
    best = Configuration({**setup.problem.default, "replica.count": 2})
    ending = VerificationState(stopped="s", best=best, pairs=1)
    found = study_run.check_open_loop(setup, ending, verdict, needs_s=1.0).open_loop
    assert found is not None
    assert [one.role for one in found.evaluations] == ["default", "best"]
    assert first.measured == [setup.problem.default]
    assert second.measured == [setup.problem.default, best]
    assert nodes == [second]
    assert setup.store.notes() == ("the machine a is lost: it was unplugged",)
