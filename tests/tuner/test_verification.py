"""Alternating fresh launches: their order, their pairs, and launches that fail."""

from __future__ import annotations

import dataclasses

from tests.fakes.benches import ToyBench
from tuner.bench import Launch
from tuner.values import Configuration, Outcome
from tuner.verification import alternate

ONE = Configuration({"replica.count": 1})
TWO = Configuration({"replica.count": 2})


def test_rounds_alternate_so_that_drift_favours_neither() -> None:
    """Two configurations in four rounds are launched A B B A A B B A, each round a pair."""
    bench = ToyBench()
    seen: list[tuple[int, str]] = []
    rounds = alternate(
        bench,
        {"default": ONE, "best": TWO},
        rounds=4,
        report=lambda number, role, _: seen.append((number, role)),
    )
    assert bench.launched == [ONE, TWO, TWO, ONE] * 2
    assert [number for number, _ in seen] == list(range(1, 9))
    assert [role for _, role in seen[:4]] == ["default", "best", "best", "default"]
    assert rounds.counted == 4
    assert {len(found) for found in rounds.measurements.values()} == {4}
    assert rounds.failures == ()


@dataclasses.dataclass
class FailsOnce(ToyBench):
    """The third launch fails."""

    def launch_fresh(self, configuration: Configuration) -> Launch:
        launch = self.launch(configuration)
        if len(self.launched) != 3:
            return launch
        outcome = Outcome(status="infeasible", cause="oom", reason="peak 64 MiB")
        return dataclasses.replace(launch, outcome=outcome, measurement=None)


def test_a_round_with_a_failed_launch_does_not_count() -> None:
    """The other launch of that round is left out too, so that pairs stay pairs; the reason is kept."""
    rounds = alternate(FailsOnce(), {"default": ONE, "best": TWO}, rounds=3, report=lambda *_: None)
    assert rounds.counted == 2
    assert {len(found) for found in rounds.measurements.values()} == {2}
    assert rounds.failures == ("best: peak 64 MiB",)
