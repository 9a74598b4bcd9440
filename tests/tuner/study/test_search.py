"""One sampler at work on a toy: budget, order of origins, failures, early end, interruption."""

from __future__ import annotations

import dataclasses
import math
import pathlib

import numpy as np
import pytest

from tests.fakes import benches, studies, surfaces
from tests.fakes.benches import ToyBench
from tuner.evaluation.evaluation import Evaluation
from tuner.load_generator.plan import Race
from tuner.metrics import metric_constraints
from tuner.settings.search import SearchSettings
from tuner.store.study_store import StudyStore
from tuner.study import machine_report, prediction
from tuner.study.budget import Budget
from tuner.study.problem import ProblemStatement
from tuner.study.search import CHECK_EVERY, MAX_FAILED_IN_A_ROW, STOP_AFTER, Search
from tuner.values.configuration import Configuration
from tuner.values.measurement import Cost, HostNoise
from tuner.values.trial import Outcome

BUDGET = Budget(trials=12, initial=5, max_time_s=600, load_s=2.5, pairs=4)


def search_of(
    path: pathlib.Path | None,
    bench: ToyBench,
    *,
    budget: Budget = BUDGET,
    sampler: str = "random",
    stop_ei: float = 0.0,
    constraints: tuple[str, ...] = (),
    objective: str = "mean",
    second: str | None = None,
    point: str = "knee",
    space: str = benches.SPACE,
    arena: ProblemStatement | None = None,
    seed: int = 3,
) -> Search:
    """A search in a new or an old study; without a path in one that is in memory, where it costs a third less."""
    if path is None:
        store = StudyStore.in_memory("s")
    elif (database := path / "study.db").exists():
        store = StudyStore.open_study("s", database=database, url=None)
    else:
        store = StudyStore.create("s", database=database, url=None, facts={})
    found = Search(
        store=store,
        problem=arena or benches.arena(space),
        evaluator=bench,
        budget=budget,
        objective=objective,
        limits=metric_constraints.parse_all(constraints),
        stop_ei=stop_ei,
        keep_in=None,
        second=second,
        point=point,
    )
    found.prepare(
        SearchSettings(sampler=sampler, trials=budget.trials, initial=budget.initial, seed=seed)
    )
    return found


def toy_ms(configuration: Configuration) -> float:
    """What the toy would take, were there no noise."""
    return studies.mean_ms({**studies.default(), **configuration}, benches.CONCURRENCY)


def run_out(search: Search) -> str:
    """Step until there is a reason to stop."""
    while (reason := search.stop_reason(0.0)) is None:
        search.step()
    return reason


def test_the_default_comes_first_and_the_budget_is_the_total(tmp_path: pathlib.Path) -> None:
    """Twelve trials are launched: the default, four initial ones, the rest guided."""
    bench = ToyBench()
    search = search_of(tmp_path, bench)
    assert run_out(search) == "the budget of 12 trials is used up"
    assert bench.launched[0] == search.problem.default
    origins = [trial.origin for trial in search.trials]
    assert (
        origins == ["default"] + ["initial"] * 4 + ["guided"] * 3 + ["check"] * 2 + ["guided"] * 2
    )
    assert [trial.number for trial in search.trials] == list(range(12))
    assert search.trials == search.store.trials()


def test_incumbent_and_default_are_checked_one_after_the_other(tmp_path: pathlib.Path) -> None:
    """Every eighth trial both are evaluated again, also behind a study that was interrupted."""
    bench = ToyBench()
    search = search_of(tmp_path, bench, budget=dataclasses.replace(BUDGET, trials=17))
    while len(search.trials) < 2 * CHECK_EVERY:
        search.step()
    believed = search.recommend(keeps_default=False)
    search = search_of(tmp_path, bench, budget=dataclasses.replace(BUDGET, trials=17))
    run_out(search)
    checks = [trial for trial in search.trials if trial.origin == "check"]
    assert [trial.number for trial in checks] == [8, 9, 16]
    assert [one.configuration for one in checks[:2]] == [believed, search.problem.default]


