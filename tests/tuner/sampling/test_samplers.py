"""One contract for all samplers: any study, any history, any mode.

Samplers are deterministic, so nothing here is flaky; where a claim is statistical, its false-alarm rate says how likely
an innocent change of the random stream breaks the test.
"""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from tests.fakes import surfaces
from tuner.errors import UsageError
from tuner.sampling import registry
from tuner.sampling.candidate_sampler import CandidateSampler
from tuner.sampling.candidates import CandidateSet
from tuner.sampling.history import PROPOSAL
from tuner.values.configuration import Configuration

Make = Callable[..., CandidateSampler]
LOST = {"status": "infeasible", "cause": "oom", "reason": "the replica was killed"}


def maker(name: str, **options: Any) -> Make:
    """A factory of one sampler with its options."""

    def make(*, seed: int = 1, initial: int = 4, candidates: CandidateSet | None = None) -> Any:
        return registry.create(name, seed=seed, initial=initial, candidates=candidates, **options)

    return make


SAMPLERS = {name: maker(name) for name in registry.NAMES if registry.is_installed(name)}
NEVER_TWICE = [
    name for name in ("random", "skopt", "gpy", "ridge", "optuna-gp", "smac") if name in SAMPLERS
]
WITHOUT_CHANCE = ("hill-climb",)
"""Samplers that have no random numbers where there are candidates: every seed goes their way."""


@pytest.fixture(params=SAMPLERS)
def make(request: pytest.FixtureRequest) -> Make:
    """Each sampler in turn."""
    return SAMPLERS[request.param]


def ask(study: optuna.Study) -> optuna.Trial:
    """A trial with all parameters of the surface."""
    return study.ask(dict(surfaces.DISTRIBUTIONS))


def lose(study: optuna.Study, trial: optuna.Trial) -> None:
    """End a trial as the tuner does when its configuration cannot work."""
    trial.set_user_attr("outcome", LOST)
    study.tell(trial, state=TrialState.PRUNED)


