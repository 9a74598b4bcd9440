"""The hub with a toy bench: what a signal keeps, in the search and in the verification."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import statistics
import time

import numpy as np
import pytest
import rich.console

from serving.values import Signature
from tests.fakes import benches
from tests.fakes.benches import ToyBench
from tuner.advice import advise
from tuner.errors import Interrupted, StorageFailed
from tuner.launching.engine import EngineInfo
from tuner.report.study import headline, study_notes
from tuner.settings.measurement import MeasurementSettings
from tuner.settings.search import SearchSettings
from tuner.settings.study import StudySettings
from tuner.settings.target import TargetSettings
from tuner.store.event_log import EventLog
from tuner.store.run_folder import RunFolder
from tuner.study import creation, study, study_files
from tuner.study.progress import Progress, Terminal
from tuner.study.study_run import StudyRun
from tuner.values.histogram import LatencyHistogram
from tuner.values.trial import Outcome

pytestmark = pytest.mark.slow

SETTINGS = StudySettings(
    target=TargetSettings(model="toy", concurrency=benches.CONCURRENCY),
    search=SearchSettings(sampler="random", trials=6, initial=6, stop_ei=0),
    measurement=MeasurementSettings(pairs=3),
)
SERVED = EngineInfo(
    model="toy",
    kind="python",
    signature=Signature(inputs=(), outputs=()),
    limits="enforced",
)


@dataclasses.dataclass
class SlowBench(ToyBench):
    """Every launch takes some time."""

    def evaluate(self, configuration, race=None):
        time.sleep(0.02)
        return super().evaluate(configuration, race)

    evaluate_on_new_server = evaluate


def setup_of(
    path: pathlib.Path, bench: ToyBench, *, settings: StudySettings = SETTINGS
) -> StudyRun:
    """A new study, or one that goes on."""
    folder, arena = RunFolder(path, "s"), benches.arena()
    if folder.exists():
        store = study_files.store_of(folder, settings)
    else:
        store = creation.create_study(folder, benches.inputs(settings, SERVED), overwrite=False)
    console = rich.console.Console(quiet=True)
    return StudyRun(
        settings=settings,
        folder=folder,
        store=store,
        problem=arena,
        evaluator=bench,
        terminal=Terminal(console=console, log=EventLog(), check=lambda: None),
        progress=Progress(console, default=arena.default, objective="mean"),
        begin_s=time.monotonic() - store.used_s(),
    )


def test_a_signal_before_the_first_result_says_that_there_is_none(tmp_path: pathlib.Path) -> None:
    """It still names the command that goes on, because the study is there."""
    with pytest.raises(Interrupted, match=r"no result yet; resume with: tune resume s") as caught:
        study._run(setup_of(tmp_path, ToyBench(interrupt_at=0)))
    assert "everything" not in str(caught.value)


def test_a_signal_in_the_search_counts_the_trials(tmp_path: pathlib.Path) -> None:
    """Three trials ended before it."""
    with pytest.raises(
        Interrupted,
        match=r"3 trials are saved, and trial 3, which was running, is not; resume with: tune resume s",
    ):
        study._run(setup_of(tmp_path, ToyBench(interrupt_at=3)))


def test_a_signal_in_the_verification_keeps_its_launches(tmp_path: pathlib.Path) -> None:
    """After six trials and three round evaluations, one pair counts: the next process has four to go, and no
    trial.
    """
    with pytest.raises(
        Interrupted, match="the search and 2 evaluations of the verification are saved"
    ):
        study._run(setup_of(tmp_path, ToyBench(interrupt_at=9)))
    kept = study_files.read_verification_state(RunFolder(tmp_path, "s"))
    assert kept is not None
    bench = ToyBench(seed=1)
    finished = study._run(setup_of(tmp_path, bench))
    assert len(bench.launched) == 4
    verdict = finished.record.verdict
    assert verdict is not None
    assert (len(verdict.default), len(verdict.best)) == (3, 3)
    assert verdict.default[0] == kept.evaluations[0].measurement
    assert finished.record.best == kept.best
    assert finished.stopped == kept.stopped


def test_the_plan_tells_the_pairs_that_time_allowed(tmp_path: pathlib.Path) -> None:
    """A verification that was cut to two pairs goes on to two, not to the three of the settings."""
    with pytest.raises(Interrupted):
        study._run(setup_of(tmp_path, ToyBench(interrupt_at=8)))
    folder = RunFolder(tmp_path, "s")
    kept = study_files.read_verification_state(folder)
    assert kept is not None
    study_files.save_verification_state(folder, dataclasses.replace(kept, pairs=2))
    said = io.StringIO()
    setup = setup_of(tmp_path, ToyBench())
    progress = Progress(
        rich.console.Console(file=said), default=setup.problem.default, objective="mean"
    )
    study._run(dataclasses.replace(setup, progress=progress))
    assert "then default and best at most 2 times each in turn" in said.getvalue()
    assert "verify 4/4" in said.getvalue()


@dataclasses.dataclass
class DiesAfresh(ToyBench):
    """One of the two sides works in the search and dies on round evaluations."""

    is_default: bool = False
    spares: int = 0
    """Fresh starts of it that work, the first ones."""

    def evaluate_on_new_server(self, configuration):
        launch = self.evaluate(configuration)
        if (configuration == benches.arena().default) != self.is_default:
            return launch
        self.spares -= 1
        if self.spares >= 0:
            return launch
        died = Outcome(status="infeasible", cause="oom", reason="peak 64 MiB")
        return dataclasses.replace(launch, outcome=died, measurement=None)


@pytest.mark.parametrize("spares", [0, 2])
@pytest.mark.parametrize("is_default", [False, True])
def test_what_dies_on_fresh_starts_is_not_recommended(
    tmp_path: pathlib.Path, is_default: bool, spares: int
) -> None:
    """Also where two pairs survive and show the best to be better."""
    settings = dataclasses.replace(SETTINGS, measurement=MeasurementSettings(pairs=8))
    bench = DiesAfresh(is_default=is_default, spares=spares)
    finished = study._run(setup_of(tmp_path, bench, settings=settings))
    record = finished.record
    assert (record.verdict is not None) == (spares >= 2)
    found = advise(record)
    assert found is not None
    assert found.configuration == (record.best if is_default else record.default)
    assert f"failed {8 - spares} of 8 evaluations (peak 64 MiB)" in found.reason


def test_a_default_that_failed_once_in_the_search_still_works(tmp_path: pathlib.Path) -> None:
    """Its round evaluations say so: nothing in the record calls it broken."""

    class Unlucky(DiesAfresh):
        def evaluate(self, configuration, race=None):
            launch = super().evaluate(configuration, race)
            if len(self.launched) > 1:
                return launch
            return dataclasses.replace(
                launch,
                outcome=Outcome(status="failed", cause="crash", reason="the server ended"),
                measurement=None,
            )

    record = study._run(setup_of(tmp_path, Unlucky())).record
    found = advise(record)
    assert found is not None
    assert found.configuration == record.default
    assert "the default none" in found.reason
    assert "does not work" not in headline.headline(record)


def test_a_best_that_misses_the_limit_afresh_is_no_solution(tmp_path: pathlib.Path) -> None:
    """It kept --slo-ms in the search, and the default keeps it on round evaluations."""

    class Slower(ToyBench):
        def evaluate_on_new_server(self, configuration):
            launch = self.evaluate(configuration)
            if configuration == benches.arena().default:
                return launch
            slow = dataclasses.replace(
                launch.measurement,
                p99_ms=1e4,
                histogram=LatencyHistogram.of(np.full(launch.measurement.requests, 1e4)),
            )
            return dataclasses.replace(launch, measurement=slow)

    slo = dataclasses.replace(SETTINGS, measurement=MeasurementSettings(pairs=3, slo_ms=5e3))
    record = study._run(setup_of(tmp_path, Slower(), settings=slo)).record
    found = advise(record)
    assert found is not None
    assert found.configuration == record.default
    assert "failed 3 of 3 evaluations (p99 of 1.004e+04 ms is above the limit" in found.reason


class FullDisk(ToyBench):
    """The disk is full by the third launch."""

    def evaluate(self, configuration, race=None):
        if len(self.launched) == 2:
            raise StorageFailed("study.db cannot be written: no space; free some")
        return super().evaluate(configuration, race)


def test_a_full_disk_ends_with_the_way_to_go_on(tmp_path: pathlib.Path) -> None:
    """What was kept before it stays, and the command that goes on with it is said."""
    with pytest.raises(StorageFailed, match="free some; then resume with: tune resume s"):
        study._run(setup_of(tmp_path, FullDisk()))
    finished = study._run(setup_of(tmp_path, ToyBench()))
    assert len(finished.record.trials) == 6


def test_the_longest_time_counts_verification_and_interrupted_trials(
    tmp_path: pathlib.Path,
) -> None:
    """Eight launches of at least 20 ms were begun before the signal, one of them for nothing."""
    with pytest.raises(Interrupted):
        study._run(setup_of(tmp_path, SlowBench(interrupt_at=8)))
    used_s = study_files.store_of(RunFolder(tmp_path, "s"), SETTINGS).used_s()
    assert used_s >= 8 * 0.02


def test_time_that_was_used_ends_the_search_of_the_next_process(tmp_path: pathlib.Path) -> None:
    """Two trials are there and no third is begun; they are verified all the same."""
    with pytest.raises(Interrupted):
        study._run(setup_of(tmp_path, ToyBench(interrupt_at=2)))
    study_files.store_of(RunFolder(tmp_path, "s"), SETTINGS).keep_used_s(1e4)
    finished = study._run(setup_of(tmp_path, ToyBench()))
    assert "longest time" in finished.stopped
    assert len(finished.record.trials) == 2


def test_the_time_before_the_first_trial_counts(tmp_path: pathlib.Path) -> None:
    """A start that took the longest time leaves time for the default only."""
    before, bench = setup_of(tmp_path, ToyBench()), ToyBench()
    setup = StudyRun.of(
        benches.inputs(SETTINGS, SERVED),
        before.folder,
        before.store,
        bench,
        before.terminal,
        begun_s=time.monotonic() - SETTINGS.search.max_time_s,
    )
    finished = study._run(setup)
    assert "longest time" in finished.stopped
    assert len(finished.record.trials) == 1


def test_a_finished_study_is_said_to_be_finished(tmp_path: pathlib.Path) -> None:
    """In one line, before its report is written again."""
    setup = setup_of(tmp_path, ToyBench())
    study._run(setup)
    stream = io.StringIO()
    console = rich.console.Console(file=stream, soft_wrap=True)
    terminal = dataclasses.replace(setup.terminal, console=console)
    assert study.resume(setup.folder, storage=None, terminal=terminal).files["report"].exists()
    assert stream.getvalue() == "the study is finished; only its report is written again\n"


def test_a_front_ends_with_a_verdict_in_each_objective(tmp_path: pathlib.Path) -> None:
    """The point that is exported is verified in both; the page shows the front, the export names the point."""
    two = dataclasses.replace(
        SETTINGS,
        search=dataclasses.replace(SETTINGS.search, sampler="gp"),
        measurement=MeasurementSettings(pairs=6, objective="mean,cost", point="mean"),
    )
    finished = study._run(setup_of(tmp_path, ToyBench(), settings=two))
    record = finished.record
    assert record.second == "cost"
    assert len(record.pareto_front) >= 2
    assert record.pareto_front[0].is_chosen
    assert record.best == record.pareto_front[0].configuration
    assert record.verdict is not None
    assert record.verdict.second is not None
    assert record.verdict.second.objective == "cost"
    assert record.verdict.second.text in headline.headline(record)
    page = finished.files["report"].read_text(encoding="utf-8")
    assert "What none beats in both objectives" in page
    found = advise(record)
    assert found is not None
    if found.configuration == record.best:
        assert "it is the best in mean of a front of" in found.reason
    assert any("The front of mean latency and cost" in line for line in study_notes.remarks(record))


def test_a_study_under_a_constraint_recommends_what_keeps_to_it(tmp_path: pathlib.Path) -> None:
    """The cheapest that meets a deadline: judged by all round evaluations together, and said in the report."""
    limited = dataclasses.replace(
        SETTINGS,
        search=dataclasses.replace(SETTINGS.search, sampler="gp", trials=16),
        measurement=MeasurementSettings(pairs=6, objective="cost", constraints=("p95_ms <= 60",)),
    )
    record = study._run(setup_of(tmp_path, ToyBench(), settings=limited)).record
    assert record.best is not None
    kept = [trial for trial in record.trials if trial.configuration == record.best]
    assert kept[0].measured is not None
    assert kept[0].measured.p95_ms <= 1.1 * 60
    assert any(trial.missed is not None for trial in record.trials)
    found = advise(record)
    assert found is not None
    default, best = record.failure_counts["default"], record.failure_counts["best"]
    assert not best.failed
    assert default.evaluations == best.evaluations


def test_default_and_best_are_shown_in_an_open_loop(tmp_path: pathlib.Path) -> None:
    """At 80 % of what the best made in its round evaluations, the default first; kept, said, and read back."""
    bench, said = ToyBench(), io.StringIO()
    setup = setup_of(tmp_path, bench)
    progress = Progress(
        rich.console.Console(file=said, width=200), default=setup.problem.default, objective="mean"
    )
    record = study._run(dataclasses.replace(setup, progress=progress)).record
    assert record.verdict is not None
    assert record.open_loop is not None
    rates = [launch.throughput_per_s for launch in record.verdict.best]
    assert record.open_loop.rate_per_s == pytest.approx(0.8 * statistics.geometric_mean(rates))
    assert bench.opened == [
        (record.default, record.open_loop.rate_per_s),
        (record.best, record.open_loop.rate_per_s),
    ]
    assert record.open_loop.of("best").measurement is not None
    assert said.getvalue().count("open loop at") == 2
    assert any("In an open loop at 80 %" in remark for remark in study_notes.remarks(record))


def test_the_open_loop_is_shown_once(tmp_path: pathlib.Path) -> None:
    """A finished study launches nothing when it is gone on with, and an open study does without."""
    study._run(setup_of(tmp_path, ToyBench()))
    again = ToyBench()
    assert study._run(setup_of(tmp_path, again)).record.open_loop is not None
    assert (again.launched, again.opened) == ([], [])
    target = TargetSettings(model="toy", rate=100.0)
    bench = ToyBench()
    open_study = dataclasses.replace(SETTINGS, target=target)
    made = study._run(setup_of(tmp_path / "o", bench, settings=open_study)).record
    assert (made.open_loop, bench.opened) == (None, [])
    assert not any("open loop" in note for note in made.notes)


def test_without_time_the_open_loop_is_left_out_with_a_word(tmp_path: pathlib.Path) -> None:
    """The note says that the longest time left no room."""

    class Late(ToyBench):
        def evaluate_on_new_server(self, configuration):
            object.__setattr__(setup, "begin_s", setup.begin_s - 400)
            return self.evaluate(configuration)

    bench = Late()
    setup = setup_of(tmp_path, bench)
    record = study._run(setup).record
    assert record.verdict is not None
    assert (record.open_loop, bench.opened) == (None, [])
    assert any(note.startswith("not shown in an open loop") for note in record.notes)