class Counting(ToyBench):
    """A machine that counts CPU time."""

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        launch = super().evaluate(configuration, race)
        if launch.measurement is None:
            return launch
        noise = HostNoise(client_cpu_s=0.5, server_cpu_s=1.5)
        cost = Cost(cpu_s=2.0, memory_mib_s=0.0, gpu_s=0.0, price=2.0)
        measurement = dataclasses.replace(
            launch.measurement,
            noise=noise,
            throughput_per_s=1000.0,
            cost=cost,
            warmup_s=0.0,
            seconds=2.0,
        )
        return dataclasses.replace(launch, measurement=measurement, loaded_s=2.0)


@pytest.mark.parametrize(("objective", "is_kept"), [("mean", True), ("p99", False), ("cpu", False)])
def test_the_cpu_time_of_a_request_is_kept_where_a_latency_sees_all_of_it(
    objective: str, is_kept: bool
) -> None:
    """A sampler tells slow moments by it."""
    search = search_of(None, Counting(), objective=objective)
    search.step()
    (trial,) = search.store.study.get_trials()
    assert trial.user_attrs.get("effort") == (pytest.approx(math.log(1e-3)) if is_kept else None)


class Slowing(ToyBench):
    """A machine that is suddenly slower, where it is told to be."""

    slows = True

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        launch = super().evaluate(configuration, race)
        late = len(self.launched) > 16
        if launch.measurement is None:
            return launch
        mean_ms = launch.measurement.mean_ms * (1.25 if late and self.slows else 1.0)
        return dataclasses.replace(
            launch,
            measurement=dataclasses.replace(launch.measurement, mean_ms=mean_ms),
            started_at=1e9 + 10.0 * len(self.launched) + (300.0 if late else 0.0),
        )


def test_a_machine_that_becomes_slower_is_told_of() -> None:
    """Where it does; and one that does not, is not."""
    for slows in (True, False):
        bench = Slowing()
        bench.slows = slows
        budget = dataclasses.replace(BUDGET, trials=32, initial=8)
        search = search_of(None, bench, budget=budget, sampler="gp")
        run_out(search)
        found = machine_report.drift(search)
        assert (found is not None) == slows, found
        assert found is None or "% slower around trial" in found


def test_failures_are_kept_as_data() -> None:
    """A trial that cannot work has its cause, no measurement and no objective, and still counts."""
    bench = ToyBench()
    budget = dataclasses.replace(BUDGET, trials=40)
    search = search_of(None, bench, budget=budget)
    run_out(search)
    lost = [trial for trial in search.trials if trial.outcome.status != "ok"]
    assert lost
    assert {trial.outcome.cause for trial in lost} <= {"oom", "timeout"}
    assert all(trial.objective is None and trial.measurement is None for trial in lost)
    assert len(search.trials) == 40


def test_a_study_in_which_nothing_works_is_given_up() -> None:
    """After eight failures from the first on, the search ends with the last reason."""
    broken = Outcome(status="failed", cause="crash", reason="the server ended under load")
    search = search_of(None, ToyBench(failure=broken))
    assert "the server ended under load" in run_out(search)
    assert len(search.trials) == MAX_FAILED_IN_A_ROW
    assert search.recommend() is None
    assert search.best_seen() is None


def test_little_to_gain_ends_the_search_early() -> None:
    """With a threshold that no improvement reaches, a few guided trials are the last."""
    search = search_of(None, ToyBench(), sampler="gp", stop_ei=0.9)
    assert "ended early after 8 of 12 trials" in run_out(search)
    assert [trial.origin for trial in search.trials][-STOP_AFTER:] == ["guided"] * STOP_AFTER


def test_what_little_was_to_gain_is_remembered_over_an_interruption(tmp_path: pathlib.Path) -> None:
    """Guided proposals of a process that was killed count: the search ends where it would have ended."""
    search = search_of(tmp_path, ToyBench(interrupt_at=7), sampler="gp", stop_ei=0.9)
    with pytest.raises(KeyboardInterrupt):
        run_out(search)
    assert [trial.origin for trial in search.trials][-2:] == ["guided"] * 2
    again = search_of(tmp_path, ToyBench(), sampler="gp", stop_ei=0.9)
    assert "ended early after 8 of 12 trials" in run_out(again)