def run(study: optuna.Study, trials: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Ask and tell on the noisy surface; noise belongs to (seed, trial)."""
    for _ in range(trials):
        trial = ask(study)
        rng = np.random.default_rng([seed, trial.number])
        study.tell(trial, surfaces.noisy_ms(trial.params, rng))
    return [trial.params for trial in study.trials]


def bare(trial: optuna.Trial) -> float:
    """An objective that somebody else wrote: every kind of parameter, one of them conditional."""
    x = trial.suggest_float("x", -2, 2)
    y = trial.suggest_float("y", 1e-3, 10, log=True)
    count = trial.suggest_int("count", 1, 9, step=2)
    size = trial.suggest_int("size", 1, 64, log=True)
    policy = trial.suggest_categorical("policy", ["a", "b", "c"])
    trial.suggest_float("constant", 3.0, 3.0)
    extra = trial.suggest_float("extra", 0, 1, step=0.25) if policy == "a" else 0.0
    return 5 + x**2 + abs(np.log10(y)) + count + size / 64 + extra


def test_it_works_in_a_study_that_somebody_else_wrote(make: Make) -> None:
    """Seven trials with every kind of parameter, none of them out of its range."""
    study = optuna.create_study(sampler=make(initial=5))
    study.optimize(bare, n_trials=7)
    for trial in study.trials:
        assert trial.state is TrialState.COMPLETE
        for name, value in trial.params.items():
            distribution = trial.distributions[name]
            assert distribution._contains(distribution.to_internal_repr(value))


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_same_seed_proposes_the_same(name: str) -> None:
    """Two studies with one seed and equal results are equal; another seed goes another way."""
    make = SAMPLERS[name]
    histories = [
        run(optuna.create_study(sampler=make(seed=seed, candidates=surfaces.candidates())), 5)
        for seed in (5, 5, 6)
    ]
    assert histories[0] == histories[1]
    assert (histories[0] != histories[2]) == (name not in WITHOUT_CHANCE)


def test_a_resumed_study_goes_on_as_if_it_had_not_stopped(
    make: Make, tmp_path: pathlib.Path
) -> None:
    """A new sampler object on the stored study proposes what the old one would have."""
    whole = optuna.create_study(sampler=make())
    expected = run(whole, 6)
    file = JournalFileBackend(str(tmp_path / "study.log"))
    run(optuna.create_study(storage=JournalStorage(file), study_name="s", sampler=make()), 5)
    resumed = optuna.load_study(storage=JournalStorage(file), study_name="s", sampler=make())
    assert run(resumed, 1) == expected


def test_candidates_are_the_only_proposals(make: Make) -> None:
    """In a space with holes every proposal is a cell, from the first trial on."""
    candidates = surfaces.candidates(every=5)
    study = optuna.create_study(sampler=make(candidates=candidates))
    for params in run(study, 6):
        assert candidates.index_of(params) is not None


def test_an_enqueued_trial_comes_first_and_as_it_is(make: Make) -> None:
    """What somebody wants to see run is run, whole or in part."""
    study = optuna.create_study(sampler=make(candidates=surfaces.candidates()))
    whole = {"replica.count": 3, "batching.max_size": 8, "replica.cpu": 0.4}
    study.enqueue_trial(whole)
    study.enqueue_trial({"replica.count": 2})
    first, second, *_ = run(study, 6)
    assert first == whole
    assert second["replica.count"] == 2


@pytest.mark.parametrize("mode", ["candidates", "bare"])
@pytest.mark.parametrize("how", ["outcome", "exception"])
def test_a_history_of_failures_alone_is_survived(make: Make, mode: str, how: str) -> None:
    """Nothing ever worked, and there is still a next proposal."""
    candidates = surfaces.candidates() if mode == "candidates" else None
    study = optuna.create_study(sampler=make(candidates=candidates))
    for _ in range(8):
        trial = ask(study)
        if how == "outcome":
            lose(study, trial)
        else:
            study.tell(trial, state=TrialState.FAIL)
    assert len(ask(study).params) == 3


@pytest.mark.parametrize("name", NEVER_TWICE)
def test_no_cell_is_run_twice_until_all_were(name: str) -> None:
    """Twelve cells, twelve trials; the thirteenth says that it is a replicate."""
    study = optuna.create_study(
        sampler=SAMPLERS[name](initial=9, candidates=surfaces.small_candidates())
    )
    distributions = {"a": IntDistribution(1, 12)}
    for _ in range(13):
        trial = study.ask(distributions)
        study.tell(trial, 10.0 + trial.params["a"])
    values = [trial.params["a"] for trial in study.trials]
    assert sorted(values[:12]) == list(range(1, 13))
    assert study.trials[-1].user_attrs[PROPOSAL]["origin"] == "replicate"


def test_a_repeat_is_marked(make: Make) -> None:
    """A configuration that was run before is only proposed as a replicate, and nothing else is."""
    study = optuna.create_study(sampler=make(candidates=surfaces.small_candidates()))
    seen = set()
    for _ in range(8):
        trial = study.ask({"a": IntDistribution(1, 12)})
        is_repeat = trial.params["a"] in seen
        origin = study.trials[-1].user_attrs[PROPOSAL]["origin"]
        assert (origin == "replicate") == is_repeat
        seen.add(trial.params["a"])
        study.tell(trial, 10.0 + trial.params["a"])


@pytest.mark.parametrize("name", ["gp", "structured"])
def test_what_is_run_again_says_so(name: str) -> None:
    """A process may repeat a cell on purpose; every repeat is marked, and nothing else is."""
    study = optuna.create_study(
        sampler=SAMPLERS[name](initial=4, candidates=surfaces.small_candidates())
    )
    distributions = {"a": IntDistribution(1, 12)}
    seen: set[int] = set()
    for _ in range(14):
        trial = study.ask(distributions)
        study.tell(trial, 10.0 + trial.params["a"])
        kept = study.trials[-1]
        is_repeat = kept.user_attrs[PROPOSAL]["origin"] == "replicate"
        assert is_repeat == (kept.params["a"] in seen)
        seen.add(kept.params["a"])
    assert {1, 2} & seen


@pytest.mark.parametrize("name", ["gp", *NEVER_TWICE])
def test_trials_under_way_are_taken_into_account(name: str) -> None:
    """Three trials asked for at once, after some have ended, are three different cells."""
    study = optuna.create_study(sampler=SAMPLERS[name](candidates=surfaces.candidates()))
    run(study, 5)
    under_way = [Configuration(ask(study).params) for _ in range(3)]
    assert len(set(under_way)) == 3


def test_threads_share_a_sampler(make: Make) -> None:
    """Parallel trials of one study end as they should."""
    study = optuna.create_study(sampler=make(candidates=surfaces.candidates()))

    def objective(trial: optuna.Trial) -> float:
        count = trial.suggest_int("replica.count", 1, 6)
        size = trial.suggest_categorical("batching.max_size", (1, 2, 4, 8, 16, 32))
        cpu = trial.suggest_float("replica.cpu", 0.0, 1.0, step=0.2)
        values = {"replica.count": count, "batching.max_size": size, "replica.cpu": cpu}
        return surfaces.latency_ms(values)

    study.optimize(objective, n_trials=6, n_jobs=2)
    assert [trial.state for trial in study.trials] == [TrialState.COMPLETE] * 6


def test_an_interrupted_trial_is_as_if_it_had_not_been(make: Make) -> None:
    """A trial of ours that was killed has no influence on the next proposal but its number."""
    study = optuna.create_study(sampler=make(candidates=surfaces.candidates()))
    run(study, 5)
    killed = ask(study)
    killed.set_user_attr("origin", "guided")
    study.tell(killed, state=TrialState.FAIL)
    study.sampler = make(candidates=surfaces.candidates())
    again = ask(study)
    history = study.sampler.context(study, study.trials[again.number], {}).history
    assert history.trial_count == 5
    assert len(history.targets) == 5
    assert not len(history.lost_vectors)


def tried(
    make: Make, direction: str, value: Callable[[float], float], trials: int = 6
) -> list[dict[str, Any]]:
    """The trials of a short study of some value of the noiseless latency: after the design two that follow from it,
    the second of which also knows what the first has learned.
    """
    study = optuna.create_study(
        direction=direction, sampler=make(seed=3, candidates=surfaces.candidates())
    )
    for _ in range(trials):
        trial = ask(study)
        study.tell(trial, value(surfaces.latency_ms(trial.params)))
    return [trial.params for trial in study.trials]


def test_maximising_is_minimising_the_other_way(make: Make) -> None:
    """The highest throughput is looked for where the lowest latency is."""
    lowest = tried(make, "minimize", lambda latency: latency)
    assert tried(make, "maximize", lambda latency: 1 / latency) == lowest


def test_objectives_may_be_negative_or_zero(make: Make) -> None:
    """Without a logarithm the raw values serve, in both directions alike."""
    (params,) = tried(make, "minimize", lambda latency: latency, trials=1)
    first = surfaces.latency_ms(params)
    lowest = tried(make, "minimize", lambda latency: latency - first)
    assert tried(make, "maximize", lambda latency: first - latency) == lowest


def test_it_survives_pickling(make: Make) -> None:
    """A sampler can be stored beside a study, as Optuna's documentation advises."""
    study = optuna.create_study(sampler=make(candidates=surfaces.candidates()))
    run(study, 5)
    study.sampler = pickle.loads(pickle.dumps(study.sampler))
    assert len(run(study, 1)) == 6


def test_more_than_one_objective_is_refused(make: Make) -> None:
    """Wrong use says how many objectives there are."""
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=make())
    with pytest.raises(UsageError, match="the study has 2"):
        study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 0.0), n_trials=1)


