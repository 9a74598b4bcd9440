"""Trials on several machines at once: what is lost is evaluated elsewhere, and odd machines leave."""

from __future__ import annotations

import collections
import dataclasses
import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import TrialState

from tests.fakes import benches
from tests.fakes.benches import ToyBench
from tuner.errors import NodeLost, TunerError
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import Race
from tuner.metrics import metric_constraints
from tuner.sampling import recommendation
from tuner.settings.search import SearchSettings
from tuner.store.study_store import StudyStore
from tuner.study import machine_report
from tuner.study.budget import Budget
from tuner.study.parallel_search import FAILURES, ParallelSearch
from tuner.study.search import Search
from tuner.values.configuration import Configuration
from tuner.values.trial import Outcome

BUDGET = Budget(trials=16, initial=5, max_time_s=600, load_s=2.5, pairs=4)
BROKEN = Outcome(status="infeasible", cause="start", reason="no licence on this machine")


class ToyNode(ToyBench):
    """A machine of the toy, which may be slow, broken, or lost."""

    def __init__(
        self,
        name: str,
        *,
        slower: float = 1.0,
        failure: Outcome | None = None,
        ends_at: int | None = None,
        breaks_at: int | None = None,
        ends_with: Configuration | None = None,
    ) -> None:
        super().__init__(seed=sum(map(ord, name)), failure=failure)
        self.name = name
        self._slower = slower
        self._ends_at = ends_at
        self._breaks_at = breaks_at
        self._ends_with = ends_with
        self.at_once: list[int] = []
        self._busy = threading.Lock()

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        assert self._busy.acquire(blocking=False), "one at a time"
        try:
            if len(self.launched) == self._ends_at or configuration == self._ends_with:
                raise NodeLost(self.name, "it was unplugged")
            if len(self.launched) == self._breaks_at:
                self.failure = BROKEN
            found = super().evaluate(configuration, race)
        finally:
            self._busy.release()
        started_at = found.started_at + 3.0 * len(self.launched)
        measured = found.measurement
        if measured is not None:
            measured = dataclasses.replace(
                measured,
                mean_ms=measured.mean_ms * self._slower,
                throughput_per_s=measured.throughput_per_s / self._slower,
            )
        return dataclasses.replace(
            found, node=self.name, measurement=measured, started_at=started_at
        )


def search_of(
    *,
    sampler: str = "random",
    budget: Budget = BUDGET,
    objective: str = "mean",
    constraints: tuple[str, ...] = (),
) -> Search:
    found = Search(
        store=StudyStore.in_memory("s"),
        problem=benches.arena(),
        evaluator=ToyBench(),
        budget=budget,
        objective=objective,
        limits=metric_constraints.parse_all(constraints),
        stop_ei=0.0,
        keep_in=None,
    )
    found.prepare(SearchSettings(sampler=sampler, trials=budget.trials, initial=budget.initial))
    return found


def run_out(search: Search, nodes: list[ToyNode]) -> list[str]:
    """Search to the end; return what was said."""
    said: list[str] = []
    with ParallelSearch(search, nodes, used_s=lambda: 0.0, say=said.append) as steps:
        while steps.stop_reason(0.0) is None:
            steps.step()
    return said


def lost(search: Search) -> list[Configuration]:
    """Configurations that the samplers know to fail."""
    found = recommendation.history_of(search.store.study, search.problem.candidates)
    assert found is not None
    default = search.problem.default
    return [Configuration({**default, **one}) for one in found.lost_configurations]


def failed_on(node: str, search: Search) -> set[Configuration]:
    return {
        trial.configuration
        for trial in search.trials
        if trial.node == node and trial.outcome.status != "ok"
    }


def interrupted(search: Search) -> list[Configuration]:
    trials = search.store.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))
    assert all("interrupted" in trial.user_attrs for trial in trials)
    return [Configuration(trial.user_attrs["configuration"]) for trial in trials]


@pytest.mark.parametrize("sampler", ["random", "gp"])
def test_all_machines_measure_until_the_budget_is_used_up(sampler: str) -> None:
    """The default begins on each; no trial is lost, and each names its machine."""
    nodes = [ToyNode(name) for name in "abc"]
    search = search_of(sampler=sampler)
    assert run_out(search, list(nodes)) == []
    assert search.budget.at_once == len(nodes)
    assert len(search.trials) == BUDGET.trials
    assert [trial.origin for trial in search.trials[:3]] == ["default", "check", "check"]
    assert {node.launched[0] for node in nodes} == {search.problem.default}
    for node in nodes:
        tried = [trial.configuration for trial in search.trials if trial.node == node.name]
        beside = collections.Counter(node.launched) - collections.Counter(tried)
        assert set(beside) <= {search.problem.default}  # a check, after failures that fell together
    assert search.store.trials() == search.trials


