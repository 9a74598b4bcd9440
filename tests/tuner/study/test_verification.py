"""Alternating fresh launches: their order, their pairs, and launches that fail."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence

import numpy as np
import pytest

from tests.fakes.benches import ToyBench
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.outcomes import count_failures
from tuner.measurement import sequential
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import metric_constraints
from tuner.study import verification
from tuner.study.verification import Pairs, SequentialRounds, among, count_rounds
from tuner.values.configuration import Configuration
from tuner.values.round_evaluation import FailureCount, RoundEvaluation
from tuner.values.trial import Outcome

ONE = Configuration({"replica.count": 1})
TWO = Configuration({"replica.count": 2})
THREE = Configuration({"replica.count": 3})
NEEDS = EvaluationRequirements(objective="mean")


def alternated(bench, configurations, **options):
    """Rounds of round evaluations."""
    return verification.alternate(
        SequentialRounds(bench.evaluate_on_new_server, configurations), **options
    )


def test_rounds_alternate_so_that_drift_favours_neither() -> None:
    """Two configurations in four rounds are launched A B B A A B B A, each round a pair."""
    bench = ToyBench()
    seen: list[tuple[int, str]] = []
    rounds = alternated(
        bench,
        {"default": ONE, "best": TWO},
        rounds=4,
        needs=NEEDS,
        report=lambda starts, _: seen.append((len(starts), starts[-1].role)),
    )
    assert bench.launched == [ONE, TWO, TWO, ONE] * 2
    assert [number for number, _ in seen] == list(range(1, 9))
    assert [role for _, role in seen[:4]] == ["default", "best", "best", "default"]
    assert rounds.complete_rounds == 4
    assert {len(found) for found in rounds.measurements.values()} == {4}
    assert all(start.measurement is not None for start in rounds.evaluations)


@dataclasses.dataclass
class FailsOnce(ToyBench):
    """The third launch fails."""

    def evaluate_on_new_server(self, configuration: Configuration) -> Evaluation:
        launch = self.evaluate(configuration)
        if len(self.launched) != 3:
            return launch
        outcome = Outcome(status="infeasible", cause="oom", reason="peak 64 MiB")
        return dataclasses.replace(launch, outcome=outcome, measurement=None)


def test_a_round_with_a_failed_launch_does_not_count() -> None:
    """The other launch of that round is left out too, so that pairs stay pairs; the reason is kept."""
    rounds = alternated(
        FailsOnce(), {"default": ONE, "best": TWO}, rounds=3, needs=NEEDS, report=lambda *_: None
    )
    assert rounds.complete_rounds == 2
    assert {len(found) for found in rounds.measurements.values()} == {2}
    assert count_failures(rounds.evaluations) == {
        "default": FailureCount(evaluations=3),
        "best": FailureCount(evaluations=3, failed=1, reason="peak 64 MiB"),
    }


def test_all_launches_together_decide_whether_a_limit_is_kept() -> None:
    """Each is measured; the tally of a side whose launches miss the limit together says by how much."""
    rounds = alternated(
        ToyBench(), {"default": ONE, "best": TWO}, rounds=2, needs=NEEDS, report=lambda *_: None
    )
    assert rounds.complete_rounds == 2
    best = metric_constraints.parse("mean_ms <= 1").of.together(rounds.measurements["best"])
    tight = metric_constraints.parse_all([f"mean_ms <= {0.99 * best}"])
    missed = count_failures(rounds.evaluations, tight)["best"]
    assert (missed.evaluations, missed.failed) == (2, 2)
    assert "is above the limit of" in missed.reason
    assert (
        count_failures(
            rounds.evaluations, metric_constraints.parse_all([f"mean_ms <= {1.01 * best}"])
        )["best"].failed
        == 0
    )


def test_a_launch_that_cannot_tell_what_is_needed_has_failed() -> None:
    """No energy is counted here."""
    rounds = alternated(
        ToyBench(),
        {"default": ONE, "best": TWO},
        rounds=2,
        needs=EvaluationRequirements(
            objective="mean", limits=metric_constraints.parse_all(["energy_j <= 1"])
        ),
        report=lambda *_: None,
    )
    assert rounds.complete_rounds == 0
    assert "its energy_j is unknown" in count_failures(rounds.evaluations)["best"].reason


@pytest.mark.parametrize("interrupted_at", range(8))
def test_an_interrupted_verification_goes_on_behind_its_last_pair(interrupted_at: int) -> None:
    """No pair is of two commands: one that was split is launched again, whole ones are not."""
    sides = {"default": ONE, "best": TWO}
    kept: list[RoundEvaluation] = []

    def keep(starts: Sequence[RoundEvaluation], _launch: Evaluation) -> None:
        kept[:] = starts

    first = ToyBench(interrupt_at=interrupted_at)
    with pytest.raises(KeyboardInterrupt):
        alternated(first, sides, rounds=4, needs=NEEDS, report=keep)
    assert len(kept) == interrupted_at
    done = tuple(kept)
    second = ToyBench(seed=1)
    rounds = alternated(second, sides, rounds=4, needs=NEEDS, report=keep, done=done)
    whole = interrupted_at // 2 * 2
    assert first.launched[:whole] + second.launched == [ONE, TWO, TWO, ONE] * 2
    assert tuple(kept[:whole]) == done[:whole]
    assert not set(map(id, kept[whole:])) & set(map(id, done))
    assert rounds == count_rounds(kept, tuple(sides))
    assert rounds.complete_rounds == 4


def test_a_fresh_start_survives_its_file() -> None:
    """With a measurement and without one."""
    seen: list[RoundEvaluation] = []
    alternated(
        FailsOnce(),
        {"one": ONE},
        rounds=3,
        needs=NEEDS,
        report=lambda starts, _: seen.append(starts[-1]),
    )
    assert [start.measurement is None for start in seen] == [False, False, True]
    for start in seen:
        assert RoundEvaluation.from_json(json.loads(json.dumps(start.as_json()))) == start


def test_a_third_that_fails_costs_the_others_no_pair() -> None:
    """The prediction's choice runs out of memory: default and best are compared all the same."""

    class Dies(ToyBench):
        def evaluate_on_new_server(self, configuration: Configuration) -> Evaluation:
            launch = self.evaluate(configuration)
            if configuration != THREE:
                return launch
            died = Outcome(status="infeasible", cause="oom", reason="peak 64 MiB")
            return dataclasses.replace(launch, outcome=died, measurement=None)

    roles = {"default": ONE, "best": TWO, "prediction": THREE}
    rounds = alternated(Dies(), roles, rounds=4, needs=NEEDS, report=lambda *_: None)
    assert rounds.complete_rounds == 0
    assert among(rounds.evaluations, "default", "best").complete_rounds == 4
    assert among(rounds.evaluations, "prediction", "best").complete_rounds == 0