SMALL = """
name: small
knobs:
  replica.count: {type: int, choices: [1, 2, 3, 4], default: 1, unit: replicas}
"""


def test_a_space_that_is_exhausted_ends_the_search(tmp_path: pathlib.Path) -> None:
    """Four configurations and three repeats that promise nothing; an interruption does not change that."""
    bench = ToyBench(interrupt_at=6)
    search = search_of(tmp_path, bench, sampler="gp", stop_ei=0.01, space=SMALL)
    with pytest.raises(KeyboardInterrupt):
        run_out(search)
    again = search_of(tmp_path, ToyBench(), sampler="gp", stop_ei=0.01, space=SMALL)
    assert "ended early after 7 of 12 trials" in run_out(again)
    origins = [trial.origin for trial in again.trials]
    assert origins == ["default"] + ["initial"] * 3 + ["replicate"] * STOP_AFTER


def test_an_exhausted_space_is_measured_on_where_nothing_ends_early() -> None:
    """--stop-ei 0 uses the whole budget."""
    search = search_of(None, ToyBench(), sampler="gp", stop_ei=0.0, space=SMALL)
    assert run_out(search) == "the budget of 12 trials is used up"


def test_the_gp_recommends_a_configuration_that_worked() -> None:
    """What is recommended was measured, and is better than the default by the toy's own law."""
    search = search_of(None, ToyBench(), sampler="gp")
    run_out(search)
    best = search.recommend()
    ok = {trial.configuration for trial in search.trials if trial.outcome.status == "ok"}
    assert best in ok
    assert toy_ms(best) < toy_ms(search.problem.default)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "trials", "share"),
    [("estimate", 10, 0.001), ("none", 20, 0.001), ("turned over", 16, 0.05)],
)
def test_the_default_sampler_finds_what_chance_does_not(
    kind: str, trials: int, share: float
) -> None:
    """What is recommended after a search with a prediction, without one, and with one that is upside down."""
    plain = benches.arena()
    arena = plain if kind == "none" else prediction.estimate(plain, toy_ms(plain.default))
    if kind == "turned over":
        arena = dataclasses.replace(
            arena, prediction=1 / arena.prediction, latency=None, predicted_feasible=None
        )
    works = [
        toy_ms(cell)
        for cell in plain.candidates.configurations
        if studies.failure({**studies.default(), **cell}) is None
    ]
    ranks, searches = [], 4
    for seed in range(searches):
        budget = dataclasses.replace(BUDGET, trials=trials, initial=4)
        search = search_of(
            None,
            ToyBench(seed=seed),
            budget=budget,
            sampler="structured",
            arena=arena,
            seed=seed,
        )
        run_out(search)
        best = search.recommend()
        assert best is not None
        ranks.append(sum(other < toy_ms(best) + 1e-9 for other in works) - 1)  # ties are against it
    chance = surfaces.lucky_rank(
        len(plain.candidates.configurations), trials, searches, share=share
    )
    assert np.mean(ranks) < chance, ranks


def test_an_interrupted_trial_counts_for_nothing(tmp_path: pathlib.Path) -> None:
    """After a signal in the fourth launch, the same seed goes on as if it had not been."""
    bench = ToyBench(interrupt_at=3)
    search = search_of(tmp_path, bench)
    with pytest.raises(KeyboardInterrupt):
        run_out(search)
    assert len(search.store.trials()) == 3
    again = search_of(tmp_path, ToyBench())
    assert run_out(again) == "the budget of 12 trials is used up"
    origins = [trial.origin for trial in again.store.trials()]
    assert (
        origins == ["default"] + ["initial"] * 4 + ["guided"] * 3 + ["check"] * 2 + ["guided"] * 2
    )
    assert again.store.trials()[:3] == search.store.trials()[:3]


def test_a_default_that_was_interrupted_is_launched_again(tmp_path: pathlib.Path) -> None:
    """A signal in the very first trial does not cost the study its default."""
    search = search_of(tmp_path, ToyBench(interrupt_at=0))
    with pytest.raises(KeyboardInterrupt):
        search.step()
    again = search_of(tmp_path, ToyBench())
    assert again.step().origin == "default"