def test_what_a_lost_machine_measured_is_measured_elsewhere() -> None:
    nodes = [ToyNode("a"), ToyNode("b", ends_at=2)]
    search = search_of()
    left = list(nodes)
    said = run_out(search, left)
    assert said == ["the machine b is lost: it was unplugged"]
    assert left == nodes[:1]
    assert search.budget.at_once == 1
    (unplugged,) = interrupted(search)
    assert len(search.trials) == BUDGET.trials
    assert unplugged in [trial.configuration for trial in search.trials if trial.node == "a"]


def test_a_configuration_that_takes_machines_down_fails_at_the_second() -> None:
    """The others measure on without it, until the budget is used up."""
    search = search_of()
    poison = Configuration({**search.problem.default, "replica.count": 2})
    search.store.enqueue(poison, origin="initial")
    left = [ToyNode(name, ends_with=poison) for name in "abcd"]
    said = run_out(search, left)
    assert len(left) == len(said) == 2
    assert len(search.trials) == BUDGET.trials
    (trial,) = [one for one in search.trials if one.configuration == poison]
    assert (trial.outcome.status, trial.outcome.cause) == ("failed", "crash")
    assert trial.outcome.reason.startswith("a second machine was lost with this configuration: ")
    assert f"the machine {trial.node} is lost" in trial.outcome.reason
    assert interrupted(search) == [poison]
    assert not search.store.has_waiting()


def test_a_configuration_that_took_a_machine_down_is_remembered() -> None:
    """By the next process, too, so that a study on one machine goes on after the second loss."""
    search = search_of()
    poison = search.problem.default
    for _ in range(2):
        with pytest.raises(TunerError, match="no machine is left"):
            run_out(search, [ToyNode("a", ends_with=poison)])
        search.prepare(SearchSettings(sampler="random", trials=16, initial=5))
    (trial,) = search.trials
    assert (trial.configuration, trial.outcome.cause) == (poison, "crash")
    assert not search.store.has_waiting()


def test_what_failed_on_a_lost_machine_is_measured_elsewhere() -> None:
    nodes = [ToyNode("a"), ToyNode("b", failure=BROKEN, ends_at=2)]
    search = search_of()
    run_out(search, list(nodes))
    failed = set(nodes[1].launched)
    assert len(nodes[1].launched) == 2
    assert failed <= {trial.configuration for trial in search.trials if trial.node == "a"}
    assert set(lost(search)) == failed_on("a", search)


def test_without_machines_a_study_ends() -> None:
    nodes = [ToyNode("a", ends_at=3), ToyNode("b", ends_at=2)]
    with pytest.raises(TunerError, match="no machine is left"):
        run_out(search_of(), nodes)


def test_a_study_whose_time_ends_between_two_questions_just_ends() -> None:
    search = search_of()
    used_s = iter([0.0, 0.0, BUDGET.max_time_s])
    with ParallelSearch(
        search, [ToyNode("a")], used_s=lambda: next(used_s), say=pytest.fail
    ) as steps:
        assert steps.step() is not None
        assert steps.step() is not None
        assert steps.step() is None
        assert steps.stop_reason(BUDGET.max_time_s) is not None


def test_a_machine_on_which_even_the_default_fails_is_left_out() -> None:
    """What failed there is evaluated elsewhere, and its failures do not stop the study."""
    nodes = [ToyNode("a"), ToyNode("b", failure=BROKEN)]
    search = search_of()
    (said,) = run_out(search, list(nodes))
    assert "the machine b is left out: even the default fails there (no licence" in said
    assert len(nodes[1].launched) == FAILURES + 1
    failed = set(nodes[1].launched)
    assert failed <= {trial.configuration for trial in search.trials if trial.node == "a"}


def test_a_machine_works_where_trials_only_miss_a_constraint() -> None:
    """It measured them, so it is not checked."""
    nodes = [ToyNode("a"), ToyNode("b")]
    search = search_of(constraints=("throughput_per_s >= 1e6",))
    for _ in range(BUDGET.trials):
        search.store.enqueue(search.problem.default, origin="check")
    run_out(search, list(nodes))
    assert {trial.outcome.cause for trial in search.trials} == {"constraint"}
    assert sum(len(node.launched) for node in nodes) == BUDGET.trials