def test_it_ends_with_the_round_that_is_enough() -> None:
    bench = ToyBench()
    rounds = alternated(
        bench,
        {"default": ONE, "best": TWO},
        rounds=10,
        needs=NEEDS,
        report=lambda *_: None,
        is_enough=lambda found: found.complete_rounds >= 3,
    )
    assert rounds.complete_rounds == 3
    assert len(bench.launched) == 6


def test_two_objectives_share_the_error_of_their_pairs() -> None:
    """However they are compared, in a study or in a replay."""
    one, two = (Pairs(names=names, most=8, sd=0.02) for names in (("mean",), ("mean", "cost")))
    assert two.rule.alpha == one.rule.alpha / 2
    assert (two.rule.most, two.rule.sd) == (8, 0.02)


@pytest.mark.parametrize("others", [{}, {"prediction": THREE}])
def test_pairs_are_compared_alike_whoever_else_was_launched(
    others: dict[str, Configuration],
) -> None:
    """Until the pairs of default and best are enough; one of them shows nothing."""
    pairs = Pairs(names=("mean",), most=8, sd=0.02)
    roles = {"default": ONE, "best": TWO, **others}
    rounds = alternated(
        ToyBench(),
        roles,
        rounds=8,
        needs=NEEDS,
        report=lambda *_: None,
        is_enough=pairs.is_enough,
    )
    assert pairs.is_enough(rounds)
    before = among(rounds.evaluations[: -len(roles)], *roles)
    assert not pairs.is_enough(before)
    found = pairs.verdict(rounds)
    assert found is not None
    assert len(found.best) == len(found.default) == rounds.complete_rounds
    assert pairs.verdict(among(rounds.evaluations[: len(roles)], *roles)) is None


def test_a_slice_that_was_left_out_takes_its_neighbour_with_it() -> None:
    """The slices of both sides stay side by side; a round that lacks some counts with its rest."""

    def rounds(left_out: int | None) -> list[RoundEvaluation]:
        found = []
        for number, factor in enumerate((1.0, 1.1, 0.9)):
            whole = [1.0, 1.01, 0.99, 1.0]
            if number == 0 and left_out is not None:
                whole[left_out] = 0.0
            best = [factor * one for one in (1.0, 1.0, 1.0, 1.0)]
            for role, slices_ms in (("default", whole), ("best", best)):
                found.append(
                    RoundEvaluation(
                        role=role,
                        outcome=Outcome(status="ok"),
                        measurement=None,
                        slices_ms=tuple(slices_ms),
                    )
                )
        return found

    whole = verification.evaluation_sd(rounds(None))
    assert whole is not None
    assert whole == pytest.approx(0.1, abs=0.01)
    for place in range(4):
        cut = verification.evaluation_sd(rounds(place))
        assert cut is not None
        assert cut == pytest.approx(whole, abs=0.02)


def test_what_drifts_on_each_of_two_machines_is_no_chance() -> None:
    """The intervals of both objectives and the stop know which pairs are neighbours."""
    pairs = Pairs(names=("mean", "p50"), most=24, sd=0.03)
    drift = 0.04 * np.sin(np.arange(12) / 2)
    differences = np.stack([drift, -drift]).T.ravel().tolist()
    nodes = ["a", "b"] * 12
    plain = ToyBench().evaluate(ONE).measurement
    assert plain is not None
    rounds = count_rounds(
        [
            RoundEvaluation(
                role=role,
                outcome=Outcome(status="ok"),
                measurement=dataclasses.replace(plain, mean_ms=mean_ms, p50_ms=mean_ms),
                node=node,
            )
            for difference, node in zip(differences, nodes, strict=True)
            for role, mean_ms in (("default", 1.0), ("best", math.exp(difference)))
        ],
        ("default", "best"),
    )
    found = pairs.verdict(rounds)
    assert found is not None
    assert found.second is not None
    expected = sequential.estimate(differences, nodes, alpha=pairs.rule.alpha)
    assert expected.high > 2 * sequential.estimate(differences, alpha=pairs.rule.alpha).high
    for interval in (found.interval, found.second.interval):
        assert interval.high == pytest.approx(math.exp(expected.high))
    before = count_rounds(rounds.evaluations[:-2], ("default", "best"))
    assert pairs.rule.is_enough(differences[:-1])
    assert not pairs.is_enough(before)
