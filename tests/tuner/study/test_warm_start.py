"""What earlier studies teach: which of them count, where their launches lie, and that it helps."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.fakes import benches, studies
from tuner.sampling.history import History
from tuner.sampling.surrogates import model_averaging
from tuner.sampling.surrogates.knowledge import PriorKnowledge
from tuner.space import files, knob_schema
from tuner.study import prediction, warm_start
from tuner.study.problem import ProblemStatement, make_problem
from tuner.study.warm_start import SourceStudy
from tuner.values.configuration import Configuration

ARENA = benches.arena()
CELLS = ARENA.candidates.configurations


def true_ms(cell: Configuration, concurrency: int) -> float:
    return studies.mean_ms(Configuration({**studies.default(), **cell}), concurrency)


def earlier(concurrency: int, count: int = 40, seed: int = 0) -> SourceStudy:
    rng = np.random.default_rng(seed)
    chosen = [CELLS[place] for place in rng.choice(len(CELLS), count, replace=False)]
    launches = [
        (cell, true_ms(cell, concurrency) * math.exp(0.03 * rng.normal())) for cell in chosen
    ]
    return SourceStudy(
        name=f"toy-{concurrency}",
        environment=dataclasses.replace(ARENA.environment, concurrency=concurrency),
        evaluations=tuple(launches),
        winner=min(chosen, key=lambda cell: true_ms(cell, concurrency)),
    )


def taught(*studies_: SourceStudy) -> ProblemStatement:
    return warm_start.with_warm_start(ARENA, studies_, objective="mean")


def test_launches_get_a_place_and_their_load_beside_it() -> None:
    found = taught(earlier(10)).warm_start
    assert found is not None
    assert found.vectors.shape == (40, ARENA.candidates.width)
    assert found.context.shape == (40, 1), "one load differs, the client batch does not"
    assert found.own_context[0] > found.context[0, 0]


def test_evaluations_of_another_engine_lie_where_its_candidates_do() -> None:
    text = """
knobs:
  workers: {type: int, choices: [1, 2], default: 1, role: replicas}
  rows: {type: int, choices: [1, 64], default: 1, role: batch}
"""
    space = files.parse(text, "other.yaml", knob_schema.OF_URL)
    made = make_problem(space, ARENA.environment, limits="enforced")
    cells = made.candidates.configurations
    study = SourceStudy(
        name="other",
        environment=made.environment,
        evaluations=tuple((cell, 1.0) for cell in cells),
        winner=None,
    )
    found = warm_start.with_warm_start(made, [study], objective="mean").warm_start
    assert made.candidates.extra > 0
    assert found is not None
    assert np.array_equal(found.vectors, made.candidates.vectors)


def test_the_winner_is_a_cell_to_begin_with() -> None:
    made = taught(earlier(10))
    assert made.warm_start_configurations is not None
    assert set(made.warm_start_configurations) <= set(CELLS)


def test_what_another_load_taught_halves_the_error_of_a_few_launches() -> None:
    history = _history(6)
    every = np.arange(len(CELLS))
    truth = np.log([true_ms(cell, benches.CONCURRENCY) for cell in CELLS])

    def error(known: PriorKnowledge) -> float:
        mean, _ = model_averaging.fit(history, ARENA.candidates, known).predict(every)
        return float(np.sqrt(np.mean((mean - truth) ** 2)))

    assert error(PriorKnowledge(warm_start=taught(earlier(10)).warm_start)) < 0.6 * error(
        PriorKnowledge()
    )


def test_predictions_of_another_loads_evaluations_keep_the_structured_process() -> None:
    """They lie on the scale of the targets, from which the other load's size is taken."""
    told = prediction.estimate(taught(earlier(10)), true_ms(ARENA.default, benches.CONCURRENCY))
    assert told.warm_start is not None
    assert told.warm_start.prediction is not None
    off = told.warm_start.prediction - told.warm_start.targets
    assert abs(np.median(off)) < math.log(1.5)
    assert told.prediction is not None
    known = PriorKnowledge(prior_mean=np.log(told.prediction), warm_start=told.warm_start)
    assert model_averaging.fit(_history(6), ARENA.candidates, known).structured is not None


@pytest.mark.parametrize("objective", ["throughput", "goodput", "time-per-item"])
def test_rates_under_another_load_are_predicted_as_own_ones_are(objective: str) -> None:
    """A rate is the latency over what is in flight; the prediction is that of the latency."""

    def away(name: str, in_flight: int) -> np.ndarray:
        source = earlier(10)
        told = tuple((cell, value / in_flight) for cell, value in source.evaluations)
        source = dataclasses.replace(source, evaluations=told)
        made = warm_start.with_warm_start(ARENA, [source], objective=name)
        found = prediction.estimate(made, 5.0, name).warm_start
        assert found is not None
        assert found.prediction is not None
        return np.asarray(found.prediction - found.targets)

    own = math.log(ARENA.environment.concurrency)
    assert away(objective, 10) - away("mean", 1) == pytest.approx(own)


def test_a_cost_of_another_load_is_not_predicted() -> None:
    made = warm_start.with_warm_start(ARENA, [earlier(10)], objective="cost")
    found = prediction.estimate(made, 20.0, "cost").warm_start
    assert found is not None
    assert found.prediction is None


def test_a_knob_value_that_the_space_does_not_have_has_a_place_all_the_same() -> None:
    odd = Configuration({**CELLS[0], "replica.count": 9}), 5.0
    study = dataclasses.replace(earlier(10), evaluations=(odd,))
    found = taught(study).warm_start
    assert found is None or found.vectors.max() <= 1.0


def test_without_launches_nothing_is_learnt() -> None:
    assert taught(dataclasses.replace(earlier(10), evaluations=())) is ARENA


@pytest.mark.parametrize("count", [1, 4, 7, 9])
def test_many_studies_share_the_number_of_launches(count: int) -> None:
    """Each gives the same number of its newest ones, in all no more than the limit."""
    found = taught(*[earlier(10, 130)] * count).warm_start
    assert found is not None
    assert len(found.targets) == warm_start.MAX_EVALUATIONS // count * count


@pytest.mark.parametrize(
    ("objective", "grows"), [("mean", True), ("p99", True), ("throughput", False)]
)
def test_a_busy_servers_latency_grows_with_the_load(objective: str, grows: bool) -> None:
    then = dataclasses.replace(ARENA.environment, concurrency=5)
    shift = warm_start._shift(ARENA.environment, then, objective)
    assert shift == pytest.approx(math.log(4) if grows else 0.0)


def _history(count: int) -> History:
    rng = np.random.default_rng(5)
    at = rng.choice(len(CELLS), count, replace=False)
    targets = np.log([true_ms(CELLS[place], benches.CONCURRENCY) for place in at])
    width = ARENA.candidates.width
    return History(
        configurations=tuple(CELLS[place] for place in at),
        vectors=ARENA.candidates.vectors[at],
        targets=targets + 0.03 * rng.normal(size=count),
        errors=np.full(count, np.nan),
        headroom=np.full(count, np.nan),
        at_s=np.full(count, np.nan),
        log_cpu_per_request=np.full(count, np.nan),
        scale="log",
        scale_reason="",
        sign=1.0,
        lost_configurations=(),
        lost_vectors=np.empty((0, width)),
        killed_vectors=np.empty((0, width)),
        pending_vectors=np.empty((0, width)),
        seen=frozenset(),
        trial_count=count,
        hyperparameters=(),
    )