def test_candidates_that_do_not_fit_the_study_are_wrong_use(make: Make) -> None:
    """A cell whose value the distribution forbids is named, instead of being run as another."""
    study = optuna.create_study(sampler=make(candidates=surfaces.small_candidates()))
    with pytest.raises(UsageError, match=r"'a'.*same search space"):
        study.ask({"a": CategoricalDistribution(("x", "y"))})


@pytest.mark.slow
@pytest.mark.parametrize("name", [one for one in ("gpy", "skopt") if one in SAMPLERS])
def test_what_others_processes_expect_ends_a_search(name: str) -> None:
    """More than one per cent at first, less when the valley is known, nothing where all cells were run."""
    study = optuna.create_study(
        sampler=SAMPLERS[name](seed=4, initial=6, candidates=surfaces.candidates())
    )
    run(study, 24, seed=4)
    key = "largest_expected_improvement"
    gains = [trial.user_attrs[PROPOSAL].get(key) for trial in study.trials]
    assert gains[:6] == [None] * 6
    assert gains[6] > 0.01 > max(gains[-3:])
    small = optuna.create_study(
        sampler=SAMPLERS[name](initial=11, candidates=surfaces.small_candidates())
    )
    for _ in range(13):
        trial = small.ask({"a": IntDistribution(1, 12)})
        small.tell(trial, 10.0 + trial.params["a"])
    assert small.trials[-1].user_attrs[PROPOSAL][key] == 0.0