def test_a_limit_on_p99_makes_configurations_infeasible() -> None:
    """A p99 above the limit is a constraint that was broken, with both figures in the reason."""
    search = search_of(None, ToyBench(), constraints=("p99_ms <= 0.001",))
    trial = search.step()
    assert (trial.outcome.status, trial.outcome.cause) == ("infeasible", "constraint")
    assert trial.objective is None


def test_a_launch_beyond_a_limit_is_measured_and_no_solution(tmp_path: pathlib.Path) -> None:
    """Its figures are kept beside the reason, in the store as well."""
    search = search_of(tmp_path, ToyBench(), constraints=("throughput_per_s >= 1e6",))
    trial = search.step()
    assert trial.measurement is None
    assert trial.missed is not None
    assert trial.measured == trial.missed
    assert "is below the limit of 1e+06 requests/s (--constraint)" in trial.outcome.reason
    assert search.store.trials() == (trial,)
    assert search.best_seen() is None


def test_a_search_goes_on_while_nothing_keeps_to_the_limits() -> None:
    """Launches that were measured are no reason to give up: being feasible is what is searched."""
    search = search_of(None, ToyBench(), sampler="gp", constraints=("throughput_per_s >= 1e6",))
    assert run_out(search) == "the budget of 12 trials is used up"
    assert search.recommend() is None
    assert search.finalists(3) is None


def test_too_few_requests_for_a_p99_end_the_search_with_the_first() -> None:
    """It says how long a launch has to be, before any other is made."""

    class Short(ToyBench):
        def evaluate(self, configuration, race=None):
            launch = super().evaluate(configuration, race)
            few = dataclasses.replace(launch.measurement, p99_effective=229.5)
            return dataclasses.replace(launch, measurement=few)

    search = search_of(None, Short(), objective="p99")
    assert "(--seconds 6)" in run_out(search)
    assert len(search.trials) == 1
    assert search.trials[0].outcome.cause == "short"


@pytest.mark.parametrize("sampler", ["structured", "gp", "random", "epsilon-greedy", "tpe"])
def test_the_cheapest_that_meets_a_deadline(sampler: str) -> None:
    """Of whatever sampler: by the toy's own law it meets the deadline, to the 4 % that launches differ by,
    and none that was launched and clearly meets it is cheaper by more than their noise."""
    deadline_ms = 80.0
    budget = dataclasses.replace(BUDGET, trials=24)
    search = search_of(
        None,
        ToyBench(),
        sampler=sampler,
        budget=budget,
        objective="cost",
        constraints=(f"p95_ms <= {deadline_ms}",),
    )
    run_out(search)
    best = search.recommend()
    assert best is not None
    whole = Configuration({**studies.default(), **best})
    assert 1.5 * studies.mean_ms(whole, benches.CONCURRENCY) <= 1.08 * deadline_ms
    prices_ = {
        trial.configuration: trial.measured.price
        for trial in search.trials
        if trial.measured is not None
    }
    clearly_kept = [
        price
        for configuration, price in prices_.items()
        if 1.5 * studies.mean_ms({**studies.default(), **configuration}, benches.CONCURRENCY)
        <= 0.85 * deadline_ms
    ]
    assert prices_[best] <= 1.15 * min(clearly_kept)


@pytest.mark.parametrize("point", ["knee", "mean", "cost"])
def test_of_two_objectives_the_point_that_is_asked_for_is_recommended(point: str) -> None:
    """The ends of the front are the best in one objective; the knee lies between them."""
    search = search_of(None, ToyBench(), sampler="gp", second="cost", point=point)
    run_out(search)
    shown = search.front()
    assert len(shown) >= 2
    assert [one.values[0] for one in shown] == sorted(one.values[0] for one in shown)
    assert [one.values[1] for one in shown] == sorted(
        (one.values[1] for one in shown), reverse=True
    )
    chosen = [place for place, one in enumerate(shown) if one.is_chosen]
    assert len(chosen) == 1
    assert search.recommend() == shown[chosen[0]].configuration
    if point != "knee":
        assert chosen[0] == (0 if point == "mean" else len(shown) - 1)
    assert all(search.trials[one.trial].configuration == one.configuration for one in shown)
