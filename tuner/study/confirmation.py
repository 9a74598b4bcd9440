"""Confirmation of an export: the study's load against a server elsewhere, and a verdict.

    study and URL -> same model and configuration? -> evaluations -> against the study's own

The server is left as it is. The figures may also come from `tune load --json`, which ran where this
command cannot (`measured_loads`).
"""

from __future__ import annotations

import dataclasses
import pathlib
import socket
import time
from collections.abc import Mapping, Sequence

from tuner.advice import Advice, advise, of_trial, why_nothing
from tuner.engines.description import UrlEngine
from tuner.errors import TunerError, UsageError
from tuner.evaluation.evaluation import Evaluation
from tuner.evaluation.interleaving import Arm, InterleavedRounds
from tuner.export import provenance
from tuner.measurement import confirmation as statistics
from tuner.measurement.outcome import EvaluationRequirements
from tuner.metrics import objective as objectives
from tuner.report import formatting
from tuner.settings.study import StudySettings
from tuner.settings.target import SPAWNERS
from tuner.settings.workload import RATE
from tuner.store.run_folder import RunFolder
from tuner.study import measured_loads, served_identity, study_files, targets, verification
from tuner.study.interruption import resumable, resume_command
from tuner.study.measured_loads import Load
from tuner.study.preparation import make_evaluator
from tuner.study.progress import Terminal
from tuner.study.served_identity import ServedIdentity
from tuner.values.confirmation import Confirmation
from tuner.values.measurement import Measurement
from tuner.values.round_evaluation import RoundEvaluation
from tuner.values.study_record import StudyRecord