CELLS = surfaces.candidates()
PREDICTED = np.exp(
    0.6 * np.log([surfaces.latency_ms(cell) for cell in CELLS.configurations])
    + 0.15 * np.random.default_rng(0).normal(size=len(CELLS.configurations))
)
"""A prediction of every cell: too flat, and 15 % off."""
PREDICTIONS = {"structured-predicted": PREDICTED, "structured-misled": 1 / PREDICTED}


def searching(name: str, seed: int) -> CandidateSampler:
    """A sampler by its name here."""
    if name not in PREDICTIONS:
        return SAMPLERS[name](seed=seed, initial=8)
    guess = PREDICTIONS[name]
    return registry.create("structured", seed=seed, initial=4, candidates=CELLS, guess=guess)


def found_rank(name: str, seed: int, trials: int) -> int:
    """How many other cells of 216 are as good as the best that was tried; odd seeds maximise a rate instead."""
    is_odd = bool(seed % 2)
    direction = "maximize" if is_odd else "minimize"
    study = optuna.create_study(direction=direction, sampler=searching(name, seed))
    for _ in range(trials):
        trial = ask(study)
        value = surfaces.noisy_ms(trial.params, np.random.default_rng([seed, trial.number]))
        study.tell(trial, 1e3 / value if is_odd else value)
    return surfaces.rank(min(surfaces.latency_ms(trial.params) for trial in study.trials))


OF_OTHERS = [
    ("gpy", 16, 6),  # 0.4 of 1.8
    ("optuna-gp", 16, 6),  # 0.5 of 1.8
    ("botorch", 16, 6),  # 0.7 of 1.8
    ("smac", 30, 24),  # 1.3 of 2.7
]
"""Samplers whose package may be missing, as in the list below."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trials", "searches"),
    [
        # Behind each the mean rank in other searches, and the bound.
        ("structured", 16, 6),  # 0.5 of 1.8
        ("structured-predicted", 14, 6),  # 0.6 of 2.2
        ("structured-misled", 22, 4),  # 0.0 of 0.8
        ("gp", 16, 6),  # 0.5 of 1.8
        ("tpe", 30, 24),  # 1.8 of 2.7
        ("ridge", 22, 24),  # 2.2 of 4.0
        ("hill-climb", 16, 10),  # 0.8 of 3.3
        *(row for row in OF_OTHERS if row[0] in SAMPLERS),
    ],
)
def test_it_finds_what_chance_does_not(name: str, trials: int, searches: int) -> None:
    """In searches of both directions the best cell that was tried lies nearer to the best of 216, in the
    mean, than in 999 of 1,000 such samples of random searches.
    """
    ranks = [found_rank(name, seed, trials) for seed in range(searches)]
    assert np.mean(ranks) < surfaces.lucky_rank(216, trials, searches), ranks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trials"),
    [
        ("skopt", 16),  # mean rank 35, bound 68
        ("epsilon-greedy", 22),
    ],
)
def test_its_proposals_are_better_than_chance(name: str, trials: int) -> None:
    """Those after the design, in three searches, by a mean rank that random cells have once in 1,000 samples.

    What both find in so few trials is not told from chance: they stay near what they have.
    """
    ranks: list[int] = []
    for seed in range(3):
        study = optuna.create_study(sampler=SAMPLERS[name](seed=seed, initial=8))
        tried = run(study, trials, seed=seed)[8:]
        ranks += [surfaces.rank(surfaces.latency_ms(params)) for params in tried]
    assert np.mean(ranks) < 107.5 - 3.1 * 62.4 / len(ranks) ** 0.5, ranks


def test_chance_does_not_find_it() -> None:
    """What a random sampler finds is what its law says, and no test above would let it pass."""
    ranks = [found_rank("random", seed, 22) for seed in range(40)]
    assert surfaces.lucky_rank(216, 22, 40) < np.mean(ranks)
    assert np.mean(ranks) < surfaces.lucky_rank(216, 22, 40, share=0.999)


@pytest.mark.slow
def test_the_process_learns_where_the_wall_is() -> None:
    """Of 20 guided trials in two studies at most 4 are lost, where random trials lose 7.

    Measured over 24 other seeds: 4 % lost; the false-alarm rate is 1 in 500.
    """
    lost = 0
    for seed in range(2):
        study = optuna.create_study(sampler=SAMPLERS["gp"](seed=seed, initial=8))
        for number in range(18):
            trial = ask(study)
            if surfaces.is_out_of_memory(trial.params):
                lost += number >= 8
                lose(study, trial)
            else:
                rng = np.random.default_rng([seed, number])
                study.tell(trial, surfaces.noisy_ms(trial.params, rng))
    assert lost <= 4
