"""Recorder of a benchmark table: every candidate of a grid, evaluated several times.

Each pass has a new order, to counter drift; then the best are repeated (`schedule`). A killed
recording resumes after its last row.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from typing import Any

import numpy as np
import yaml

from tuner.errors import Interrupted, TunerError, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.evaluator import Evaluator
from tuner.lab.tables import table_files
from tuner.lab.tables.schedule import HasRecord, RepeatRule, due, expected_evaluations
from tuner.lab.tables.table import BenchmarkTable, RecordedEvaluation, TableHeader
from tuner.lab.tables.table_files import TableFolder
from tuner.launching import machine
from tuner.measurement import summary
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import objective as objectives
from tuner.report import formatting
from tuner.settings.study import StudySettings
from tuner.space import files
from tuner.study import problem, targets
from tuner.study.creation import environment_facts
from tuner.study.interruption import resumable
from tuner.study.preparation import StudyInputs, make_evaluator, notes_of, prepare
from tuner.study.progress import Progress, Terminal
from tuner.study.targets import CommandTarget
from tuner.values.histogram import LatencyHistogram
from tuner.values.measurement import Block, Measurement
from tuner.values.request_records import RequestRecords

MAX_FAILED_IN_A_ROW = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordSpec:
    """Specification of a recording."""

    settings: StudySettings
    """Target (whose space is the grid), measurement, and seed for the order."""
    thoroughness: RepeatRule
    out: pathlib.Path


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordResult:
    """Table after a recording, with the number of new evaluations."""

    table: BenchmarkTable
    measured: int


def record(order: RecordSpec, *, terminal: Terminal) -> RecordResult:
    """Run the evaluations that the folder lacks.

    Raises:
        UsageError: an input is invalid, or the folder belongs to another recording.
        Interrupted: a signal arrived; the evaluations so far are saved.
    """
    settings = order.settings
    target = targets.find_target(settings.target)
    folder = TableFolder(order.out)
    known = table_files.read(order.out) if folder.exists() else None
    with resumable(None), folder, make_evaluator(settings, target, terminal) as evaluator:
        evaluator.lengthens = False  # a table's evaluations have one length
        inputs = prepare(evaluator, settings, target, terminal)
        problem, head = inputs.problem, _head(order, inputs)
        if known is not None:
            head = _going_on(head, known.head, order.out)
        folder.begin(head)
        evaluations = list(known.evaluations) if known is not None else []
        before = len(evaluations)
        recorder = _Recorder(order, folder, evaluator, problem, head, terminal)
        try:
            recorder.run(evaluations)
        except KeyboardInterrupt:
            kept = f"{len(evaluations)} evaluations are in {order.out}"
            raise Interrupted(f"{kept}; repeat the command to continue") from None
        folder.finish(head)
    return RecordResult(
        table=BenchmarkTable(head=head, evaluations=tuple(evaluations)),
        measured=len(evaluations) - before,
    )


class _Recorder:
    def __init__(
        self,
        order: RecordSpec,
        folder: TableFolder,
        evaluator: Evaluator,
        problem: problem.ProblemStatement,
        head: TableHeader,
        terminal: Terminal,
    ) -> None:
        self._order = order
        self._folder = folder
        self._evaluator = evaluator
        self._problem = problem
        self._head = head
        self._terminal = terminal
        self._table = BenchmarkTable(
            head=head,
            evaluations=(),
            deadline_ms=order.settings.measurement.slo_ms,
            paid=evaluator.prices,
        )
        self._objective = objectives.find_objective(head.objective)
        self._progress = Progress(
            terminal.console, default=problem.default, objective=head.objective
        )

    def run(self, evaluations: list[RecordedEvaluation]) -> None:
        """Run the due evaluations, appending them to the folder and to `evaluations`."""
        cells = self._problem.candidates.configurations
        recorded = [self._read(evaluation) for evaluation in evaluations]
        expected = expected_evaluations(len(cells), self._order.thoroughness)
        self._tell(len(cells), len(evaluations), expected)
        begun_s, at_begin = time.monotonic(), len(evaluations)
        while True:
            sweep, waiting = due(cells, recorded, self._order.thoroughness, seed=self._head.seed)
            if not waiting:
                return
            for cell in waiting:
                self._evaluator.stream = sweep  # a scenario's requests differ by pass
                evaluation = self._evaluator.evaluate(cell)
                number = max((one.number for one in evaluations), default=-1) + 1
                kept = _make_record(evaluation, number=number, sweep=sweep)
                self._folder.append(kept)
                evaluations.append(kept)
                recorded.append(self._read(kept))
                each_s = (time.monotonic() - begun_s) / (len(evaluations) - at_begin)
                left_s = each_s * max(0, expected - len(evaluations))
                again = ", disturbed by the host" if recorded[-1].is_disturbed else ""
                self._progress.say(
                    f"{len(evaluations):5d} pass {sweep}{again} "
                    f"{self._progress.result(evaluation.outcome, evaluation.measurement)} | "
                    f"{self._progress.differences(cell)} | {formatting.duration(left_s)} left"
                )
                self._check(recorded, evaluation)

    def _check(self, recorded: list[HasRecord], last: Evaluation) -> None:
        self._terminal.check()
        if len(recorded) == MAX_FAILED_IN_A_ROW and all(one.value is None for one in recorded):
            outcome = last.outcome
            if last.measurement is not None:
                outcome = EvaluationRequirements(objective=self._head.objective).outcome(
                    last.measurement
                )
            raise TunerError(
                f"none of the first {MAX_FAILED_IN_A_ROW} evaluations worked; the last: "
                f"{outcome.reason}"
            )

    def _tell(self, candidates: int, done: int, expected: int) -> None:
        settings = self._order.settings.measurement
        each_s = settings.measured_s + settings.warmup_s + 0.3
        text = f"{self._head.name}: {formatting.plural(candidates, 'distinct configuration')}, "
        text += f"{self._order.thoroughness.passes} passes, then the best ones again; "
        text += f"about {formatting.plural(expected, 'evaluation')}"
        if done:
            text += f", {done:,} of them done"
        left_s = max(0, expected - done) * each_s
        self._progress.say(f"{text}: {formatting.duration(left_s)}", style="bold")

    def _read(self, evaluation: RecordedEvaluation) -> HasRecord:
        value = self._table.minimised_value(evaluation, self._objective)
        return HasRecord(
            evaluation.sweep, evaluation.cell, value, evaluation.is_disturbed(self._table.cores)
        )


def _make_record(evaluation: Evaluation, *, number: int, sweep: int) -> RecordedEvaluation:
    measured, records = evaluation.measurement, evaluation.records
    kept = RecordedEvaluation(
        number=number,
        cell=evaluation.configuration,
        sweep=sweep,
        started_at=evaluation.started_at,
        outcome=evaluation.outcome,
        startup_s=evaluation.startup_s,
        loaded_s=evaluation.loaded_s,
    )
    if measured is None:
        return kept
    return dataclasses.replace(
        kept,
        errors=measured.errors,
        blocks=_blocks(measured),
        histogram=None if records is None else _histogram(records, measured),
        noise=measured.noise,
    )


def _blocks(measured: Measurement) -> tuple[Block, ...]:
    if measured.blocks:
        return measured.blocks
    whole = Block(
        start_s=measured.warmup_s,
        seconds=measured.seconds,
        requests=measured.requests,
        mean_ms=measured.mean_ms,
        p50_ms=measured.p50_ms,
        p99_ms=measured.p99_ms,
        throughput_per_s=measured.throughput_per_s,
        spread_ms=measured.spread_ms,
    )
    return (whole,)


def _histogram(records: RequestRecords, measured: Measurement) -> LatencyHistogram:
    chosen = summary.is_measured(
        records,
        warmup_s=measured.warmup_s,
        seconds=measured.seconds,
        is_open=measured.rate_per_s is not None,
    )
    chosen &= summary.is_ok(records)
    took_s = records.finished_s[chosen] - records.intended_s[chosen]
    return LatencyHistogram.of(np.asarray(1e3 * took_s, dtype=float))


def _head(order: RecordSpec, inputs: StudyInputs) -> TableHeader:
    settings, problem, served = order.settings, inputs.problem, inputs.served
    measurement = settings.measurement
    label = served.engine
    if isinstance(inputs.target, CommandTarget):  # whose absolute path is useless elsewhere
        label = f"{served.kind} ({settings.target.engine})"
    facts = {**environment_facts(served), "engine": label}
    space: dict[str, Any] = yaml.safe_load(files.dump(problem.space))
    return TableHeader(
        name=order.out.name,
        model=served.model,
        concurrency=settings.target.in_flight,
        client_batch=settings.target.client_batch,
        rate_per_s=settings.target.rate,
        deadline_ms=measurement.slo_ms,
        engine=label,
        spawner=settings.target.spawner,
        objective=measurement.first,
        space=space,
        default=problem.default,
        host={**machine.describe(machine.read()), **facts},
        measurement={
            "seconds": measurement.measured_s,
            "warmup_s": measurement.warmup_s,
            "block_s": measurement.block_s,
        },
        passes=order.thoroughness.passes,
        seed=settings.search.seed,
        notes=tuple(notes_of(inputs)),
    )


def _going_on(head: TableHeader, before: TableHeader, path: pathlib.Path) -> TableHeader:
    for name in (
        "model",
        "concurrency",
        "client_batch",
        "rate_per_s",
        "deadline_ms",
        "engine",
        "spawner",
        "default",
        "measurement",
    ):
        was, now = getattr(before, name), getattr(head, name)
        if was != now:
            raise UsageError(
                f"--out {path} was recorded with {name} {was}, this command has {now}; "
                "use the options of the first command, or another folder"
            )
    if before.space.get("knobs") != head.space.get("knobs"):
        raise UsageError(
            f"--out {path} was recorded on another grid, or on a machine that narrows it "
            "differently; use another folder"
        )
    return dataclasses.replace(
        before, passes=head.passes, objective=head.objective, seed=before.seed, is_finished=False
    )
