"""The default is recommended until another configuration probably beats it."""

from __future__ import annotations

from tests.fakes import recorded
from tuner.lab import prepared_table, replay_search
from tuner.lab.replay_search import ReplaySpec
from tuner.lab.tables.table_evaluator import Perturbations
from tuner.sampling import recommendation
from tuner.study.search import Search
from tuner.values.configuration import Configuration

GROUND = prepared_table.prepare_table(recorded.table(passes=4, every=6))
DEFAULT = GROUND.problem.default


def searched(perturbations: Perturbations) -> Search:
    """A search of sixteen trials."""
    order = ReplaySpec(sampler="random", trials=16, seeds=(5,), perturbations=perturbations)
    evaluator = replay_search.make_evaluator(GROUND, perturbations, 5)
    search = replay_search.search_of(GROUND, order, 5, evaluator)
    for _ in range(order.trials):
        search.step()
    return search


def recommended(search: Search, default: Configuration | None) -> Configuration | None:
    return recommendation.recommend(
        search.store.study, candidates=GROUND.problem.candidates, default=default
    )


def test_the_default_is_kept_where_all_are_equal() -> None:
    """Also one that has knobs which the candidates lack, as fixed knobs are."""
    search = searched(Perturbations(is_null=True, noise_sd=0.05))
    assert recommended(search, None) != DEFAULT, "another one had luck"
    assert recommended(search, DEFAULT) == DEFAULT
    assert recommended(search, Configuration({**DEFAULT, "fixed.knob": 1})) == DEFAULT


def test_a_better_one_is_recommended() -> None:
    search = searched(Perturbations())
    found = recommended(search, DEFAULT)
    assert found is not None
    assert GROUND.truth.regret(found) < GROUND.truth.regret(DEFAULT)
