"""Searches of several samplers on a toy bench: what one of them lacks costs the others nothing."""

from __future__ import annotations

import dataclasses
import io
import pathlib

import pytest
import rich.console

from tests.fakes import benches
from tests.fakes.benches import ToyBench
from tuner.evaluation.evaluation import Evaluation
from tuner.lab import compare, sampler_searches
from tuner.lab.compare import CompareSpec
from tuner.load_generator.plan import Race
from tuner.measurement.search_comparison import differences
from tuner.metrics.objective import find_objective
from tuner.report import formatting
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.store.run_folder import RunFolder
from tuner.study.budget import Budget
from tuner.study.progress import Terminal
from tuner.values.configuration import Configuration
from tuner.values.sampler_comparison import SamplerRun
from tuner.values.trial import Outcome

pytestmark = pytest.mark.slow

SETTINGS = StudySettings(
    target=TargetSettings(model="toy", concurrency=benches.CONCURRENCY),
    search=SearchSettings(trials=2, initial=2),
    measurement=MeasurementSettings(pairs=2),
)
DIED = Outcome(status="infeasible", cause="oom", reason="peak 64 MiB")


@dataclasses.dataclass
class Failing(ToyBench):
    """The launches of these numbers fail."""

    numbers: frozenset[int] = frozenset()

    def evaluate(self, configuration: Configuration, race: Race | None = None) -> Evaluation:
        launch = super().evaluate(configuration, race)
        if len(self.launched) - 1 not in self.numbers:
            return launch
        return dataclasses.replace(launch, outcome=DIED, measurement=None)

    evaluate_on_new_server = evaluate

    def start(self) -> None:
        """Nothing to start."""


def runs_of(
    path: pathlib.Path, bench: Failing, *, repeats: int
) -> tuple[tuple[SamplerRun, ...], tuple[str, ...]]:
    """Two samplers of two trials each, which take turns: trials 0 and 2 are the first one's."""
    folder = RunFolder(path, "c")
    folder.create({}, {}, settings_file=compare.SETTINGS_FILE)
    terminal = Terminal(
        console=rich.console.Console(quiet=True), log=EventLog(), check=lambda: None
    )
    order = CompareSpec(settings=SETTINGS, samplers=("random", "tpe"), repeats=repeats)
    return compare._runs(order, SETTINGS, folder, benches.arena(), bench, terminal)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("numbers", "winners"),
    [({0, 2}, [False, True, True, True]), ({0, 1, 2, 3}, [False, False, True, True])],
)
def test_a_search_in_which_nothing_works_does_not_end_the_comparison(
    tmp_path: pathlib.Path, numbers: set[int], winners: list[bool]
) -> None:
    """Nor does a repeat in which that is so of all: what was measured is there, and compared."""
    runs, _ = runs_of(tmp_path, Failing(numbers=frozenset(numbers)), repeats=2)
    assert [run.winner is not None for run in runs] == winners
    assert [len(run.remeasured) for run in runs] == [2 * has for has in winners]
    assert differences(runs, find_objective("mean")) == ()  # one repeat is no pair of repeats


def test_a_winner_that_fails_on_fresh_starts_is_noted(tmp_path: pathlib.Path) -> None:
    """Its other round evaluations do not stand for it alone."""
    _, failures = runs_of(tmp_path, Failing(numbers=frozenset({4})), repeats=1)
    assert failures == ("the winner of random in repeat 0 failed 1 of 2 evaluations (peak 64 MiB)",)


def test_what_a_comparison_does_not_use_is_not_listed() -> None:
    """Its samplers are its own, and it has no longest time."""
    asked = compare._settings_json(
        CompareSpec(settings=SETTINGS, samplers=("random", "tpe"), repeats=2), SETTINGS
    )
    assert set(asked["search"]) == {"trials", "initial", "seed"}
    assert asked["search"]["initial"] == 2
    assert asked["samplers"] == ["random", "tpe"]


def test_the_time_left_holds_for_the_whole_comparison(tmp_path: pathlib.Path) -> None:
    """The verification and later repeats are in it, so that only the last line says nothing is left."""
    stream = io.StringIO()
    folder = RunFolder(tmp_path, "c")
    folder.create({}, {}, settings_file=compare.SETTINGS_FILE)
    console = rich.console.Console(file=stream, highlight=False, soft_wrap=True)
    terminal = Terminal(console=console, log=EventLog(), check=lambda: None)
    order = CompareSpec(settings=SETTINGS, samplers=("random", "tpe"), repeats=2)
    compare._runs(order, SETTINGS, folder, benches.arena(), Failing(), terminal)  # type: ignore[arg-type]
    lines = stream.getvalue().splitlines()
    budget = Budget.of(SETTINGS)
    expected_s = 8 * budget.trial_s([]) + 8 * budget.fresh_s  # two winners of each repeat, twice
    assert lines[1].startswith(f"takes about {formatting.duration(expected_s)}, ")
    left = [line for line in lines if " s left" in line]
    assert not any("| 0 s left" in line for line in left)
    assert len(left) >= 11


def test_the_default_predicts_the_others_for_samplers_that_use_it(tmp_path: pathlib.Path) -> None:
    folder = RunFolder(tmp_path, "c")
    folder.create({}, {}, settings_file=compare.SETTINGS_FILE)
    for name, is_predicted in (("random", False), ("prediction", True)):
        run = sampler_searches.start_search(
            SETTINGS,
            folder,
            benches.arena(),
            Failing(),
            name,
            repeat=0,  # type: ignore[arg-type]
        )
        run.search.step()
        assert (run.search.problem.prediction is not None) == is_predicted


def test_what_needs_a_prediction_and_has_none_is_noted() -> None:
    """Energy does not follow from the latency."""
    measurement = dataclasses.replace(SETTINGS.measurement, objective="energy")
    settings = dataclasses.replace(SETTINGS, measurement=measurement)
    order = CompareSpec(
        settings=settings, samplers=("random", "prediction", "structured"), repeats=1
    )
    notes = compare._why_unpredicted(order, settings)
    assert len(notes) == 2
    assert "without a prediction, the sampler prediction" in notes[0]
