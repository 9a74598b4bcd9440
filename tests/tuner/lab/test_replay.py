"""Searches on a recorded table: repeatable, of any sampler, and their figures can be computed again."""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import statistics

import pytest

from tests.fakes import recorded
from tests.fakes.benches import ToyBench
from tuner.errors import InvalidTable
from tuner.evaluation.evaluation import Evaluation
from tuner.lab import prepared_table, replay
from tuner.lab.replay_search import ReplaySpec
from tuner.lab.tables import table_files
from tuner.lab.tables.table_evaluator import Perturbations
from tuner.sampling import registry
from tuner.study import verification
from tuner.values.configuration import Configuration

pytestmark = pytest.mark.processes

BENCHMARKS = pathlib.Path(__file__).resolve().parents[3] / "benchmarks"
GROUND = prepared_table.prepare_table(recorded.table(passes=4, every=4))


SLOW = {"skopt", "gpy", "optuna-gp", "smac", "botorch"}
"""Samplers of other libraries; the contract suite runs over them."""


@pytest.mark.parametrize("sampler", [name for name in registry.NAMES if name not in SLOW])
def test_every_sampler_searches_a_table(sampler: str) -> None:
    order = ReplaySpec(sampler=sampler, trials=8, initial=4, seeds=(0, 1))
    replayed = replay.replay(GROUND, order, workers=1)
    for run in replayed.runs:
        assert len(run.cells) == len(run.recommended) == len(run.seconds) == 8
        assert run.cells[0] == GROUND.problem.default
        assert set(run.cells) <= set(GROUND.problem.candidates.configurations)
    again = replay.one_run(GROUND, order, 1)
    assert (again.cells, again.recommended) == (
        replayed.runs[1].cells,
        replayed.runs[1].recommended,
    )


def test_processes_give_what_one_gives() -> None:
    order = ReplaySpec(sampler="random", trials=6, seeds=(0, 1, 2))
    alone = replay.replay(GROUND, order, workers=1)
    several = replay.replay(GROUND, order, workers=2)
    assert [run.cells for run in alone.runs] == [run.cells for run in several.runs]
    assert [run.seed for run in several.runs] == [0, 1, 2]


def test_the_figures_follow_from_what_is_printed() -> None:
    order = ReplaySpec(sampler="random", trials=30, seeds=tuple(range(5)))
    data = json.loads(json.dumps(replay.replay(GROUND, order, workers=1).as_json()))
    assert (data["table"], data["sampler"]) == ("toy-20", "random")
    assert data["candidates"] == len(GROUND.problem.candidates.configurations)
    good = GROUND.truth.good(0.05)
    firsts = []
    for run in data["runs"]:
        bad = [
            number
            for number, cell in enumerate(run["recommended"], 1)
            if cell is None or Configuration(cell) not in good
        ]
        firsts.append(max(bad, default=0) + 1)
    reached = [first for first in firsts if first <= 30]
    assert data["trials_to"]["0.05"]["reached"] == len(reached) / 5
    if len(reached) >= 3:
        assert data["trials_to"]["0.05"]["median"] == statistics.median_low(firsts)


def test_walls_are_failures_of_the_search() -> None:
    order = ReplaySpec(
        sampler="random", trials=20, seeds=(0,), perturbations=Perturbations(injects_oom=True)
    )
    walled = replay.replay(GROUND, order, workers=1).runs[0]
    plain = replay.replay(
        GROUND, ReplaySpec(sampler="random", trials=20, seeds=(0,)), workers=1
    ).runs[0]
    assert len(walled.lost) > len(plain.lost)


def test_a_table_of_another_engine_has_features_of_its_wait_and_quota() -> None:
    """The knobs of this table, of format 1, declare no roles: their names tell."""
    table = table_files.read(BENCHMARKS / "tables" / "mosec-20")
    candidates = prepared_table.make_problem(table).candidates
    cell = {**table.head.default, "replica.count": 2, "batching.max_size": 16}
    for own, values in (("batching.wait_ms", (1, 10)), ("engine.cpu", (0.5, 2.0))):
        one, other = (candidates.vector_of({**cell, own: value}) for value in values)
        assert one is not None
        assert other is not None
        assert (one != other)[candidates.design_width :].any()


def test_a_table_has_no_highest_rate() -> None:
    with pytest.raises(InvalidTable, match="closed loop, which has no objective rate"):
        prepared_table.prepare_table(recorded.table(passes=4), "rate")


def test_a_table_with_one_launch_each_cannot_be_replayed() -> None:
    with pytest.raises(InvalidTable, match="fewer than two evaluations"):
        prepared_table.prepare_table(recorded.table(passes=1))


def test_several_machines_take_a_share_of_the_time_and_agree_on_the_verdict() -> None:
    """All trials end, in the order of their ends; rounds of the verdict are dealt out to the machines."""
    order = ReplaySpec(
        sampler="gp",
        trials=12,
        initial=4,
        seeds=(0,),
        nodes=3,
        pairs=3,
        studies_s=(math.inf,),
        perturbations=Perturbations(node_sd=0.1),
    )
    run = replay.one_run(GROUND, order, 0)
    again = replay.one_run(GROUND, order, 0)
    assert (again.cells, again.seconds, again.studies) == (run.cells, run.seconds, run.studies)
    alone = replay.one_run(GROUND, dataclasses.replace(order, nodes=1), 0)
    assert run.cells[:3] == (GROUND.problem.default,) * 3
    assert list(run.seconds) == sorted(run.seconds)
    assert run.seconds[-1] < 0.7 * alone.seconds[-1]
    assert run.studies[0].outcome in {"better", "worse", "equal", "no difference shown"}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_machine_alternates_the_order_of_its_rounds(count: int) -> None:
    """Every other machine begins reversed; evaluations come in the order that is asked for."""
    arms = ("default", "best")
    orders: list[list[str]] = [[] for _ in range(count)]

    def source(place: int) -> verification.MeasuresRounds:
        def evaluate(role: str) -> Evaluation:
            orders[place].append(role)
            return ToyBench().evaluate(Configuration({"replica.count": 1}))

        return verification.SequentialRounds(evaluate, {role: role for role in arms})

    dealt = replay.DealtRounds([source(place) for place in range(count)])
    for asked in [arms, arms[::-1]] * 3:
        assert tuple(role for role, _ in dealt.round(asked)) == asked
    for place, order in enumerate(orders):
        first = arms if place % 2 == 0 else arms[::-1]
        assert order == list(verification.order(first, len(order) // len(arms)))