@given(breaks_at=st.integers(0, BUDGET.trials))
def test_trials_of_a_machine_that_breaks_cost_no_budget(breaks_at: int) -> None:
    """Whenever it breaks, also in its last trial: all that failed there is evaluated elsewhere."""
    nodes = [ToyNode("a"), ToyNode("b", breaks_at=breaks_at)]
    search = search_of()
    run_out(search, list(nodes))
    assert len(search.trials) == BUDGET.trials
    assert BROKEN not in [trial.outcome for trial in search.trials]
    broken = set(nodes[1].launched[breaks_at:])
    assert broken <= set(nodes[0].launched)
    assert not search.store.has_waiting()
    assert search.store.trials() == search.trials


def test_failures_of_a_broken_machine_count_against_no_configuration() -> None:
    """The default fails there first; the best of those that work is recommended all the same."""
    nodes = [ToyNode("b", failure=BROKEN), ToyNode("a")]
    search = search_of()
    run_out(search, list(nodes))
    assert nodes[0].launched[0] == search.problem.default
    assert set(lost(search)) == failed_on("a", search)
    found = search.finalists(len(search.trials))
    assert found is not None
    works = {trial.configuration for trial in search.trials if trial.outcome.status == "ok"}
    assert set(found.configurations) <= works
    assert search.recommend() in works


@pytest.mark.parametrize("objective", ["mean", "throughput"])
def test_a_machine_that_is_much_slower_is_left_out(objective: str) -> None:
    nodes = [ToyNode("a"), ToyNode("b"), ToyNode("c", slower=2.5)]
    search = search_of(budget=dataclasses.replace(BUDGET, trials=24), objective=objective)
    (said,) = run_out(search, list(nodes))
    assert said.startswith("the machine c is left out: it is ")
    assert said.endswith("% slower than the others")


def test_two_slow_machines_are_left_out_one_after_the_other() -> None:
    """The slower one does not hide the other, and the last machine stays, whoever ends when."""
    nodes = [ToyNode("a"), ToyNode("b"), ToyNode("c", slower=2.0), ToyNode("d", slower=6.0)]
    search = search_of(budget=dataclasses.replace(BUDGET, trials=40))
    left = list(nodes)
    said = run_out(search, left)
    assert left == nodes[:2]
    for one, name in zip(sorted(said), "cd", strict=True):
        assert one.startswith(f"the machine {name} is left out: it is ")


def test_a_slow_machine_leaves_whichever_trial_tells_of_it() -> None:
    """Two machines whose trials end in turn: each fourth is of the quick one."""
    nodes = [ToyNode("a", slower=2.5), ToyNode("b")]
    search = search_of(budget=dataclasses.replace(BUDGET, trials=24))
    (said,) = run_out(search, list(nodes))
    assert said.startswith("the machine a is left out: it is ")


@pytest.mark.parametrize(("objective", "factor"), [("mean", 1.12), ("throughput", 1 / 1.12)])
def test_a_search_says_how_much_machines_differ(objective: str, factor: float) -> None:
    """The factor of a machine lies in its interval, compared with the mean of all."""
    nodes = [ToyNode("a"), ToyNode("b", slower=1.12)]
    search = search_of(budget=dataclasses.replace(BUDGET, trials=24), objective=objective)
    run_out(search, list(nodes))
    found = machine_report.node_speeds(search)
    assert found is not None
    assert found.startswith(f"{objective} on each machine, compared with all of them")
    low, high = (
        float(end.strip(" (),%")) / 100 for end in found.split("b ")[1].split("(")[1].split(" to ")
    )
    assert low < math.sqrt(factor) - 1 < high
    assert machine_report.node_speeds(search_of()) is None


def test_rounds_do_not_vary_by_what_machines_differ() -> None:
    """One machine measures a round, so its own speed cancels; trials vary by it all the same."""
    spreads = []
    for slower in (1.0, 1.2):
        search = search_of(budget=dataclasses.replace(BUDGET, trials=24))
        run_out(search, [ToyNode("a"), ToyNode("b", slower=slower)])
        found = search.finalists(3)
        incumbent = recommendation.incumbent(search.store.study, **search.given)
        assert found is not None
        assert incumbent is not None
        assert found.evaluation_sd < incumbent.noise_sd
        spreads.append(found.evaluation_sd)
    assert spreads[1] < 1.4 * spreads[0]