EXPORT = "export"
CONNECT_S = 2.0
LEAST_REPEATS = 6
"""Number of evaluations if the study has fewer, as when its default is the best."""
LOST = 2
"""Number of evaluations in succession that fail before the rest is given up."""
SAVE_WAIT_S = 10.0
"""Time to wait for another process that saves to the study, so that no measurement is lost to it."""
NOT_REACHED = ServedIdentity(
    checked=(), unchecked=("the model", "the configuration", served_identity.LIMITS)
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationSpec:
    """What to confirm, and how."""

    folder: RunFolder
    storage: str | None = None
    url: str | None = None
    """URL of the server or model; None if the figures were measured elsewhere."""
    admin_url: str | None = None
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    loads: pathlib.Path | None = None
    """Output of `tune load --json`, one or more times; None to measure here."""
    trial: int | None = None
    repeats: int | None = None
    """Number of evaluations; None for that of the study's verification."""
    margin: float = statistics.MARGIN


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedStudy:
    """A finished study, and the configuration of it that was exported."""

    settings: StudySettings
    record: StudyRecord
    advice: Advice
    measured: tuple[Measurement, ...]
    """Evaluations of the configuration in the study."""

    @property
    def objective(self) -> str:
        """Objective that is compared."""
        return self.settings.measurement.first

    @property
    def needs(self) -> EvaluationRequirements:
        """What each evaluation of the export must measure, of what the load can see."""
        limits = self.settings.measurement.limits
        seen = tuple(limit for limit in limits if not limit.of.is_of_server)
        return EvaluationRequirements(objective=self.objective, limits=seen)

    @property
    def unseen(self) -> tuple[str, ...]:
        """What of the study is not judged: its second objective, and what the load cannot see."""
        second, limits = self.settings.measurement.second, self.settings.measurement.limits
        unseen = [f"the constraint {limit.text}" for limit in limits if limit.of.is_of_server]
        return (*(() if second is None else (f"the objective {second}",)), *unseen)

    @property
    def remark(self) -> str | None:
        """What to bear in mind about the study's side, or None."""
        if provenance.is_verified(self.record, self.advice.configuration):
            return None
        return "The study's figures are of its search, which flatter a selected configuration."

    @property
    def repeats(self) -> int:
        """Number of evaluations of the export: as many as the study has, or a few if it has fewer."""
        return max(LEAST_REPEATS, len(self.measured))


def confirm(spec: ConfirmationSpec, *, terminal: Terminal) -> Confirmation:
    """Measure an export, compare it with its study, and add the verdict to the study.

    Raises:
        UsageError: the study or the server is not what was meant; nothing is saved.
        StudyBusy: another process runs the study; nothing was measured.
        TunerError: the server cannot be measured.
        Interrupted: a signal arrived; nothing was saved.
    """
    with spec.folder.hold_lock():  # only for a moment: nothing is measured of a study that runs
        found = find(spec.folder, storage=spec.storage, trial=spec.trial)
    repeats = spec.repeats or found.repeats
    loads = None if spec.loads is None else _read_loads(found, spec.loads)
    engine = None
    identity = NOT_REACHED
    if spec.url is not None:
        engine = _running_engine(spec.url, spec.headers)
        identity = served_identity.check(
            engine,
            model=found.record.model,
            signature=found.record.signature,
            configuration=found.advice.configuration,
            exported=served_identity.settings_of_exports(found.record, found.advice),
            admin_url=spec.admin_url,
        )
        terminal.say(f"the same as in the study: {'; '.join(identity.checked) or 'nothing known'}")
    unchecked = (*identity.unchecked, *found.unseen)
    terminal.say(f"not checked: {'; '.join(unchecked)}", style="yellow")
    if loads is None:
        assert engine is not None, "checked by the command"
        with resumable(None):
            evaluations = _measure(found, engine, repeats, terminal)
    else:
        evaluations = loads
    compared = statistics.compare_unpaired(
        found.measured,
        _measurements(evaluations),
        objective=found.objective,
        limits=found.needs.limits,
        margin=spec.margin,
    )
    failures = _failures(evaluations)
    lost = None if failures is None else f"{failures}."
    result = Confirmation(
        where=spec.url or f"measured elsewhere ({spec.loads})",
        measured_at=time.time(),
        configuration=found.advice.configuration,
        trial=spec.trial,
        objective=found.objective,
        outcome=compared.outcome,
        ratio=compared.ratio,
        interval=compared.interval,
        margin=spec.margin,
        evaluations=tuple(evaluations),
        checked=identity.checked,
        unchecked=unchecked,
        text=" ".join(filter(None, (compared.text, found.remark, lost))),
    )
    with spec.folder.hold_lock(wait_s=SAVE_WAIT_S):
        study_files.add_confirmation(spec.folder, result)
    return result


def find(folder: RunFolder, *, storage: str | None, trial: int | None) -> ConfirmedStudy:
    """Return a study that can be confirmed, or raise UsageError."""
    settings = study_files.settings_of(folder)
    store = study_files.store_of(folder, settings, url=storage)
    if not study_files.is_finished(folder):
        raise UsageError(
            f"study {folder.name} is not finished, so nothing of it is exported yet: resume it "
            f"with `{resume_command(folder)}`"
        )
    record = study_files.read(folder, store, settings)
    if record.scenario is not None:
        raise UsageError(f"study {folder.name} is of a scenario; only one model can be confirmed")
    if record.is_of_other_engine:
        raise UsageError(
            f"study {folder.name} tuned another engine ({record.engine}); only an export of "
            "Luthier's studies can be confirmed"
        )
    advice = advise(record) if trial is None else of_trial(record, trial)
    if advice is None:
        raise UsageError(f"study {folder.name} recommends nothing: {why_nothing(record)}")
    if settings.measurement.first in objectives.OF_SERVER:
        raise UsageError(
            f"study {folder.name} has the objective {settings.measurement.first}, which the "
            "load cannot see: it is of the server's processes"
        )
    measured = provenance.measurements_of(record, advice.configuration)
    if not measured:
        raise UsageError(
            f"study {folder.name} has no evaluation of the exported configuration that worked"
        )
    return ConfirmedStudy(settings=settings, record=record, advice=advice, measured=measured)


def _running_engine(url: str, headers: Mapping[str, str]) -> UrlEngine:
    engine = targets.running_engine(url)
    if engine.request.protocol == "raw":
        raise UsageError(
            f"--url {url}: expected a server or model, as http://HOST:PORT or "
            "http://HOST:PORT/v2/models/NAME"
        )
    try:
        socket.create_connection((engine.host, engine.port), timeout=CONNECT_S).close()
    except OSError as error:
        raise UsageError(
            f"--url {url}: nothing listens there ({error.strerror or error}): start the export, "
            "or correct the address"
        ) from error
    request = dataclasses.replace(engine.request, headers=dict(headers))
    return dataclasses.replace(engine, request=request)


def _measure(
    found: ConfirmedStudy, engine: UrlEngine, repeats: int, terminal: Terminal
) -> Sequence[RoundEvaluation]:
    target = dataclasses.replace(
        found.settings.target,
        engine=f"url:{engine.url}",
        hook="-",
        spawner=SPAWNERS[0],
        limits="each",
        space=None,
        fixed=(),
        min_accuracy=None,
    )
    settings = dataclasses.replace(found.settings, target=target)
    running = targets.url_target(engine, target)
    objective = objectives.find_objective(found.objective)

    def report(evaluations: Sequence[RoundEvaluation], _evaluation: Evaluation) -> None:
        terminal.check()
        evaluator.stream = 1 + len(evaluations)
        last = evaluations[-1]
        number = f"{len(evaluations):3d}/{repeats}"
        if last.measurement is None:
            terminal.say(f"{number} failed: {last.outcome.reason}", style="yellow")
        else:
            value = formatting.quantity(objective.value(last.measurement), objective.unit)
            terminal.say(f"{number} {value}")
        if len(evaluations) >= LOST and all(one.measurement is None for one in evaluations[-LOST:]):
            raise TunerError(f"{engine.url} cannot be measured: {last.outcome.reason}")

    slowest_s = max(one.mean_ms for one in found.measured) / 1e3
    with make_evaluator(settings, running, terminal) as evaluator:
        served = evaluator.launcher.start(found.advice.configuration).describe()
        evaluator.send(running.payloads(target, served, seed=settings.search.seed))
        arm = Arm(launcher=evaluator.launcher, configuration=found.advice.configuration)
        evaluator.stream = 1  # as the verification's first round
        with InterleavedRounds.open(evaluator, {EXPORT: arm}, latency_s=slowest_s) as source:
            return verification.alternate(
                source, rounds=repeats, needs=found.needs, report=report
            ).evaluations


def _read_loads(found: ConfirmedStudy, path: pathlib.Path) -> Sequence[RoundEvaluation]:
    if found.objective == RATE:
        raise UsageError(
            f"--measured {path}: the study searched the highest rate, which one load does not; use --url"
        )
    load = Load.of_study(found.record, found.settings)
    return measured_loads.read(path, role=EXPORT, load=load, needs=found.needs)


def _measurements(evaluations: Sequence[RoundEvaluation]) -> list[Measurement]:
    """Return the measurements, or raise TunerError if too few evaluations worked."""
    worked = [one.measurement for one in evaluations if one.measurement is not None]
    if len(worked) < statistics.MIN_EVALUATIONS and (failures := _failures(evaluations)):
        raise TunerError(f"too few evaluations to compare: {failures}")
    return worked


def _failures(evaluations: Sequence[RoundEvaluation]) -> str | None:
    """Return how many evaluations failed, and why the first of them did, or None if none did."""
    failed = [one.outcome.reason for one in evaluations if one.measurement is None]
    if not failed:
        return None
    return f"{len(failed)} of {len(evaluations)} evaluations here failed: {failed[0]}"
